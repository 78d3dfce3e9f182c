package api

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

// question is one request of a hot endpoint, as read by its transport: a check or a batch over
// net/http (check.go), a check on the lane (lane_answer.go), a gateway's subrequest on either
// (authorize.go), a call of Envoy (envoy.go), or a client's lease (leases.go). decide calls its
// methods in this order.
type question interface {
	// credentials returns the API key of the request.
	credentials() (key string, p *Problem)
	// caller returns the address of the client of Weir: for a subrequest that is the gateway. The
	// zero Addr means that it is unknown.
	caller() netip.Addr
	// read reads the rest of the request, such as the body. After it, nothing waits for the client.
	read(sc *scratch) *Problem
	// turns returns the turns in which decode runs, because it can take long (decode_turns.go).
	// nil: it needs none.
	turns(bodies *bodyTurns, sc *scratch) *places.Turns[limit.TenantID]
	// decode returns the checks of the request. They share no memory with it. On failure the
	// problem lists every invalid field. decode may also store a denial in sc.refused.
	decode(policy *check.Policy, sc *scratch) ([]check.Request, *Problem)
	// refuseResource answers a key that may not check the resource of a check: with a problem, or
	// with a denial in sc.refused if the gateway's customer can have chosen the resource.
	refuseResource(sc *scratch, resource string) *Problem
	// together reports whether the checks are decided as one: all of them are charged, or none.
	together() bool
	// planField returns the pointer to the field with the plan of check i.
	planField(i int) string
	// encode stores the body and the headers of the answer in sc.
	encode(style HeaderStyle, decisions []check.Decision, sc *scratch)
}

// ownQuestion is a question that is no check: it replaces the last steps of decide.
type ownQuestion interface {
	question
	// answer stores the answer in sc, as encode does, and returns the decision in it.
	answer(ctx context.Context, s *server, policy *check.Policy, reqs []check.Request, sc *scratch) ([]check.Decision, *Problem)
}

// decide is the sequence of a decision for all hot endpoints and transports, from the API key to
// the encoded answer in sc. A problem means that nothing was decided and nothing was counted. The
// decisions are valid until sc is used again.
//
// An example: a check of {"subject":"user_42"} with a key of the tenant acme. The key's hash
// identifies an actor of acme (1) with the scope check (2). The body arrives (3). acme's policy is
// a snapshot in memory (4). The body becomes a check.Request for the resource "default" with cost 1
// and a plan that exists (5). acme's own quota grants one check from its lease (6). Redis evaluates
// the matching rules (7). The decision becomes JSON and rate-limit headers (8).
func (s *server) decide(ctx context.Context, q question, sc *scratch) ([]check.Decision, *Problem) {
	// 1. Authenticate.
	key, p := q.credentials()
	if p != nil {
		return nil, p
	}
	actor, p := authenticateKey(ctx, s.Authenticator, key)
	if p != nil {
		return nil, p
	}
	if actor.BoundToAddresses() && !actor.MayConnect(q.caller()) {
		return nil, wrongAddress()
	}
	// 2. Scope. The counters of the operator's tenant are the quotas of the other tenants, so a
	// check in it would use them up.
	if !actor.Has(tenants.ScopeCheck) {
		return nil, lackingScope(actor, tenants.ScopeCheck)
	}
	if actor.Operator() || s.Quota.KeptIn(actor.TenantID()) {
		return nil, newProblem(http.StatusForbidden, codeInsufficientScope,
			"Keys of the operator's tenant cannot run checks. Use a key of the tenant whose customers you want to limit.")
	}
	// 3. Read. Only authenticated clients may take time for a body, and each tenant has a limit.
	sc.tenant = actor.TenantID()
	sc.share = s.capacity.of(sc.tenant)
	if p := q.read(sc); p != nil {
		return nil, p
	}
	if !s.capacity.serve(sc.share, actor.TenantID()) {
		sc.pause = s.capacity.refuse()
		return nil, overloaded()
	}
	defer sc.share.done()
	// 4. Policy. It is loaded after the last wait, so that a change which was made before the
	// request was complete applies to it.
	policy, err := s.Policies.Get(ctx, actor.TenantID())
	if err != nil {
		return nil, policyUnavailable(err)
	}
	// 5. Decode.
	reqs, p := s.decodeInTurn(ctx, q, policy, sc)
	if p != nil {
		return nil, p
	}
	if actor.BoundToResources() && len(sc.refused) == 0 {
		for i := range reqs {
			if !actor.MayCheck(reqs[i].Resource) {
				if p := q.refuseResource(sc, reqs[i].Resource); p != nil {
					return nil, p
				}
				break
			}
		}
	}
	if len(sc.refused) > 0 {
		q.encode(s.style, sc.refused, sc)
		return sc.refused, nil
	}
	for i := range reqs {
		if !policy.HasPlan(reqs[i].Plan) {
			return nil, unknownPlan(wrongField(q.planField(i), badPlan))
		}
	}
	if own, ok := q.(ownQuestion); ok {
		return own.answer(ctx, s, policy, reqs, sc)
	}
	if sc.idempotencyKey != "" {
		return s.countOnce(ctx, policy, q, reqs, sc)
	}
	if p := s.admit(ctx, policy, reqs); p != nil {
		return nil, p
	}
	return s.count(ctx, policy, q, reqs, sc)
}

// admit is step 6 of decide: it takes the checks and their work from the tenant's own quota.
func (s *server) admit(ctx context.Context, policy *check.Policy, reqs []check.Request) *Problem {
	if s.Quota == nil {
		return nil
	}
	if wait, ok := s.Quota.AdmitWork(ctx, policy, reqs); !ok {
		return overWork(wait)
	}
	if wait, ok := s.Quota.Admit(ctx, policy, int64(len(reqs))); !ok {
		return overQuota(wait)
	}
	return nil
}

// count runs the last steps of decide, which count.
func (s *server) count(ctx context.Context, policy *check.Policy, q question, reqs []check.Request, sc *scratch) ([]check.Decision, *Problem) {
	if turns := s.countingTurns(policy, q, reqs, sc); turns != nil {
		return s.countInTurns(ctx, turns, policy, q, reqs, sc)
	}
	places.Wait(ctx) // for Redis
	// 7. Check.
	decisions, err := s.Checker.CheckIn(ctx, policy, reqs, &sc.check)
	if err != nil {
		return nil, checkFailed(q, err)
	}
	// 8. Encode.
	q.encode(s.style, decisions, sc)
	return decisions, nil
}

const notFromThisAddress = "The API key does not work from this address."

// wrongAddress is the answer to a key that does not work from the address of the client.
func wrongAddress() *Problem {
	return newProblem(http.StatusForbidden, codeAddressNotAllowed, notFromThisAddress)
}

// wrongResource is the answer to a key that may not check a resource.
func wrongResource(resource string) *Problem {
	return newProblem(http.StatusForbidden, codeResourceNotAllowed, "The API key may not check the resource "+strconv.Quote(resource)+".")
}

// checkFailed converts an error of the checker to a problem.
func checkFailed(q question, err error) *Problem {
	var unknown *check.UnknownPlanError
	if errors.As(err, &unknown) {
		return unknownPlan(wrongField(q.planField(unknown.Index), badPlan))
	}
	return problemOf(err)
}

// policyUnavailable is the answer while a tenant's rules cannot be loaded. The tenant of a valid
// key exists. If the source does not know it, the source is behind the key, or the key behind the
// source.
func policyUnavailable(err error) *Problem {
	p := newProblem(http.StatusServiceUnavailable, codePolicyUnavailable, "The tenant's rules are not loaded, and cannot be loaded now.").withRetryAfter(1)
	p.cause = err
	return p
}

// overQuota is the answer to a tenant that has used up its own quota. Nothing was decided about the
// subject.
func overQuota(retryAfterMS int64) *Problem {
	return exceededQuota(retryAfterMS, "The tenant has used up its quota of checks. Wait for Retry-After, or ask the operator of the service for a higher tier.")
}

// overWork is the answer to a tenant whose checks are too much work.
func overWork(retryAfterMS int64) *Problem {
	return exceededQuota(retryAfterMS, "The tenant has used up its quota of work for the counter store. Use fewer rules for a resource, or algorithms other than sliding_window_log and sliding_window_buckets. Or wait for Retry-After, or ask the operator of the service for a higher tier.")
}

func exceededQuota(retryAfterMS int64, detail string) *Problem {
	p := newProblem(http.StatusTooManyRequests, codeTenantQuotaExceeded, detail)
	if retryAfterMS == limit.NeverMS {
		return p
	}
	return p.withRetryAfter(int(max(1, ceilSeconds(retryAfterMS))))
}
