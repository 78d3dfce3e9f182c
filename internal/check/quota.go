package check

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"
)

// QuotaResource is the resource under which the operator's own tenant counts the checks of
// all others: a rule of the platform tenant that matches it is every tenant's quota, its
// plans are the service's tiers, and its subjects are the tenants' slugs.
const QuotaResource = "checks"

// Quota bounds how many checks each tenant may ask, by the ordinary rules of the platform
// tenant. To ask the counter store for each check would double the cost of all, so these rules
// are leased, whatever they say, where their algorithm lets them be: the limit is never exceeded,
// and a tenant may be denied early by what its instances hold at that moment.
type Quota struct {
	checker  *Checker
	policies *Policies
	platform TenantID
	tenants  *xsync.Map[string, *atomic.Pointer[quotaSet]]
	rooms    sync.Pool // *Room
}

// quotaSet is what a tenant's checks were last counted by: the way past matching and keys.
type quotaSet struct {
	policy  *Policy
	subject *subjectEntry
	set     *leaseSet
}

// NewQuota returns the quotas that the platform tenant's rules make.
func NewQuota(checker *Checker, policies *Policies, platform TenantID) *Quota {
	return &Quota{
		checker: checker, policies: policies, platform: platform,
		tenants: xsync.NewMap[string, *atomic.Pointer[quotaSet]](),
		rooms:   sync.Pool{New: func() any { return new(Room) }},
	}
}

// Admit takes n checks (1 or more) from the quota of the tenant whose policy this is. Where it
// does not admit them, retryAfterMS is how long to wait, or NeverMS. Without rules of the
// platform for QuotaResource, and while the platform's policy cannot be read, it admits all.
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
		last, _ = q.tenants.LoadOrCompute(slug, func() (*atomic.Pointer[quotaSet], bool) { return new(atomic.Pointer[quotaSet]), false })
	}
	if q.given(last.Load(), policy, slug, n) {
		return 0, true
	}
	return q.ask(last, policy, slug, n)
}

// given reports whether n checks were given out of what is held, with plenty left.
func (q *Quota) given(last *quotaSet, policy *Policy, slug string, n int64) bool {
	if last == nil || last.policy != policy {
		return false
	}
	if subject, _ := policy.subjects.Load(slug); subject != last.subject {
		return false
	}
	held, now := last.set.lease.Load(), q.checker.clock()
	if held == nil || held.low(now) {
		return false
	}
	_, ok := held.give(now, n)
	return ok
}

// ask decides as a check of the platform's would be, with all its rules leased.
func (q *Quota) ask(last *atomic.Pointer[quotaSet], policy *Policy, slug string, n int64) (retryAfterMS int64, ok bool) {
	room := q.rooms.Get().(*Room)
	defer q.rooms.Put(room)
	evaluations := room.grow(1)
	e := &evaluations[0]
	req := Request{Subject: slug, Resource: QuotaResource, Cost: n}
	e.begin(q.checker, policy, &req, q.checker.clock())
	e.leased = true
	for i := range e.call.Counters {
		e.leased = e.leased && e.call.Counters[i].Numbers.Leasable()
	}
	q.checker.count(evaluations, room)
	if e.set != nil {
		subject, _ := policy.subjects.Load(slug)
		if kept := last.Load(); kept == nil || kept.set != e.set || kept.policy != policy || kept.subject != subject {
			last.Store(&quotaSet{policy: policy, subject: subject, set: e.set})
		}
	}
	d := &e.decision
	switch {
	case d.Allowed:
		return 0, true
	case d.Deciding < 0:
		return NeverMS, false
	}
	return d.Rules[d.Deciding].RetryAfterMS, false
}

// limits reports whether a rule that is not off matches the resource.
func (p *Policy) limits(resource string) bool {
	var room [MaxMatchingRules]int32
	for _, i := range p.matching(room[:0], resource) {
		if p.rules[i].rule.Mode != Off {
			return true
		}
	}
	return false
}
