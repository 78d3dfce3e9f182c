package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// tiered is a platform with the tiers small (10 an hour), open (the same, but it admits what is
// over) and a default that limits nothing.
func tiered(t *testing.T) (r *rig, q *Quota, platform *Policy, tenant func(slug string) *Policy) {
	t.Helper()
	quota := minute("checks", 1_000_000)
	quota.Resource, quota.Algorithm = QuotaResource, limit.FixedWindow
	quota.Window = limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	ten := map[string]limit.Limit{"checks": {Limit: 10}}
	data := PolicyData{Rules: []limit.Rule{quota}, Plans: []PlanData{
		{Slug: "custom", Default: true, Limits: map[string]limit.Limit{"checks": {Unlimited: true}}},
		{Slug: "small", Limits: ten}, {Slug: "open", Limits: ten, FailOpen: true},
	}}
	r = newRig(t, data)
	source := &fakeSource{data: map[limit.TenantID]PolicyData{r.policy.tenant: data}}
	policies := NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics)
	platform, err := policies.Get(t.Context(), r.policy.tenant)
	require.NoError(t, err)
	platform.AddSubject(SubjectData{Subject: "small", Plan: "small"})
	platform.AddSubject(SubjectData{Subject: "open", Plan: "open"})
	platform.AddSubject(SubjectData{Subject: "blocked", Plan: "open", State: Blocked})
	return r, NewQuota(r.checker, policies, r.policy.tenant), platform, func(slug string) *Policy {
		policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: slug})
		require.NoError(t, err)
		return policy
	}
}

// A quota applies only to tenants that were given a tier; the others cost no call. A tier that
// fails open admits what is over its quota, but not a tenant that is blocked.
func TestQuotaOfTiers(t *testing.T) {
	r, q, platform, tenant := tiered(t)
	ctx := context.Background()
	admitted := func(slug string, checks int) (n int) {
		policy := tenant(slug)
		for range checks {
			if _, ok := q.Admit(ctx, policy, 1); ok {
				n++
			}
		}
		return n
	}
	before := r.store.calls.Load()
	require.Equal(t, 1000, admitted("nobody", 1000))
	require.Equal(t, before, r.store.calls.Load())
	require.Equal(t, 10, admitted("small", 20))
	require.Equal(t, 20, admitted("open", 20))
	require.Zero(t, admitted("blocked", 5))

	// A tier takes effect at once, and so does its end.
	platform.AddSubject(SubjectData{Subject: "nobody", Plan: "small"})
	require.Equal(t, 10, admitted("nobody", 20))
	platform.AddSubject(SubjectData{Subject: "nobody", Deleted: true})
	require.Equal(t, 20, admitted("nobody", 20))

	// An override that begins later is not overlooked because nothing applies now.
	platform.AddSubject(SubjectData{Subject: "later", Overrides: []OverrideData{
		{Rule: "checks", Limit: limit.Limit{Limit: 5}, StartsAt: time.UnixMilli(r.now.Load() + 1000)},
	}})
	require.Equal(t, 20, admitted("later", 20))
	r.move(2 * time.Second)
	require.Equal(t, 5, admitted("later", 20))
}

// The engine is told of quotas, because tenants must not share the counters that stand in for them
// during an outage.
func TestTheEngineKnowsQuotas(t *testing.T) {
	_, q, _, tenant := tiered(t)
	watch := &quotaWatch{Engine: q.engine}
	q.engine = watch
	_, ok := q.Admit(t.Context(), tenant("small"), 1)
	require.True(t, ok)
	require.Equal(t, []bool{true}, watch.quota)
}

// quotaWatch notes which calls are for quotas.
type quotaWatch struct {
	engine.Engine
	quota []bool
}

func (w *quotaWatch) Evaluate(ctx context.Context, calls ...*engine.Call) {
	for _, c := range calls {
		w.quota = append(w.quota, c.Space == engine.QuotaSpace)
	}
	w.Engine.Evaluate(ctx, calls...)
}

// A quota of work counts the rules of a check by their algorithms. A tenant with 32 logs uses its
// quota up with two checks, although it may send many.
func TestQuotaOfWork(t *testing.T) {
	quota := minute("work", 600)
	quota.Resource, quota.Algorithm = WorkResource, limit.FixedWindow
	all := minute("all", 600)
	all.Resource, all.Algorithm = "*", limit.FixedWindow
	log := func(slug string) limit.Rule {
		r := minute(slug, 10_000)
		r.Algorithm = limit.SlidingWindowLog
		return r
	}
	var logs []limit.Rule
	for i := range limit.MaxMatchingRules {
		logs = append(logs, log(fmt.Sprintf("log-%d", i)))
	}
	off := log("off")
	off.Mode = limit.Off
	platformOf := func(rules ...limit.Rule) *Quota {
		r := newRig(t, PolicyData{Rules: rules})
		source := &fakeSource{data: map[limit.TenantID]PolicyData{r.policy.tenant: {Rules: rules}}}
		policies := NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics)
		return NewQuota(r.checker, policies, r.policy.tenant)
	}
	admitted := func(q *Quota, slug string, checks int, rules ...limit.Rule) (n int) {
		policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: slug, Rules: rules})
		require.NoError(t, err)
		for range checks {
			if _, ok := q.AdmitWork(t.Context(), policy, []Request{{Subject: "ada", Resource: "default"}}); ok {
				n++
			}
		}
		return n
	}
	q := platformOf(quota)
	require.Equal(t, 2, admitted(q, "logs", 10, logs...), "256 units each")
	require.Equal(t, 600, admitted(q, "plain", 700, minute("plain", 10), off))
	require.Equal(t, 1000, admitted(q, "none", 1000), "a check without rules is no work")
	require.Equal(t, 1000, admitted(platformOf(all), "plain", 1000, minute("plain", 10)), "a rule for * counts checks, not work")
}

// The quota of work counts a check as the pipelines to Redis do: with the numbers that apply to the
// subject, and with the credits that the script searches for it.
func TestQuotaOfWorkIsThatOfTheCall(t *testing.T) {
	var rules []limit.Rule
	slug := func(a limit.Algorithm) string { return strings.ReplaceAll(a.String(), "_", "-") }
	for _, a := range limit.Algorithms {
		r := minute(slug(a), 10_000)
		r.Algorithm, r.Resource = a, "*"
		if a == limit.SlidingWindowBuckets {
			r.Precision = limit.Duration{Text: "1s", MS: 1000}
		}
		if rules = append(rules, r); a == limit.FixedWindow {
			r.Slug, r.Penalty = "penalty", limit.Duration{Text: "1s", MS: 1000}
			rules = append(rules, r)
			r.Slug, r.Penalty, r.Mode = "shadow", limit.Duration{}, limit.Shadow
			rules = append(rules, r)
		}
	}
	grants := func(rule string, count int, expiresMS int64) (out []GrantData) {
		for i := range count {
			out = append(out, GrantData{Rule: rule, Grant: limit.Grant{ID: limit.GrantID{1, byte(i)}, Units: 5, ExpiresMS: expiresMS}})
		}
		return out
	}
	fixed, log := slug(limit.FixedWindow), slug(limit.SlidingWindowLog)
	data := PolicyData{Rules: rules, Plans: []PlanData{
		{Slug: "short", Limits: map[string]limit.Limit{log: {Limit: 5}}},
		{Slug: "free", Limits: map[string]limit.Limit{fixed: {Unlimited: true}}},
	}}
	r := newRig(t, data,
		SubjectData{Subject: "granted", Grants: grants(fixed, 50, 0)}, SubjectData{Subject: "expired", Grants: grants(fixed, 50, 1)},
		SubjectData{Subject: "exempt", State: Exempt, Grants: grants(fixed, 50, 0)}, SubjectData{Subject: "shadow", Grants: grants("shadow", 50, 0)},
		SubjectData{Subject: "log", Overrides: []OverrideData{{Rule: log, Limit: limit.Limit{Limit: 5}}}},
	)
	now := time.UnixMilli(r.now.Load())
	work := func(subject, plan string) int64 {
		req := Request{Subject: subject, Resource: "default", Plan: plan, Cost: 1}
		var e evaluation
		require.True(t, e.resolve(NewKeys([16]byte{1}), r.policy, &req, now, now.UnixMilli()))
		units := int64(0)
		for i := range e.call.Counters {
			units += engine.CounterWork(&e.call.Counters[i].Numbers, e.call.Counters[i].Credits)
		}
		require.Equal(t, units, r.policy.work(&req, now.UnixMilli()), "%s, plan %q", subject, plan)
		return units
	}
	plain := work("ada", "")
	require.Equal(t, plain+limit.CreditsWork(50), work("granted", ""), "13 units for 50 grants")
	require.Equal(t, plain-4, work("ada", "short"), "a short log")
	require.Equal(t, plain-4, work("log", ""))
	require.Equal(t, plain-1, work("granted", "free"), "an unlimited rule has no counter")
	for _, subject := range []string{"expired", "exempt", "shadow"} {
		require.Equal(t, plain, work(subject, ""), subject)
	}
}

// newWorkQuota returns a quota of so many units of work per minute.
func newWorkQuota(t *testing.T, units int64) *Quota {
	t.Helper()
	quota := minute("work", units)
	quota.Resource, quota.Algorithm = WorkResource, limit.FixedWindow
	platform := PolicyData{Rules: []limit.Rule{quota}}
	r := newRig(t, platform)
	source := &fakeSource{data: map[limit.TenantID]PolicyData{r.policy.tenant: platform}}
	return NewQuota(r.checker, NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics), r.policy.tenant)
}

// A check of a subject with credits uses up more of the quota of work than one without.
func TestQuotaOfWorkCountsCredits(t *testing.T) {
	q := newWorkQuota(t, 600)
	api := minute("api", 10)
	policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: "acme", Rules: []limit.Rule{api}})
	require.NoError(t, err)
	paying := SubjectData{Subject: "paying"}
	for i := range limit.MaxGrants {
		paying.Grants = append(paying.Grants, GrantData{Rule: "api", Grant: limit.Grant{ID: limit.GrantID{1, byte(i)}, Units: 5}})
	}
	policy.AddSubject(paying)
	admitted := 0
	for range 100 {
		if _, ok := q.AdmitWork(t.Context(), policy, []Request{{Subject: "paying", Resource: "default"}}); ok {
			admitted++
		}
	}
	require.Equal(t, 42, admitted, "14 units each")
}

// A lease uses up as much of the quota of work as its calls to the store are: those of the grant
// and the one of the return.
func TestQuotaOfWorkCountsLeases(t *testing.T) {
	q := newWorkQuota(t, 600)
	var rules []limit.Rule
	for i := range 4 {
		leased := minute(fmt.Sprintf("leased-%d", i), 1000)
		leased.Algorithm, leased.Consistency = limit.FixedWindow, limit.Leased
		rules = append(rules, leased)
	}
	tenant := newRig(t, PolicyData{})
	policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: "acme", Rules: rules})
	require.NoError(t, err)
	refunds := &refundEngine{Engine: tenant.store.Engine}
	tenant.store.Engine = refunds
	admitted, runs := 0, int64(0)
	for i := range 100 {
		req := Request{Subject: fmt.Sprint(i), Resource: "default", Cost: 10}
		if _, ok := q.AdmitLease(t.Context(), policy, &req); !ok {
			continue
		}
		admitted++
		before := tenant.store.calls.Load() + refunds.calls
		lease, err := tenant.checker.Lease(t.Context(), policy, &req, new(Scratch))
		require.NoError(t, err)
		require.Positive(t, lease.Units)
		require.NoError(t, tenant.checker.ReturnLease(t.Context(), &lease.Grant, lease.Units))
		runs += (tenant.store.calls.Load() + refunds.calls - before) * int64(len(rules))
	}
	require.Equal(t, 50, admitted, "12 units each")
	require.EqualValues(t, 600, runs, "as many evaluations of counters")
}

// refundEngine counts refunds.
type refundEngine struct {
	engine.Engine
	calls int64
}

func (e *refundEngine) Refund(ctx context.Context, refunds ...*engine.Refund) {
	e.calls += int64(len(refunds))
	e.Engine.Refund(ctx, refunds...)
}

// People see how much is used, and the day on which it runs out if nothing changes.
func TestQuotaUse(t *testing.T) {
	r, q, platform, tenant := tiered(t)
	ctx := context.Background()
	require.Empty(t, r.checker.Quotas(ctx, platform, "nobody"))
	_, ok := q.Admit(ctx, tenant("small"), 8)
	require.True(t, ok)
	uses := r.checker.Quotas(ctx, platform, "small")
	require.Len(t, uses, 1)
	u := uses[0]
	require.Equal(t, []any{"checks", int64(10), time.Hour}, []any{u.Rule.Slug, u.Limit, u.Length})
	require.GreaterOrEqual(t, u.Used, int64(8), "units that are held as leases are used")
	now := r.now.Load()
	require.Equal(t, now-now%3_600_000+3_600_000, u.WindowEnd.UnixMilli())

	r.move(time.Hour - time.Second - time.Duration(now%3_600_000)*time.Millisecond)
	r.checker.now = func() time.Time { return time.UnixMilli(r.now.Load()).Add(2 * time.Second) } // already in the next hour
	uses = r.checker.Quotas(ctx, platform, "small")
	require.Len(t, uses, 1)
	require.Equal(t, []any{u.Used, u.WindowEnd, time.Hour - time.Second}, []any{uses[0].Used, uses[0].WindowEnd, uses[0].Elapsed}, "by the clock of the counters")

	r.store.fail.Store(true)
	require.Empty(t, r.checker.Quotas(ctx, platform, "small"), "nothing is known")

	end := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for _, c := range []struct {
		used    int64
		elapsed time.Duration
		want    string // "": not in this window
	}{
		{0, 10 * day, ""}, {50, 10 * day, "2026-01-21"}, {50, 20 * day, ""}, {90, 27 * day, "2026-01-31"},
		{100, 10 * day, "2026-01-11"}, {120, 10 * day, "2026-01-11"}, {10, 0, ""},
	} {
		u := QuotaUse{Used: c.used, Limit: 100, WindowEnd: end, Length: 31 * day, Elapsed: c.elapsed}
		at, runsOut := u.RunsOut()
		require.Equal(t, c.want != "", runsOut, "%+v", c)
		if runsOut {
			require.Equal(t, c.want, at.Format("2006-01-02"))
		}
	}
}

// While the platform's policy cannot be read, checks pass without waiting for it, except for one
// from time to time that tries again.
func TestQuotaWithoutPlatform(t *testing.T) {
	r, _, _, tenant := tiered(t)
	source := &fakeSource{err: errors.New("down")}
	policies := NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics)
	q := NewQuota(r.checker, policies, r.policy.tenant)
	now := time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)
	q.now = func() time.Time { return now }
	pass := func() {
		t.Helper()
		for range 10 {
			_, ok := q.Admit(t.Context(), tenant("acme"), 1)
			require.True(t, ok)
			_, ok = q.AdmitWork(t.Context(), tenant("acme"), []Request{{Subject: "ada"}})
			require.True(t, ok)
		}
	}
	pass()
	require.Equal(t, 1, source.loads)
	now = now.Add(askPlatformEvery)
	pass()
	require.Equal(t, 2, source.loads)
}
