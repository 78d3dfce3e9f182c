package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"slices"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/once"
	"weir/internal/records"
)

// maxCheckKey is the length of a check's Idempotency-Key, in bytes.
const maxCheckKey = 64

// checkKey returns the Idempotency-Key of a check, or "".
func checkKey(h http.Header) (string, *Problem) {
	values := h[idempotencyHeader]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", invalidHeader(idempotencyHeader, isRepeated)
	case !validCheckKey(values[0]):
		return "", invalidHeader(idempotencyHeader, limit.MustBe("1 to 64 visible ASCII characters"))
	}
	return values[0], nil
}

func validCheckKey[T string | []byte](key T) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return len(key) >= 1 && len(key) <= maxCheckKey
}

// countOnce is admit and count for a request with an Idempotency-Key: only the first request with a
// key is counted, and every repeat within a minute gets the answer of the first (package once),
// also if that was the last one of the tenant's quota.
func (s *server) countOnce(ctx context.Context, policy *check.Policy, q question, reqs []check.Request, sc *scratch) ([]check.Decision, *Problem) {
	leave, p := s.holdRecord(policy.Tenant(), sc)
	if p != nil {
		return nil, p
	}
	defer leave()
	claim, answer, err := s.once.Begin(ctx, policy.Tenant(), sc.idempotencyKey, printOf(q, reqs), recordBytes(policy, reqs))
	switch {
	case errors.Is(err, records.ErrBusy):
		return nil, s.crowded(sc)
	case errors.Is(err, once.ErrReused):
		return nil, newProblem(http.StatusUnprocessableEntity, codeIdempotencyKeyReused,
			"This Idempotency-Key was used for another check. Send a new key with each check, and the same key only with a repeat.")
	case errors.Is(err, once.ErrPending):
		return nil, newProblem(http.StatusConflict, codeIdempotencyKeyInUse,
			"The first check with this Idempotency-Key has no answer yet. It may have been counted. Repeat the check after Retry-After.").withRetryAfter(1)
	case err != nil:
		return nil, problemOf(err)
	case claim == nil:
		if p := sc.holdReplay(policy.Tenant(), q, len(answer)); p != nil {
			return nil, p
		}
		return sc.replay(answer)
	}
	defer s.once.Abandon(claim) // after a panic
	var decisions []check.Decision
	if p = s.admit(ctx, policy, reqs); p == nil {
		decisions, p = s.count(ctx, policy, q, reqs, sc)
	}
	if p != nil { // nothing was counted
		s.once.Release(claim)
		return nil, p
	}
	s.once.Finish(claim, s.record(q, reqs, decisions, sc))
	return decisions, nil
}

// maxRecordRequests is how many requests of an instance use records in Redis at once. A tenant may
// have a quarter of those that are left, so of 2048, the first tenant has 409, the next one 327.
const maxRecordRequests = 2048

// holdRecord takes a place for a request that uses records in Redis, which take turns (package
// records). It bounds how many requests of a tenant wait for its turns.
func (s *server) holdRecord(tenant limit.TenantID, sc *scratch) (leave func(), p *Problem) {
	leave, ok := s.capacity.records.TakeShare(tenant, maxRecordRequests, 1)
	if !ok {
		return nil, s.crowded(sc)
	}
	return leave, nil
}

// crowded is the answer to a request of a tenant with too many requests that use records.
func (s *server) crowded(sc *scratch) *Problem {
	sc.pause = s.capacity.refuse()
	return overloaded()
}

// printOf returns the print of a request: of its checks, and of whether they are a batch, because a
// batch of one check has another form of answer than the check.
func printOf(q question, reqs []check.Request) once.Print {
	var b []byte
	if h, ok := q.(*httpQuestion); ok && h.batch {
		b = append(b, 0) // a check begins with the length of its subject, which is not 0
	}
	for i := range reqs {
		r := &reqs[i]
		b = once.AppendPart(b, r.Subject)
		b = once.AppendPart(b, r.Resource)
		b = once.AppendPart(b, r.Plan)
		b = binary.AppendVarint(b, r.Cost)
		b = append(b, bit(r.DryRun), bit(r.Explain))
		attributes := slices.SortedFunc(slices.Values(r.Attributes), func(a, b check.Attribute) int { return cmp.Compare(a.Name, b.Name) })
		b = binary.AppendUvarint(b, uint64(len(attributes)))
		for _, a := range attributes {
			b = once.AppendPart(b, a.Name)
			b = once.AppendPart(b, a.Value)
		}
	}
	return once.PrintOf(b)
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// appendRecord appends the answer in sc in the form that is stored for repeats: whether it allows,
// the lines of its headers, an empty line, the body.
func (sc *scratch) appendRecord(b []byte, decisions []check.Decision) []byte {
	b = append(b, bit(decisions[0].Allowed))
	from := 0
	for i := range sc.headers.count {
		b = append(b, sc.headers.names[i]...)
		b = append(b, ": "...)
		b = append(b, sc.headers.buf[from:sc.headers.ends[i]]...)
		b = append(b, "\r\n"...)
		from = sc.headers.ends[i]
	}
	b = append(b, "\r\n"...)
	return append(b, sc.out...)
}

// replay stores a recorded answer in sc, and marks its body as replayed.
func (sc *scratch) replay(record []byte) ([]check.Decision, *Problem) {
	unreadable := func() ([]check.Decision, *Problem) {
		return nil, problemOf(errors.New("the record of an idempotent check is unreadable"))
	}
	if len(record) == 0 {
		return unreadable()
	}
	allowed, rest := record[0] == 1, record[1:]
	sc.headers.buf, sc.headers.count = sc.headers.buf[:0], 0
	for {
		line, after, found := bytes.Cut(rest, []byte("\r\n"))
		if !found {
			return unreadable()
		}
		rest = after
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		at := slices.Index(headerNames[:], string(name))
		if at < 0 || sc.headers.count == len(headerNames) {
			return unreadable()
		}
		from := len(sc.headers.buf)
		sc.headers.buf = append(sc.headers.buf, value...)
		sc.headers.end(headerNames[at], from)
	}
	body, found := bytes.CutSuffix(rest, []byte("}\n"))
	if !found {
		return unreadable()
	}
	sc.out = append(append(sc.out[:0], body...), `,"replayed":true}`+"\n"...)
	sc.decided = append(sc.decided[:0], check.Decision{Allowed: allowed})
	return sc.decided, nil
}
