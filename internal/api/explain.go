package api

import (
	"slices"

	"weir/internal/check"
	"weir/internal/limit"
)

// An explained check lists all rules of its tenant, which are up to 115 kB, and it counts for as
// little as any other one. So a batch has at most maxExplained of them, and a tenant a few such
// batches until their answers are sent. The bytes of long answers count, too (check_long.go).
const (
	maxExplained        = 10
	maxExplainedBatches = 16 // on an instance
	maxTenantExplained  = 4
)

var tooManyExplained = limit.Wrong("Omit it, or explain the other checks in further requests.", "may be true in at most %d checks of a batch", maxExplained)

// explainName is how nearly every client writes the name of the field.
var explainName = []byte(`"explain"`)

// boundExplained refuses a batch with too many explained checks, and takes its place if it needs
// one and has none.
func (q *httpQuestion) boundExplained(tenant limit.TenantID, reqs []check.Request) *Problem {
	explained := 0
	for i := range reqs {
		if !reqs[i].Explain {
			continue
		}
		if explained++; explained > maxExplained {
			return invalid(wrongField("/checks/"+itoa(int64(i))+"/explain", tooManyExplained))
		}
	}
	if explained == 0 || q.explains {
		return nil
	}
	return q.holdExplained(tenant)
}

// holdExplained takes a place for a batch with explained checks, until its answer is sent.
func (q *httpQuestion) holdExplained(tenant limit.TenantID) *Problem {
	request := requestFrom(q.r.Context())
	leave, ok := request.capacity.explained.Take(tenant)
	if !ok {
		request.capacity.refuse()
		return overloaded()
	}
	request.atEnd(leave)
	q.explains = true
	return nil
}

// maxExplainedRecord is the size of an explained answer, in bytes, from which on its record has no
// list of the rules that did not count: it can be many times the size of the rest, and records are
// kept in Redis for a minute.
const maxExplainedRecord = 8 << 10

// record returns the answer in sc for repeats.
func (s *server) record(q question, reqs []check.Request, decisions []check.Decision, sc *scratch) []byte {
	if len(sc.out) <= maxExplainedRecord || !slices.ContainsFunc(reqs, func(r check.Request) bool { return r.Explain }) {
		return sc.appendRecord(nil, decisions)
	}
	answer := slices.Clone(sc.out)
	all := make([]check.Decision, len(decisions))
	for i := range decisions {
		all[i] = decisions[i]
		decisions[i].Skipped, decisions[i].Explains = nil, nil
	}
	q.encode(s.style, decisions, sc)
	record := sc.appendRecord(nil, decisions)
	copy(decisions, all)
	sc.out = append(sc.out[:0], answer...)
	return record
}
