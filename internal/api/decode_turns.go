package api

import (
	"context"
	"errors"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
)

// A check is decoded in some microseconds, before any quota: only the decoded check says how much
// it takes. A batch of 256 KiB, or a head of 16 KiB that a route reads for 24 sources and compares
// with 100 templates in several ways, takes up to some milliseconds. A tenant that sends many of
// these at once would keep all processors from the checks of others. So batches that are longer
// than any check, and checks, messages and what a route reads of more than largeCheck, are decoded
// on at most half of the processors, in turn of tenants, as the bodies of the admin API are.
//
// A short batch can be much work, too: 100 checks that 32 rules match, or ten explained ones of a
// tenant with 1000 rules, take some milliseconds. These are decided in turns as well. They have
// none while Redis answers.
//
// Other batches take up to a millisecond, and 250 of them that arrive together a hundred. They have
// the turns of batches: as many at once as there are processors, and a check waits for no more.
// What the checks of a batch take is not estimated, because it depends on too much: on rules that
// match, what they count by, and which of that is missing.

const (
	// largeCheck is the length of the body of a check, of a head for a route, or of a message of
	// Envoy, in bytes. A check with 16 attributes of a usual length has less than 1 KiB.
	largeCheck = 4 << 10
	// smallBatch is the length of the body of a batch that is decoded in some ten microseconds.
	smallBatch = 1 << 10
	// turnAnswer is the length of an answer, by the estimate, from which on its checks are decided
	// on at most half of the processors: that of 100 checks with five rules each.
	turnAnswer = 128 << 10
	// fewExplanations is how many rules may be listed in a tenth of a millisecond.
	fewExplanations = 100
)

// turnsFrom returns turns for what is larger than most bytes, and otherwise none.
func turnsFrom(turns *places.Turns[limit.TenantID], size, most int) *places.Turns[limit.TenantID] {
	if size <= most {
		return nil
	}
	return turns
}

// decodeInTurn decodes a request, in a turn of its tenant if it is large.
func (s *server) decodeInTurn(ctx context.Context, q question, policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	turns := q.turns(&s.capacity.bodies, sc)
	if turns == nil {
		return q.decode(policy, sc)
	}
	leave, p := s.capacity.turnWithin(ctx, turns, sc.tenant, s.capacity.bodies.wait)
	if p != nil {
		return nil, p
	}
	defer leave()
	return q.decode(policy, sc)
}

// explanations returns how many rules the explained ones of the checks list.
func explanations(policy *check.Policy, reqs []check.Request) (n int) {
	for i := range reqs {
		if reqs[i].Explain {
			n += policy.Rules()
		}
	}
	return n
}

// countingTurns returns the turns in which the checks of a question are decided. nil: they need
// none.
func (s *server) countingTurns(policy *check.Policy, q question, reqs []check.Request, sc *scratch) *places.Turns[limit.TenantID] {
	switch {
	case !q.together() && (sc.http.held > turnAnswer || explanations(policy, reqs) > fewExplanations):
		return s.capacity.bodies.small
	case len(reqs) > 1:
		return s.capacity.bodies.batches
	}
	return nil
}

// countInTurns is count in turns. After the wait for one, it continues without: the checks may be
// counted already.
func (s *server) countInTurns(
	ctx context.Context, turns *places.Turns[limit.TenantID], policy *check.Policy, q question, reqs []check.Request, sc *scratch,
) ([]check.Decision, *Problem) {
	if errors.Is(ctx.Err(), context.Canceled) { // the client has disconnected, and nothing is counted yet
		return nil, overloaded()
	}
	turn := func() (end func()) { return turns.TryWithin(sc.tenant, s.capacity.bodies.wait) }
	decide := s.Checker.CheckInTurns
	if q.together() {
		decide = s.Checker.CheckTogetherInTurns
	}
	decisions, err := decide(ctx, policy, reqs, &sc.check, turn)
	if err != nil {
		return nil, checkFailed(q, err)
	}
	defer turn()()
	q.encode(s.style, decisions, sc)
	return decisions, nil
}
