package api

import (
	"context"
	"errors"

	"weir/internal/check"
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

// largeCheck is the length of the body of a check, of a head for a route, or of a message of Envoy,
// in bytes. A check with 16 attributes of a usual length has less than 1 KiB.
const largeCheck = 4 << 10

// decodeInTurn decodes a request, in a turn of its tenant if it is large.
func (s *server) decodeInTurn(ctx context.Context, q question, policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	if !q.large(sc) {
		return q.decode(policy, sc)
	}
	ctx, cancel := context.WithTimeout(ctx, s.capacity.bodies.wait)
	defer cancel()
	leave, p := s.capacity.turn(ctx, s.capacity.bodies.small, sc.tenant)
	if p != nil {
		return nil, p
	}
	defer leave()
	return q.decode(policy, sc)
}

const (
	// turnAnswer is the length of an answer, by the estimate, from which on its checks are decided
	// in turns: that of 100 checks with five rules each, which take a third of a millisecond.
	turnAnswer = 128 << 10
	// fewExplanations is how many rules may be listed without a turn, in a tenth of a millisecond.
	fewExplanations = 100
)

// explanations returns how many rules the explained ones of the checks list.
func explanations(policy *check.Policy, reqs []check.Request) (n int) {
	for i := range reqs {
		if reqs[i].Explain {
			n += policy.Rules()
		}
	}
	return n
}

// countInTurns is count for one question alone, whose checks are much work. After the wait for a
// turn, it continues without one: the checks may be counted already.
func (s *server) countInTurns(ctx context.Context, policy *check.Policy, q question, reqs []check.Request, sc *scratch) ([]check.Decision, *Problem) {
	if errors.Is(ctx.Err(), context.Canceled) { // the client has disconnected, and nothing is counted yet
		return nil, overloaded()
	}
	turn := func() (end func()) { return s.capacity.bodies.small.TryWithin(ctx, sc.tenant, s.capacity.bodies.wait) }
	decisions, err := s.Checker.CheckInTurns(ctx, policy, reqs, &sc.check, turn)
	if err != nil {
		return nil, checkFailed(q, err)
	}
	defer turn()()
	q.encode(s.style, decisions, sc)
	return decisions, nil
}
