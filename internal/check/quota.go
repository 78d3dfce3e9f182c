package check

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/engine"
	"weir/internal/limit"
)

// QuotaResource is the resource under which the operator's tenant counts the checks of all other
// tenants. A rule of the platform tenant that matches it is every tenant's quota. The plans of the
// platform tenant are the tiers of the service, and its subjects are the tenants' slugs.
const QuotaResource = "checks"

// Quota limits the number of checks of each tenant by the ordinary rules of the platform tenant. A
// call to the counter store per check would double the cost of every check. These rules are
// therefore leased, whatever their consistency, if their algorithm allows it. The limit is never
// exceeded, and a tenant may be denied early because of units that other instances hold.
type Quota struct {
	keys      Keys
	engine    engine.Engine
	now       func() time.Time
	policies  *Policies
	platform  limit.TenantID
	tenants   *xsync.Map[string, *atomic.Pointer[quotaHeld]]
	scratches sync.Pool // *Scratch
}

// quotaHeld has the units of a tenant's quota that this instance holds, under the numbers of the
// last call to the store. As long as policy and subject are the same, it saves matching rules and
// computing keys.
type quotaHeld struct {
	policy  *Policy
	subject *subjectEntry
	held    engine.Held
}

// NewQuota returns the quotas that the platform tenant's rules define. The engine of checker counts
// them.
func NewQuota(checker *Checker, policies *Policies, platform limit.TenantID) *Quota {
	return &Quota{
		keys: checker.keys, engine: checker.engine, now: checker.now, policies: policies, platform: platform,
		tenants:   xsync.NewMap[string, *atomic.Pointer[quotaHeld]](),
		scratches: sync.Pool{New: func() any { return new(Scratch) }},
	}
}

// Admit takes n checks (1 or more) from the quota of the tenant with this policy. If they are not
// allowed, retryAfterMS is the wait, or NeverMS. If the platform has no rule for QuotaResource, or
// while the platform's policy cannot be read, Admit allows everything.
func (q *Quota) Admit(ctx context.Context, tenant *Policy, n int64) (retryAfterMS int64, ok bool) {
	if tenant.tenant == q.platform {
		return 0, true
	}
	slug := tenant.slug
	policy, err := q.policies.get(ctx, q.platform)
	if err != nil || !policy.limits(QuotaResource) {
		return 0, true
	}
	last, loaded := q.tenants.Load(slug)
	if !loaded {
		last, _ = q.tenants.LoadOrCompute(slug, func() (*atomic.Pointer[quotaHeld], bool) { return new(atomic.Pointer[quotaHeld]), false })
	}
	if q.grant(last.Load(), policy, slug, n) {
		return 0, true
	}
	return q.ask(last, policy, slug, n)
}

// grant reports whether n checks were granted from the units held.
func (q *Quota) grant(last *quotaHeld, policy *Policy, slug string, n int64) bool {
	if last == nil || last.policy != policy {
		return false
	}
	if subject, _ := policy.subjects.Load(slug); subject != last.subject {
		return false
	}
	return last.held.Grant(q.now(), n)
}

// ask decides a check of the platform tenant, with all its rules leased.
func (q *Quota) ask(last *atomic.Pointer[quotaHeld], policy *Policy, slug string, n int64) (retryAfterMS int64, ok bool) {
	scratch := q.scratches.Get().(*Scratch)
	defer q.scratches.Put(scratch)
	evaluations := scratch.grow(1)
	e := &evaluations[0]
	req := Request{Subject: slug, Resource: QuotaResource, Cost: n}
	e.resolve(q.keys, policy, &req, q.now())
	e.call.Leased = true
	for i := range e.call.Counters {
		e.call.Leased = e.call.Leased && e.call.Counters[i].Numbers.Leasable()
	}
	scratch.evaluate(context.Background(), q.engine, evaluations)
	if held, ok := e.call.Held(); ok && len(e.counted) > 0 {
		// Store the subject whose numbers were used, not the current one.
		if kept := last.Load(); kept == nil || kept.held != held || kept.policy != policy || kept.subject != e.subject {
			last.Store(&quotaHeld{policy: policy, subject: e.subject, held: held})
		}
	}
	e.conclude()
	d := &e.decision
	switch {
	case d.Allowed:
		return 0, true
	case d.Deciding < 0:
		return limit.NeverMS, false
	}
	return d.Rules[d.Deciding].RetryAfterMS, false
}

// limits reports whether a rule that is not off matches the resource.
func (p *Policy) limits(resource string) bool {
	var buf [limit.MaxMatchingRules]int32
	for _, i := range p.matching(buf[:0], resource) {
		if p.rules[i].rule.Mode != limit.Off {
			return true
		}
	}
	return false
}
