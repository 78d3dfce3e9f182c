package check

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
)

// QuotaResource is the resource under which the operator's own tenant counts the checks of
// all others: a rule of the platform tenant that matches it is every tenant's quota, its
// plans are the service's tiers, and its subjects are the tenants' slugs.
const QuotaResource = "checks"

// Quota bounds how many checks each tenant may ask, by the ordinary rules of the platform
// tenant. To ask the counter store for each check would double the cost of all, so an
// instance takes units ahead, about as many as it lately gave out in a twentieth of a second
// and at most a quarter of what remains, and gives those out from memory. Units are counted when they are taken, so the limit is
// never exceeded; those not given out within leaseFor are lost, so a tenant may be denied
// early by what its instances hold at that moment.
type Quota struct {
	checker  *Checker
	policies *Policies
	platform TenantID
	tenants  *xsync.Map[string, *tenantQuota]
}

const (
	leaseFor     = 100 * time.Millisecond
	leasesPerSec = 20 // of a busy tenant, by each instance
)

type tenantQuota struct {
	lease atomic.Pointer[lease]
	mu    sync.Mutex // held while taking units
}

// lease is units taken, or a denial: left is then 0 and retryAfterMS counts from taken.
type lease struct {
	left         atomic.Int64
	size         int64
	remaining    int64 // of the quota, when these were taken
	taken        time.Time
	until        time.Time
	denied       bool
	retryAfterMS int64 // NeverMS: no wait helps
}

// NewQuota returns the quotas that the platform tenant's rules make.
func NewQuota(checker *Checker, policies *Policies, platform TenantID) *Quota {
	return &Quota{checker: checker, policies: policies, platform: platform, tenants: xsync.NewMap[string, *tenantQuota]()}
}

// Admit takes n checks (1 or more) from the quota of the tenant whose policy this is. Where it
// does not admit them, retryAfterMS is how long to wait, or NeverMS. Without rules of the
// platform for QuotaResource, and while the platform's policy cannot be read, it admits all.
func (q *Quota) Admit(ctx context.Context, tenant *Policy, n int64) (retryAfterMS int64, ok bool) {
	if tenant.tenant == q.platform {
		return 0, true
	}
	slug := tenant.slug
	policy, err := q.policies.Get(ctx, q.platform)
	if err != nil || !policy.limits(QuotaResource) {
		return 0, true
	}
	t, loaded := q.tenants.Load(slug)
	if !loaded {
		t, _ = q.tenants.LoadOrCompute(slug, func() (*tenantQuota, bool) { return &tenantQuota{}, false })
	}
	if retryAfterMS, ok, answered := t.lease.Load().admit(q.checker.clock(), n); answered {
		return retryAfterMS, ok
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := q.checker.clock()
	last := t.lease.Load()
	if retryAfterMS, ok, answered := last.admit(now, n); answered {
		return retryAfterMS, ok
	}
	fresh := q.take(policy, slug, now, max(n, last.nextSize(now)))
	if fresh.denied && fresh.size > n {
		fresh = q.take(policy, slug, now, n)
	}
	if fresh.denied {
		t.lease.Store(fresh)
		return fresh.retryAfterMS, false
	}
	fresh.left.Add(-n)
	t.lease.Store(fresh)
	return 0, true
}

// take asks the platform's rules for size units.
func (q *Quota) take(policy *Policy, slug string, now time.Time, size int64) *lease {
	var room Room
	evaluations := room.grow(1)
	e := &evaluations[0]
	e.begin(q.checker, policy, &Request{Subject: slug, Resource: QuotaResource, Cost: size}, now)
	q.checker.count(evaluations, &room)
	l := &lease{size: size, taken: now, until: now.Add(leaseFor)}
	if e.decision.Allowed {
		l.left.Store(size)
		if d := e.decision.Deciding; d >= 0 {
			l.remaining = e.decision.Rules[d].Remaining
		}
		return l
	}
	l.denied, l.retryAfterMS = true, NeverMS
	if d := e.decision.Deciding; d >= 0 {
		l.retryAfterMS = e.decision.Rules[d].RetryAfterMS
	}
	if l.retryAfterMS != NeverMS {
		l.until = now.Add(min(leaseFor, time.Duration(l.retryAfterMS)*time.Millisecond))
	}
	return l
}

// admit answers from the lease, if it can.
func (l *lease) admit(now time.Time, n int64) (retryAfterMS int64, ok, answered bool) {
	if l == nil || !now.Before(l.until) {
		return 0, false, false
	}
	if !l.denied {
		ok = l.left.Add(-n) >= 0
		return 0, ok, ok
	}
	if n < l.size {
		return 0, false, false // fewer may fit
	}
	if l.retryAfterMS == NeverMS {
		return NeverMS, false, true
	}
	return max(1, l.retryAfterMS-now.Sub(l.taken).Milliseconds()), false, true
}

// nextSize is how much to take now: what the last lease gave out, as a rate, but at most a
// quarter of what remains for all instances.
func (l *lease) nextSize(now time.Time) int64 {
	if l == nil || l.denied {
		return 1
	}
	given := l.size - max(0, l.left.Load())
	elapsed := max(now.Sub(l.taken), time.Millisecond)
	wanted := int64(float64(given) * float64(time.Second) / leasesPerSec / float64(elapsed))
	return min(wanted, l.remaining/4)
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
