package api

import (
	"strconv"

	"weir/internal/check"
	"weir/internal/limit"
)

// The answer to a check is appended field by field, because its form is fixed and this runs for
// every check. docs/check.md describes the fields.

// appendDecision appends one decision as a JSON object.
func appendDecision(b []byte, d *check.Decision) []byte {
	b = append(b, `{"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	b = append(b, `,"subject":`...)
	b = appendString(b, d.Subject)
	b = append(b, `,"resource":`...)
	b = appendString(b, d.Resource)
	b = append(b, `,"cost":`...)
	b = strconv.AppendInt(b, d.Cost, 10)
	b = append(b, `,"plan":`...)
	if d.Plan == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, d.Plan)
	}
	deciding := decidingRule(d)
	if deciding == nil {
		b = append(b, `,"rule":null,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null`...)
	} else {
		b = append(b, `,"rule":`...)
		b = appendString(b, deciding.Rule.Slug)
		b = append(b, `,"limit":`...)
		b = strconv.AppendInt(b, deciding.Limit, 10)
		b = appendState(b, deciding)
	}
	if d.HasDelay {
		b = append(b, `,"delay_ms":`...)
		b = strconv.AppendInt(b, d.DelayMS, 10)
	}
	b = append(b, `,"rules":[`...)
	for i := range d.Rules {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRule(b, &d.Rules[i], d.Allowed)
	}
	b = append(b, ']')
	b = appendSkipped(b, d)
	b = append(b, `,"degraded":`...)
	b = strconv.AppendBool(b, d.Degraded)
	if d.Warning {
		b = append(b, `,"warning":true`...)
	}
	if d.Overage {
		b = append(b, `,"overage":true`...)
	}
	if !d.Allowed {
		b = appendDenial(b, d, deciding)
	}
	return append(b, '}')
}

// decidingRule returns the rule whose numbers are those of the decision, or nil.
func decidingRule(d *check.Decision) *check.RuleDecision {
	if d.Deciding < 0 {
		return nil
	}
	return &d.Rules[d.Deciding]
}

// appendState appends the remaining units of a rule and when there will be more.
func appendState(b []byte, r *check.RuleDecision) []byte {
	b = append(b, `,"remaining":`...)
	b = appendNumber(b, r.Remaining, !r.Uncounted)
	b = append(b, `,"retry_after_ms":`...)
	b = appendNumber(b, r.RetryAfterMS, r.RetryAfterMS != limit.NeverMS)
	b = append(b, `,"reset_after_ms":`...)
	return appendNumber(b, r.ResetAfterMS, !r.Uncounted)
}

func appendRule(b []byte, r *check.RuleDecision, admitted bool) []byte {
	b = append(b, `{"rule":`...)
	b = appendString(b, r.Rule.Slug)
	b = append(b, `,"algorithm":"`...)
	b = append(b, r.Rule.Algorithm.String()...)
	b = append(b, `","mode":"`...)
	b = append(b, r.Mode.String()...)
	b = append(b, `","allowed":`...)
	b = strconv.AppendBool(b, r.Allowed)
	b = append(b, `,"source":`...)
	b = appendString(b, r.Source)
	if r.Unlimited {
		return append(b, `,"unlimited":true,"limit":null,"window_ms":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null}`...)
	}
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, r.Limit, 10)
	if r.Rule.Algorithm.Bucket() {
		b = append(b, `,"burst":`...)
		b = strconv.AppendInt(b, r.Burst, 10)
	}
	b = append(b, `,"window_ms":`...)
	b = strconv.AppendInt(b, r.WindowMS, 10)
	b = appendState(b, r)
	if r.Rule.Algorithm == limit.LeakyBucketQueue {
		b = append(b, `,"delay_ms":`...)
		b = appendNumber(b, r.DelayMS, admitted && r.Allowed && !r.Uncounted)
	}
	if r.Penalized {
		b = append(b, `,"penalized":true`...)
	}
	if r.Missing != "" {
		b = append(b, `,"missing_attribute":`...)
		b = appendString(b, r.Missing)
	}
	if r.Degraded {
		b = append(b, `,"degraded":true`...)
	}
	if r.Warning {
		b = append(b, `,"warning":true`...)
	}
	if r.Overage > 0 {
		b = append(b, `,"overage":true,"overage_units":`...)
		b = strconv.AppendInt(b, r.Overage, 10)
	}
	if r.HasCredits {
		b = append(b, `,"credits_spent":`...)
		b = strconv.AppendInt(b, r.CreditsSpent, 10)
		b = append(b, `,"credits_remaining":`...)
		b = appendNumber(b, r.Credits, !r.Degraded)
	}
	return append(b, '}')
}

// appendSkipped appends the rules that were not evaluated, if there are any. Slugs and reasons need
// no escape.
func appendSkipped(b []byte, d *check.Decision) []byte {
	end := "" // of the list
	for s := range d.EachSkipped() {
		if end == "" {
			b, end = append(b, `,"skipped":[{"rule":"`...), "]"
		} else {
			b = append(b, `,{"rule":"`...)
		}
		b = append(append(append(b, s.Rule.Slug...), `","reason":"`...), s.Reason...)
		if s.Attribute != "" {
			b = append(appendString(append(b, `","attribute":`...), s.Attribute), '}')
			continue
		}
		b = append(b, `"}`...)
	}
	return append(b, end...)
}

// appendDenial appends the reason of a denial, in a form that can be shown to an end user.
func appendDenial(b []byte, d *check.Decision, deciding *check.RuleDecision) []byte {
	wait, curable := retryAfter(d)
	b = append(b, `,"error":{"code":"`...)
	b = append(b, d.Code...)
	b = append(b, `","message":"`...)
	b = appendMessage(b, d, deciding, wait, curable)
	b = append(b, `","retry_after":`...)
	b = appendNumber(b, wait, curable)
	return append(b, '}')
}

// appendMessage appends a sentence for people. It contains only fixed words, slugs, names of
// attributes and numbers, so
// nothing needs escaping.
func appendMessage(b []byte, d *check.Decision, deciding *check.RuleDecision, wait int64, curable bool) []byte {
	switch d.Code {
	case check.CostExceedsLimit:
		b = append(b, "A cost of "...)
		if deciding == nil {
			b = strconv.AppendInt(b, d.Cost, 10)
		} else {
			b = strconv.AppendInt(b, d.Asked(deciding), 10)
		}
		b = append(b, " can never pass"...)
		if deciding != nil {
			b = append(b, ": "...)
			b = append(b, deciding.Rule.Slug...)
			b = append(b, " allows at most "...)
			b = strconv.AppendInt(b, deciding.MostCost(), 10)
			b = append(b, " at once"...)
		}
		return append(b, '.')
	case check.SubjectBlocked:
		return append(b, "The subject is blocked."...)
	case subjectMissing:
		return append(b, "The request does not say who is asking."...)
	case subjectInvalid:
		return append(b, "The subject is not 1 to 256 bytes of UTF-8 without control characters."...)
	case resourceInvalid:
		return append(b, "The resource is not 1 to 256 bytes of UTF-8 without control characters, or the URI of the request can be read in two ways."...)
	case attributeInvalid:
		return append(b, "An attribute is not 1 to 256 bytes of UTF-8 without control characters, or there are more than 16."...)
	case requestInvalid:
		return append(b, "The request cannot be read: it is malformed, or its headers are longer than 16 KiB or 100 lines."...)
	case resourceNotAllowed:
		return append(b, "The API key may not check this resource."...)
	case check.AttributeMissing:
		b = append(b, "The check lacks the attribute "...)
		b = append(b, deciding.Missing...)
		b = append(b, ", and "...)
		b = append(b, deciding.Rule.Slug...)
		return append(b, " denies such checks."...)
	case check.CountersUnavailable:
		b = append(b, "The limit cannot be checked at the moment."...)
	default:
		b = append(b, "Rate limit exceeded."...)
	}
	if curable {
		b = append(b, " Try again in "...)
		b = appendWait(b, wait)
		b = append(b, '.')
	}
	return b
}

// retryAfter returns the number of seconds, rounded up, after which a denied check may be allowed;
// curable is false if there is no such time.
func retryAfter(d *check.Decision) (seconds int64, curable bool) {
	r := decidingRule(d)
	if d.Allowed || r == nil || r.RetryAfterMS == limit.NeverMS {
		return 0, false
	}
	return ceilSeconds(r.RetryAfterMS), true
}

// ceilSeconds converts milliseconds to seconds, rounded up. (Adding 999 first could overflow.)
func ceilSeconds(ms int64) int64 {
	s := ms / 1000
	if ms%1000 > 0 {
		s++
	}
	return s
}

// appendWait appends a duration in words, in one or two units, rounded up: "45 seconds", "2 minutes
// 5 seconds", "3 hours", "30 days 1 hour".
func appendWait(b []byte, seconds int64) []byte {
	const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
	switch {
	case seconds >= day:
		hours := (seconds + hour - 1) / hour
		return appendUnits(b, hours/24, "day", hours%24, "hour")
	case seconds > day-minute:
		return appendUnits(b, 1, "day", 0, "")
	case seconds >= hour:
		minutes := (seconds + minute - 1) / minute
		return appendUnits(b, minutes/60, "hour", minutes%60, "minute")
	case seconds >= minute:
		return appendUnits(b, seconds/minute, "minute", seconds%minute, "second")
	}
	return appendUnits(b, seconds, "second", 0, "")
}

func appendUnits(b []byte, n int64, unit string, m int64, smaller string) []byte {
	b = appendUnit(b, n, unit)
	if m > 0 {
		b = append(b, ' ')
		b = appendUnit(b, m, smaller)
	}
	return b
}

func appendUnit(b []byte, n int64, unit string) []byte {
	b = strconv.AppendInt(b, n, 10)
	b = append(b, ' ')
	b = append(b, unit...)
	if n != 1 {
		b = append(b, 's')
	}
	return b
}

// appendNumber appends n, or null if it is not known.
func appendNumber(b []byte, n int64, known bool) []byte {
	if !known {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, n, 10)
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. s is valid UTF-8, because the decoder refuses everything
// else. U+2028 and U+2029 are escaped because they end a line in older JavaScript.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c != 0x7f && c != 0xe2 {
			continue
		}
		switch {
		case c == 0xe2:
			if len(s)-i < 3 || s[i+1] != 0x80 || s[i+2]&^1 != 0xa8 {
				continue
			}
			b = append(b, s[from:i]...)
			b = append(b, '\\', 'u', '2', '0', '2', hexDigits[s[i+2]&0xf])
			i += 2
		case c == '"' || c == '\\':
			b = append(b, s[from:i]...)
			b = append(b, '\\', c)
		default:
			b = append(b, s[from:i]...)
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		from = i + 1
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
