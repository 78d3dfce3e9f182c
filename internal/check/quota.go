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

// WorkResource is the resource under which the operator's tenant counts the work that checks of all
// other tenants are for Redis, in the units of engine.CounterWork. A check with 32 logs is 256
// units, one with a single small counter is 1. The quota applies while a rule of the platform
// tenant has exactly this resource, so that a rule for "*" does not begin to count another unit.
const WorkResource = "work"

// Quota limits the number of checks of each tenant by the ordinary rules of the platform tenant. A
// call to the counter store per check would double the cost of every check. These rules are
// therefore leased, whatever their consistency, if their algorithm allows it. The limit is never
// exceeded, and a tenant may be denied early because of units that other instances hold.
type Quota struct {
	keys      Keys
	engine    engine.Engine
	now       func() time.Time
	storeMS   func(at time.Time) int64
	policies  *Policies
	platform  limit.TenantID
	askFrom   atomic.Int64 // when a check may wait for the platform's policy again, in Unix ns; 0: always
	checks    quotaUnits
	work      quotaUnits
	scratches sync.Pool // *Scratch
}

// quotaUnits are the units of one resource, by the slug of the tenant.
type quotaUnits struct {
	resource string
	tenants  *xsync.Map[string, *atomic.Pointer[quotaHeld]]
}

func newQuotaUnits(resource string) quotaUnits {
	return quotaUnits{resource, xsync.NewMap[string, *atomic.Pointer[quotaHeld]]()}
}

// quotaHeld has the units of a tenant's quota that this instance holds, under the numbers of the
// last call to the store. As long as policy and subject are the same, it saves matching rules and
// computing keys.
type quotaHeld struct {
	policy  *Policy
	subject *subjectEntry
	held    engine.Held
	free    bool // no quota applies to the tenant, at any time
}

// NewQuota returns the quotas that the platform tenant's rules define. The engine of checker counts
// them.
func NewQuota(checker *Checker, policies *Policies, platform limit.TenantID) *Quota {
	return &Quota{
		keys: checker.keys, engine: checker.engine, now: checker.now, storeMS: checker.storeMS, policies: policies, platform: platform,
		checks: newQuotaUnits(QuotaResource), work: newQuotaUnits(WorkResource),
		scratches: sync.Pool{New: func() any { return new(Scratch) }},
	}
}

// KeptIn reports whether quotas of the other tenants are counted by the counters of this tenant. It
// must not run checks: they would be taken from these quotas. It may be called on nil.
func (q *Quota) KeptIn(tenant limit.TenantID) bool { return q != nil && q.platform == tenant }

// Admit takes n checks (1 or more) from the quota of the tenant with this policy. If they are not
// allowed, retryAfterMS is the wait, or NeverMS. If the platform has no rule for QuotaResource, or
// while the platform's policy cannot be read, Admit allows everything.
func (q *Quota) Admit(ctx context.Context, tenant *Policy, n int64) (retryAfterMS int64, ok bool) {
	if tenant.tenant == q.platform {
		return 0, true
	}
	policy := q.platformPolicy(ctx)
	if policy == nil || !policy.limits(QuotaResource) {
		return 0, true
	}
	return q.take(&q.checks, policy, tenant.slug, n)
}

// askPlatformEvery is how often one check waits for the platform's policy while it cannot be read.
const askPlatformEvery = 10 * time.Second

// platformPolicy returns the platform's policy, or nil while it cannot be read: an instance that
// was started without Postgres may not have it. Then only one check waits for it from time to time:
// if all did, each would wait until Postgres fails to answer.
func (q *Quota) platformPolicy(ctx context.Context) *Policy {
	if from := q.askFrom.Load(); from != 0 {
		if policy := q.policies.Loaded(q.platform); policy != nil {
			q.askFrom.Store(0)
			return policy
		}
		if now := q.now().UnixNano(); now < from || !q.askFrom.CompareAndSwap(from, now+int64(askPlatformEvery)) {
			return nil
		}
	}
	policy, err := q.policies.get(ctx, q.platform)
	if err != nil {
		q.askFrom.Store(q.now().Add(askPlatformEvery).UnixNano())
		return nil
	}
	return policy
}

// AdmitWork takes the work of checks from the tenant's quota of work, as Admit takes their number.
// The work is that of all matching rules, whether or not Redis has to be asked.
func (q *Quota) AdmitWork(ctx context.Context, tenant *Policy, reqs []Request) (retryAfterMS int64, ok bool) {
	return q.admitWork(ctx, tenant, reqs, 1)
}

// leaseRuns is how many times the counters of a lease are evaluated: it reads what remains, charges
// the units and, at the end, returns those that were not used. A denial reads twice.
const leaseRuns = 3

// AdmitLease takes the work of a lease, and of its return, as AdmitWork does for checks.
func (q *Quota) AdmitLease(ctx context.Context, tenant *Policy, req *Request) (retryAfterMS int64, ok bool) {
	return q.admitWork(ctx, tenant, []Request{*req}, leaseRuns)
}

// admitWork takes the work of so many evaluations of the checks.
func (q *Quota) admitWork(ctx context.Context, tenant *Policy, reqs []Request, runs int64) (retryAfterMS int64, ok bool) {
	if tenant.tenant == q.platform {
		return 0, true
	}
	policy := q.platformPolicy(ctx)
	if policy == nil || !policy.limitsExactly(WorkResource) {
		return 0, true
	}
	units, nowMS := int64(0), q.storeMS(q.now())
	for i := range reqs {
		units += tenant.work(&reqs[i], nowMS)
	}
	if units == 0 {
		return 0, true
	}
	return q.take(&q.work, policy, tenant.slug, runs*units)
}

// work returns the work of a check, by the numbers and the credits of its subject.
func (p *Policy) work(req *Request, nowMS int64) (units int64) {
	var buf [limit.MaxMatchingRules]int32
	matching := p.matching(buf[:0], req.Resource)
	if len(matching) == 0 {
		return 0
	}
	subject, _ := p.subjects.Load(req.Subject)
	plan, _ := p.plan(req.Plan, subject)
	for _, i := range matching {
		r := &p.rules[i]
		if num := p.number(i, plan, subject, nowMS); !num.unlimited {
			units += engine.CounterWork(&num.numbers, left(subject.creditsFor(r), nowMS))
		}
	}
	return units
}

func (q *Quota) take(units *quotaUnits, policy *Policy, slug string, n int64) (retryAfterMS int64, ok bool) {
	last, loaded := units.tenants.Load(slug)
	if !loaded {
		last, _ = units.tenants.LoadOrCompute(slug, func() (*atomic.Pointer[quotaHeld], bool) { return new(atomic.Pointer[quotaHeld]), false })
	}
	if q.grant(last.Load(), policy, slug, n) {
		return 0, true
	}
	return q.ask(units.resource, last, policy, slug, n)
}

// grant reports whether n units were granted from the units held.
func (q *Quota) grant(last *quotaHeld, policy *Policy, slug string, n int64) bool {
	if last == nil || last.policy != policy {
		return false
	}
	if subject, _ := policy.subjects.Load(slug); subject != last.subject {
		return false
	}
	return last.free || last.held.Grant(q.now(), n)
}

// ask decides a check of the platform tenant, with all its rules leased.
func (q *Quota) ask(resource string, last *atomic.Pointer[quotaHeld], policy *Policy, slug string, n int64) (retryAfterMS int64, ok bool) {
	scratch := q.scratches.Get().(*Scratch)
	defer q.scratches.Put(scratch)
	evaluations := scratch.grow(1)
	e := &evaluations[0]
	req := Request{Subject: slug, Resource: resource, Cost: n}
	now := q.now()
	e.resolve(q.keys, policy, &req, now, q.storeMS(now))
	e.call.Leased, e.call.Space = true, engine.QuotaSpace
	for i := range e.call.Counters {
		e.call.Leased = e.call.Leased && e.call.Counters[i].Numbers.Leasable() && e.call.Counters[i].Credits == nil
	}
	scratch.evaluate(context.Background(), q.engine, evaluations)
	if held, ok := e.call.Held(); ok && len(e.counted) > 0 {
		// Store the subject whose numbers were used, not the current one.
		if kept := last.Load(); kept == nil || kept.held != held || kept.policy != policy || kept.subject != e.subject {
			last.Store(&quotaHeld{policy: policy, subject: e.subject, held: held})
		}
	}
	if len(e.counted) == 0 && (e.subject == nil || e.subject.state == Active && len(e.subject.overrides) == 0) {
		// Overrides begin and end; nothing else of a policy depends on the time.
		last.Store(&quotaHeld{policy: policy, subject: e.subject, free: true})
		return 0, true
	}
	e.conclude()
	d := &e.decision
	switch {
	case d.Allowed:
		return 0, true
	case policy.failsOpen(e.subject) && d.Code != SubjectBlocked:
		return 0, true
	case d.Deciding < 0:
		return limit.NeverMS, false
	}
	return d.Rules[d.Deciding].RetryAfterMS, false
}

func (p *Policy) failsOpen(subject *subjectEntry) bool {
	plan, _ := p.plan("", subject)
	return plan != nil && plan.failOpen
}

// FailsOpen reports whether the checks of the tenant with this slug pass when a quota is used up,
// by the policy of the platform tenant.
func (p *Policy) FailsOpen(slug string) bool {
	subject, _ := p.subjects.Load(slug)
	return p.failsOpen(subject)
}

// limits reports whether a rule that is not off matches the resource.
func (p *Policy) limits(resource string) bool {
	var buf [limit.MaxMatchingRules]int32
	return len(p.matching(buf[:0], resource)) > 0
}

// limitsExactly reports whether a rule that is not off has exactly this resource.
func (p *Policy) limitsExactly(resource string) bool {
	return len(p.exact[resource]) > 0
}

// QuotaUse is what a tenant has used of a quota in the current window.
type QuotaUse struct {
	Rule      *limit.Rule
	Used      int64
	Limit     int64
	WindowEnd time.Time // to the millisecond, by the clock of the counters
	// Length of the window, and the time since its start.
	Length, Elapsed time.Duration
	FailOpen        bool // the checks of the tenant pass when the quota is used up
}

// RunsOut returns when the quota runs out if the tenant continues as since the start of the
// window, and false if it does not run out in this window.
func (u *QuotaUse) RunsOut() (time.Time, bool) {
	now := u.WindowEnd.Add(u.Elapsed - u.Length)
	switch {
	case u.Used >= u.Limit:
		return now, true
	case u.Used <= 0 || u.Elapsed <= 0:
		return time.Time{}, false
	}
	left := float64(u.Elapsed) * (float64(u.Limit-u.Used) / float64(u.Used))
	if left >= float64(u.Length-u.Elapsed) {
		return time.Time{}, false
	}
	return now.Add(time.Duration(left)), true
}

// shortestNoted is the shortest window of a quota that people watch.
const shortestNoted = time.Hour

// Quotas returns what the tenant with this slug has used of its quotas, by the policy of the
// platform tenant: of enforced rules with fixed windows of an hour or more, in the order of their
// slugs. While the counter store is unavailable it returns none. Units that instances hold as
// leases count as used.
func (c *Checker) Quotas(ctx context.Context, platform *Policy, slug string) (out []QuotaUse) {
	state := c.Inspect(ctx, platform, Request{Subject: slug, Resource: QuotaResource})
	if state.Degraded {
		return nil
	}
	// With another clock, usage at the end of a window would be that of the next one.
	now := time.UnixMilli(state.NowMS)
	subject, _ := platform.subjects.Load(slug)
	for i := range state.Rules {
		r := &state.Rules[i]
		length := time.Duration(r.WindowMS) * time.Millisecond
		if r.Rule.Algorithm != limit.FixedWindow || r.Mode != limit.Enforce || r.Unlimited || r.Uncounted || length < shortestNoted ||
			!limit.Matches(r.Rule.Resource, QuotaResource) {
			continue
		}
		end := windowEnd(platform, r.Rule.Slug, subject, now)
		out = append(out, QuotaUse{
			Rule: r.Rule, Used: r.Limit - r.Remaining + r.Overage, Limit: r.Limit, WindowEnd: end, Length: length, Elapsed: length - end.Sub(now),
			FailOpen: platform.failsOpen(subject),
		})
	}
	return out
}

// windowEnd returns when the fixed window of a rule ends that an instant is in.
func windowEnd(p *Policy, rule string, subject *subjectEntry, now time.Time) time.Time {
	nowMS := now.UnixMilli()
	for i := range p.rules {
		r := &p.rules[i]
		switch {
		case r.rule.Slug != rule:
		case r.cycle == nil:
			windowMS := r.number.numbers.WindowMS
			return time.UnixMilli(nowMS - nowMS%windowMS + windowMS).UTC()
		default:
			return time.UnixMilli(r.cycle.Bounds(subject.anchor(), nowMS).At(nowMS).EndMS).UTC()
		}
	}
	return now
}
