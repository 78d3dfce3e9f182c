package api

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"weir/internal/check"
	"weir/internal/limit"
)

// The field numbers of a RateLimitResponse and its parts, and its codes.
const (
	fieldOverallCode     = 1
	fieldStatuses        = 2
	fieldResponseHeaders = 3
	fieldRawBody         = 5

	fieldStatusCode         = 1
	fieldCurrentLimit       = 2
	fieldLimitRemaining     = 3
	fieldDurationUntilReset = 4

	fieldRequestsPerUnit = 1
	fieldUnit            = 2
	fieldLimitName       = 3
	fieldUnitMultiplier  = 4

	fieldHeaderKey   = 1
	fieldHeaderValue = 2
	fieldSeconds     = 1
	fieldNanos       = 2

	envoyOK        = 1
	envoyOverLimit = 2
)

// encode stores the RateLimitResponse in sc.out: the verdict, the state of every descriptor, and
// the headers and the body for the gateway's answer.
//
// The headers are those of the deciding descriptor: the denied one with the longest wait, or else
// the one with the smallest share remaining. Headers of several descriptors would contradict each
// other.
func (q *envoyQuestion) encode(style HeaderStyle, decisions []check.Decision, sc *scratch) {
	deciding, allowed := decidingDescriptor(decisions)
	b := appendNumberField(sc.out[:0], fieldOverallCode, envoyCode(allowed))
	next := 0
	for i := range q.descriptors {
		if len(decisions) < len(q.descriptors) && q.uncounted[i] {
			b = appendNested(b, fieldStatuses, func(b []byte) []byte { return appendNumberField(b, fieldStatusCode, envoyOK) })
			continue
		}
		b = appendNested(b, fieldStatuses, func(b []byte) []byte { return appendStatus(b, &decisions[next]) })
		next++
	}
	d := &decisions[deciding]
	sc.headers.build(style, d, decisions...)
	from := 0
	for i := range sc.headers.count {
		b = appendHeader(b, sc.headers.names[i], sc.headers.buf[from:sc.headers.ends[i]])
		from = sc.headers.ends[i]
	}
	if !allowed {
		b = appendHeader(b, "Content-Type", jsonBytes)
		sc.wire = append(appendDecision(sc.wire[:0], d), '\n')
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldRawBody, protowire.BytesType), sc.wire)
	}
	sc.out = b
}

var jsonBytes = []byte(jsonType)

func envoyCode(allowed bool) uint64 {
	if allowed {
		return envoyOK
	}
	return envoyOverLimit
}

// decidingDescriptor returns the decision whose numbers are those of the answer, and whether all
// decisions allow.
func decidingDescriptor(decisions []check.Decision) (deciding int, allowed bool) {
	deciding, allowed = 0, true
	var longest int64
	smallest := math.Inf(1)
	for i := range decisions {
		d := &decisions[i]
		if !d.Allowed {
			wait, curable := retryAfter(d)
			if !curable {
				wait = math.MaxInt64
			}
			if allowed || wait > longest {
				deciding, longest = i, wait
			}
			allowed = false
		} else if r := decidingRule(d); allowed && r != nil {
			if share := float64(r.Remaining) / float64(r.Quota); share < smallest {
				deciding, smallest = i, share
			}
		}
	}
	return deciding, allowed
}

// appendStatus appends a DescriptorStatus, without its tag.
func appendStatus(b []byte, d *check.Decision) []byte {
	b = appendNumberField(b, fieldStatusCode, envoyCode(d.Allowed))
	r := decidingRule(d)
	if r == nil {
		return b // no rule limits it: a descriptor without a limit
	}
	b = appendNested(b, fieldCurrentLimit, func(b []byte) []byte { return appendLimit(b, r) })
	if r.Uncounted {
		return b
	}
	b = appendNumberField(b, fieldLimitRemaining, clampedUint32(r.Remaining))
	return appendNested(b, fieldDurationUntilReset, func(b []byte) []byte {
		b = appendNumberField(b, fieldSeconds, uint64(r.ResetAfterMS/1000))
		return appendNumberField(b, fieldNanos, uint64(r.ResetAfterMS%1000*1_000_000))
	})
}

// appendLimit appends a RateLimit, without its tag.
func appendLimit(b []byte, r *check.RuleDecision) []byte {
	unit, times := envoyUnit(r)
	b = appendNumberField(b, fieldRequestsPerUnit, clampedUint32(r.Limit))
	b = appendNumberField(b, fieldUnit, unit)
	b = protowire.AppendString(protowire.AppendTag(b, fieldLimitName, protowire.BytesType), r.Rule.Slug)
	if times > 1 {
		b = appendNested(b, fieldUnitMultiplier, func(b []byte) []byte { return appendNumberField(b, fieldWrappedValue, clampedUint32(times)) })
	}
	return b
}

// envoyUnits are the units in which a window can be expressed, longest first.
var envoyUnits = []struct {
	unit   uint64
	length int64 // milliseconds
}{{6, 365 * dayMS}, {5, 30 * dayMS}, {7, 7 * dayMS}, {4, dayMS}, {3, 60 * 60 * 1000}, {2, 60 * 1000}, {1, 1000}}

const dayMS = 24 * 60 * 60 * 1000

// envoyUnit returns a rule's window as a unit and a factor; 0 and 1 if the window is not a whole
// number of seconds.
func envoyUnit(r *check.RuleDecision) (unit uint64, times int64) {
	switch r.Rule.Window.Calendar {
	case limit.CalendarMonth: // of any length
		return 5, 1
	case limit.CalendarYear:
		return 6, 1
	default:
	}
	for _, u := range envoyUnits {
		if r.WindowMS >= u.length && r.WindowMS%u.length == 0 {
			return u.unit, r.WindowMS / u.length
		}
	}
	return 0, 1
}

func appendHeader(b []byte, name string, value []byte) []byte {
	return appendNested(b, fieldResponseHeaders, func(b []byte) []byte {
		b = protowire.AppendString(protowire.AppendTag(b, fieldHeaderKey, protowire.BytesType), name)
		return protowire.AppendBytes(protowire.AppendTag(b, fieldHeaderValue, protowire.BytesType), value)
	})
}

// appendNumberField appends a field with a number. 0 is the default and is omitted.
func appendNumberField(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// appendNested appends a field with a message, which body appends. Its length precedes it, in one
// byte if it is short, as nearly all are.
func appendNested(b []byte, field protowire.Number, body func([]byte) []byte) []byte {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	from := len(b)
	b = body(b)
	size := len(b) - from
	if size < 0x80 {
		b[from-1] = byte(size)
		return b
	}
	wide := protowire.SizeVarint(uint64(size)) - 1
	for range wide {
		b = append(b, 0)
	}
	copy(b[from+wide:], b[from:from+size])
	protowire.AppendVarint(b[:from-1], uint64(size))
	return b
}
