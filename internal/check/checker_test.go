package check

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/peers"
)

// rig is a Checker with a counter store in memory and a clock that only the test moves.
type rig struct {
	t        *testing.T
	now      atomic.Int64 // milliseconds since 1970
	clock    func() time.Time
	store    *switchEngine
	stack    *engine.Stack
	checker  *Checker
	metrics  *Metrics
	registry *prometheus.Registry
	policy   *Policy
}

// switchEngine is an engine that can be made to fail, and that counts calls.
type switchEngine struct {
	engine.Engine
	fail  atomic.Bool
	calls atomic.Int64
}

func (s *switchEngine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	s.calls.Add(int64(len(calls)))
	if s.fail.Load() {
		for _, c := range calls {
			c.Err = context.DeadlineExceeded
		}
		return
	}
	s.Engine.Evaluate(ctx, calls...)
}

const testStart = int64(1_800_000_000_000) // a whole minute

func newRig(t *testing.T, data PolicyData, subjects ...SubjectData) *rig {
	t.Helper()
	r := &rig{t: t}
	r.now.Store(testStart)
	ms := func() int64 { return r.now.Load() }
	r.clock = func() time.Time { return time.UnixMilli(r.now.Load()) }
	clock := func() time.Time { return r.clock() }
	r.store = &switchEngine{Engine: engine.NewMemory(engine.MemoryOptions{Clock: ms})}
	registry := prometheus.NewRegistry()
	r.registry, r.metrics = registry, NewMetrics(registry)
	peers := peers.New(1, nil, registry)
	r.stack = engine.NewStack(engine.StackOptions{
		Shared: r.store, Local: engine.NewMemory(engine.MemoryOptions{Clock: ms}), Share: peers.Share, Metrics: engine.NewMetrics(registry), Clock: clock,
	})
	t.Cleanup(r.stack.Close)
	r.checker = NewChecker(CheckerOptions{
		Keys: NewKeys([16]byte{1}), Engine: r.stack, Metrics: r.metrics, Clock: clock,
	})
	r.policy = r.compile(data, subjects...)
	return r
}

// beside returns another instance over the same store, whose clock is ahead.
func (r *rig) beside(ahead time.Duration) *rig {
	r.t.Helper()
	other := newRig(r.t, PolicyData{})
	other.policy = r.policy
	other.clock = func() time.Time { return time.UnixMilli(r.now.Load()).Add(ahead) }
	registry := prometheus.NewRegistry()
	other.stack = engine.NewStack(engine.StackOptions{
		Shared: r.store, Local: engine.NewMemory(engine.MemoryOptions{Clock: r.now.Load}), Share: peers.New(2, nil, registry).Share,
		Metrics: engine.NewMetrics(registry), Clock: other.clock,
	})
	r.t.Cleanup(other.stack.Close)
	other.checker = NewChecker(CheckerOptions{Keys: NewKeys([16]byte{1}), Engine: other.stack, Metrics: other.metrics, Clock: other.clock})
	return other
}

// metric returns the value of a counter.
func (r *rig) metric(name string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

func (r *rig) compile(data PolicyData, subjects ...SubjectData) *Policy {
	r.t.Helper()
	policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.MustParse("018f0000-0000-7000-8000-000000000001"), data)
	require.NoError(r.t, err)
	for _, s := range subjects {
		policy.AddSubject(s)
	}
	return policy
}

func (r *rig) check(req Request) Decision {
	r.t.Helper()
	if req.Resource == "" {
		req.Resource = "default"
	}
	ds, err := r.checker.Check(context.Background(), r.policy, []Request{req})
	require.NoError(r.t, err)
	return ds[0]
}

func (r *rig) move(d time.Duration) { r.now.Add(d.Milliseconds()) }

func minute(slug string, units int64) limit.Rule {
	return limit.Rule{Slug: slug, Resource: "*", Algorithm: limit.FixedWindow, Limit: units, Window: limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}, By: []string{"subject"}}
}

// An override must begin and end at the same instant at all instances, by the clock of the store,
// as windows do. Before, each instance used its own clock: a customer had the limit of an override
// at some instances and not at others.
func TestOverridesFollowTheClockOfTheStore(t *testing.T) {
	override := func(from, to time.Duration) []OverrideData {
		at := time.UnixMilli(testStart)
		return []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 90}, StartsAt: at.Add(from), ExpiresAt: at.Add(to)}}
	}
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 10)}},
		SubjectData{Subject: "ends", Overrides: override(0, 30*time.Minute)},
		SubjectData{Subject: "begins", Overrides: override(30*time.Minute, 24*time.Hour)},
	)
	for name, instance := range map[string]*rig{"exact": r, "fast": r.beside(time.Hour), "slow": r.beside(-time.Hour)} {
		t.Run(name, func(t *testing.T) {
			r.now.Store(testStart)
			instance.check(Request{Subject: "anybody", Cost: 1}) // the answer tells the store's clock
			limits := func(subject string) (checked, seen int64) {
				d := instance.check(Request{Subject: subject})
				return d.Rules[0].Limit, instance.inspect(Request{Subject: subject}).Rules[0].Limit
			}
			expect := func(subject string, want int64) {
				checked, seen := limits(subject)
				require.Equal(t, want, checked, subject)
				require.Equal(t, want, seen, subject)
			}
			expect("ends", 90)
			expect("begins", 10)
			r.move(30*time.Minute - time.Millisecond)
			expect("ends", 90)
			expect("begins", 10)
			r.move(time.Millisecond)
			expect("ends", 10)
			expect("begins", 90)
		})
	}
}

// A customer gets the override, or else the plan limit, or else the rule's own limit. When the
// limit changes, the usage is kept.
func TestNumberThatApplies(t *testing.T) {
	data := PolicyData{
		Rules: []limit.Rule{minute("api", 10)},
		Plans: []PlanData{
			{Slug: "free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 5}}},
			{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 50}}},
			{Slug: "bare"},
			{Slug: "all", Limits: map[string]limit.Limit{"api": {Unlimited: true}}},
		},
	}
	r := newRig(t, data,
		SubjectData{Subject: "pro-customer", Plan: "pro"},
		SubjectData{Subject: "special", Plan: "pro", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 70}}}},
		SubjectData{Subject: "boosted", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 90}, ExpiresAt: time.UnixMilli(testStart + 1000)}}},
		SubjectData{Subject: "later", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 90}, StartsAt: time.UnixMilli(testStart + 1000)}}},
		SubjectData{Subject: "orphan", Plan: "deleted-a-moment-ago"},
	)
	for _, c := range []struct {
		subject, plan string
		limit         int64
		source        string
	}{
		{"anybody", "", 5, "plan:free"},
		{"anybody", "pro", 50, "plan:pro"},
		{"anybody", "bare", 10, "rule"},
		{"pro-customer", "", 50, "plan:pro"},
		{"pro-customer", "free", 5, "plan:free"},
		{"special", "", 70, "override"},
		{"special", "free", 70, "override"},
		{"boosted", "", 90, "override"},
		{"later", "", 5, "plan:free"},
		{"orphan", "", 5, "plan:free"},
	} {
		d := r.check(Request{Subject: c.subject, Plan: c.plan, Cost: 1})
		require.Equal(t, c.source, d.Rules[0].Source, "%+v", c)
		require.Equal(t, c.limit, d.Rules[0].Limit, "%+v", c)
	}
	d := r.check(Request{Subject: "anybody", Plan: "all"})
	require.True(t, d.Allowed)
	require.True(t, d.Rules[0].Unlimited)
	require.Equal(t, -1, d.Deciding)

	r.move(time.Second)
	require.Equal(t, "plan:free", r.check(Request{Subject: "boosted"}).Rules[0].Source, "an override ends at expires_at")
	require.Equal(t, "override", r.check(Request{Subject: "later"}).Rules[0].Source, "and begins at starts_at")
	require.Equal(t, int64(47), r.check(Request{Subject: "pro-customer", Cost: 1}).Rules[0].Remaining, "used under pro and free together: 3 of 50")

	_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: "a", Resource: "x", Cost: 1}, {Subject: "a", Resource: "x", Cost: 1, Plan: "gold"}})
	require.Equal(t, &UnknownPlanError{Index: 1, Plan: "gold"}, err)
	require.Equal(t, int64(0), 10-r.check(Request{Subject: "a", Resource: "x", Plan: "bare"}).Rules[0].Remaining, "the refused batch counted nothing")
}

// A check of a blocked customer is denied without a read of a counter. An exempt customer is never
// denied.
func TestSubjectStates(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 1)}},
		SubjectData{Subject: "bad", State: Blocked}, SubjectData{Subject: "friend", State: Exempt})
	d := r.check(Request{Subject: "bad", Cost: 1})
	require.False(t, d.Allowed)
	require.Equal(t, SubjectBlocked, d.Code)
	require.Equal(t, -1, d.Deciding)
	require.Zero(t, r.store.calls.Load())
	for range 3 {
		d = r.check(Request{Subject: "friend", Cost: 1})
		require.True(t, d.Allowed)
		require.Equal(t, limit.Shadow, d.Rules[0].Mode)
	}
	require.False(t, d.Rules[0].Allowed, "the result of the rule is reported")
}

// Every matching rule is evaluated. A rule that cannot count is skipped and listed.
func TestMatchingAndSkipping(t *testing.T) {
	byIP := minute("by-ip", 5)
	byIP.By = []string{"attributes.ip"}
	prefix, exact, off, other := minute("orders", 5), minute("create", 5), minute("off", 5), minute("other", 5)
	prefix.Resource, exact.Resource, other.Resource = "orders:*", "orders:create", "billing:*"
	off.Mode = limit.Off
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("all", 5), byIP, prefix, exact, off, other}})

	slugs := func(d Decision) (rules, skipped []string) {
		for _, rd := range d.Rules {
			rules = append(rules, rd.Rule.Slug)
		}
		for s := range d.EachSkipped() {
			skipped = append(skipped, s.Rule.Slug+":"+string(s.Reason))
		}
		return rules, skipped
	}
	rules, skipped := slugs(r.check(Request{Subject: "s", Resource: "orders:create", Cost: 1}))
	require.Equal(t, []string{"all", "create", "orders"}, rules)
	require.Equal(t, []string{"by-ip:missing_attribute"}, skipped)
	rules, skipped = slugs(r.check(Request{Subject: "s", Resource: "orders:", Cost: 1, Attributes: []Attribute{{"ip", "203.0.113.7"}}, Explain: true}))
	require.Equal(t, []string{"all", "by-ip", "orders"}, rules)
	require.Equal(t, []string{"create:resource_mismatch", "off:mode_off", "other:resource_mismatch"}, skipped)
	rules, _ = slugs(r.check(Request{Subject: "s", Resource: "order", Cost: 1}))
	require.Equal(t, []string{"all"}, rules)
	matching, bytes := r.policy.Matching("orders:create")
	require.Equal(t, 4, matching, "all, by-ip, create and orders")
	require.Equal(t, 20, bytes)
}

// The numbers of the answer are those of the deciding rule.
func TestDecidingRule(t *testing.T) {
	hour := minute("hour", 3)
	hour.Window = limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	shadow := minute("shadow", 1)
	shadow.Mode = limit.Shadow
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("minute", 3), hour, shadow, minute("wide", 100)}})
	deciding := func(d Decision) string { return d.Rules[d.Deciding].Rule.Slug }

	require.Equal(t, "hour", deciding(r.check(Request{Subject: "s", Cost: 1})), "the first rule with the smallest share")
	r.check(Request{Subject: "s", Cost: 2})
	d := r.check(Request{Subject: "s", Cost: 1})
	require.False(t, d.Allowed)
	require.Equal(t, RateLimitExceeded, d.Code)
	require.Equal(t, "hour", deciding(d), "the denying rule with the longest wait")
	d = r.check(Request{Subject: "s", Cost: 4})
	require.Equal(t, CostExceedsLimit, d.Code)
	require.Equal(t, limit.NeverMS, d.Rules[d.Deciding].RetryAfterMS)
	require.True(t, r.check(Request{Subject: "t", Cost: 3}).Allowed, "denials are not remembered for smaller costs or other subjects")
}

// A subject that continues to send checks over its limit causes at most ten calls to the store per
// second. It gets exact times, and is allowed as soon as its wait is over or its limit changes.
func TestDenialsInProcess(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 2)}, Plans: []PlanData{{Slug: "free", Default: true}}})
	require.True(t, r.check(Request{Subject: "s", Cost: 2}).Allowed)
	before := r.store.calls.Load()
	for range 1000 {
		d := r.check(Request{Subject: "s", Cost: 1})
		require.False(t, d.Allowed)
		require.Equal(t, testStart+60_000, r.now.Load()+d.Rules[0].RetryAfterMS)
		require.Equal(t, testStart+60_000, d.NowMS+d.Rules[0].ResetAfterMS)
		r.move(time.Millisecond)
	}
	require.LessOrEqual(t, r.store.calls.Load()-before, int64(10))
	require.Equal(t, 990.0, r.metric("weir_checks_denied_in_process_total"))
	require.True(t, r.check(Request{Subject: "s", Cost: 0}).Allowed, "cost 0 is another request")

	r.policy.AddSubject(SubjectData{Subject: "s", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 5}}}})
	require.True(t, r.check(Request{Subject: "s", Cost: 1}).Allowed, "an override ends the denial immediately")

	require.False(t, r.check(Request{Subject: "s", Cost: 3}).Allowed)
	raised := minute("api", 50)
	next := r.compile(PolicyData{Rules: []limit.Rule{raised}})
	next.subjects = r.policy.subjects
	r.policy = next
	r.policy.AddSubject(SubjectData{Subject: "s", Deleted: true})
	require.True(t, r.check(Request{Subject: "s", Cost: 3}).Allowed, "so does a change of the rule")

	require.True(t, r.check(Request{Subject: "u", Cost: 50}).Allowed)
	r.now.Store(testStart + 60_000 - 5)
	require.False(t, r.check(Request{Subject: "u", Cost: 1}).Allowed)
	r.move(4 * time.Millisecond)
	require.False(t, r.check(Request{Subject: "u", Cost: 1}).Allowed)
	r.move(time.Millisecond)
	require.True(t, r.check(Request{Subject: "u", Cost: 1}).Allowed, "and so does the end of the wait, to the millisecond")
}

// A dry run starts no penalty, and its denial must not prevent the real check from starting one.
func TestDryRunStartsNoPenalty(t *testing.T) {
	rule := minute("api", 1)
	rule.Algorithm, rule.Window, rule.Penalty = limit.FixedWindowFirstHit, limit.Window{Duration: limit.Duration{Text: "2s", MS: 2000}}, limit.Duration{Text: "1m", MS: 60_000}
	r := newRig(t, PolicyData{Rules: []limit.Rule{rule}})
	require.True(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
	require.False(t, r.check(Request{Subject: "s", Cost: 1, DryRun: true}).Allowed)
	require.False(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
	r.move(2200 * time.Millisecond)
	require.False(t, r.check(Request{Subject: "s", Cost: 1}).Allowed, "the penalty runs")
	require.False(t, r.check(Request{Subject: "s", Cost: 1, DryRun: true}).Allowed, "and a dry run reports it")
}

// If Redis is unavailable, each rule answers by its on_unavailable, and the answer is marked as
// degraded.
func TestOnUnavailable(t *testing.T) {
	local, allow, deny := minute("local", 2), minute("allow", 1), minute("deny", 100)
	local.Resource, allow.Resource, deny.Resource = "local*", "*", "*deny"
	deny.Resource = "local:deny"
	allow.OnUnavailable, deny.OnUnavailable = limit.Allow, limit.Deny
	r := newRig(t, PolicyData{Rules: []limit.Rule{local, allow, deny}})
	r.store.fail.Store(true)

	d := r.check(Request{Subject: "s", Resource: "x", Cost: 1})
	require.True(t, d.Allowed && d.Degraded && d.Rules[0].Degraded && d.Rules[0].Uncounted)
	require.Equal(t, -1, d.Deciding)
	d = r.check(Request{Subject: "s", Resource: "local:deny", Cost: 1})
	require.False(t, d.Allowed)
	require.Equal(t, CountersUnavailable, d.Code)
	require.Equal(t, "deny", d.Rules[d.Deciding].Rule.Slug)
	require.Positive(t, d.Rules[d.Deciding].RetryAfterMS)
	for range 2 {
		d = r.check(Request{Subject: "s", Resource: "local", Cost: 1})
		require.True(t, d.Allowed, "the previous, denied check consumed nothing locally")
	}
	require.Equal(t, "local", d.Rules[d.Deciding].Rule.Slug)
	d = r.check(Request{Subject: "s", Resource: "local", Cost: 1})
	require.False(t, d.Allowed)
	require.Equal(t, RateLimitExceeded, d.Code)
	require.True(t, r.check(Request{Subject: "s", Resource: "local:deny", Cost: 0}).Allowed, "cost 0 is never denied")
	r.move(150 * time.Millisecond)
	r.check(Request{Subject: "s", Resource: "x", Cost: 1})

	before := r.store.calls.Load()
	require.False(t, r.stack.DegradedSince().IsZero(), "consecutive failures and silence opened the breaker")
	for range 100 {
		r.check(Request{Subject: "t", Resource: "x", Cost: 1})
	}
	require.LessOrEqual(t, r.store.calls.Load()-before, int64(1), "no check waits for a store that is unavailable; only probes go there")
}

// The rules of the platform limit how many checks a tenant may send: never more, and with few
// calls.
func TestQuota(t *testing.T) {
	quota := minute("checks", 1000)
	quota.Resource = QuotaResource
	r := newRig(t, PolicyData{Rules: []limit.Rule{quota}})
	source := &fakeSource{data: map[limit.TenantID]PolicyData{r.policy.tenant: {Rules: []limit.Rule{quota}}}}
	policies := NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics)
	q := NewQuota(r.checker, policies, r.policy.tenant)
	ctx := context.Background()
	tenant := func(slug string) *Policy {
		policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: slug})
		require.NoError(t, err)
		return policy
	}
	acme := tenant("acme")
	admitted := 0
	for i := range 3000 {
		wait, ok := q.Admit(ctx, acme, 1)
		if ok {
			admitted++
		} else {
			require.Equal(t, testStart+60_000, r.now.Load()+wait)
		}
		if i%4 == 3 {
			r.move(time.Millisecond)
		}
	}
	require.LessOrEqual(t, admitted, 1000)
	require.GreaterOrEqual(t, admitted, 900, "few units are stranded in leases")
	require.Less(t, r.store.calls.Load(), int64(150))
	_, ok := q.Admit(ctx, tenant("other"), 1000)
	require.True(t, ok, "another tenant has its own quota")
	_, ok = q.Admit(ctx, r.policy, 5000)
	require.True(t, ok, "the operator's own tenant is not limited")
	wait, ok := q.Admit(ctx, tenant("third"), 1001)
	require.False(t, ok)
	require.Equal(t, limit.NeverMS, wait)
}

// The operator raises a tenant's quota while the tenant's checks are in flight. Afterwards, units
// must be held under the new limit.
func TestQuotaFollowsItsOverride(t *testing.T) {
	quota := minute("checks", 1000)
	quota.Resource = QuotaResource
	data := PolicyData{Rules: []limit.Rule{quota}}
	r := newRig(t, data)
	source := &fakeSource{data: map[limit.TenantID]PolicyData{r.policy.tenant: data}}
	policies := NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics)
	q := NewQuota(r.checker, policies, r.policy.tenant)
	ctx := context.Background()
	acme, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: "acme"})
	require.NoError(t, err)
	platform, err := policies.Get(ctx, r.policy.tenant)
	require.NoError(t, err)
	override := func(units int64) SubjectData {
		return SubjectData{Subject: "acme", Overrides: []OverrideData{{Rule: "checks", Limit: limit.Limit{Limit: units}}}}
	}
	platform.AddSubject(override(100_000))
	admit := func() bool {
		_, ok := q.Admit(ctx, acme, 1)
		return ok
	}
	for range 50 { // units of the large quota are held
		require.True(t, admit())
	}
	// A check was sent under the large limit, and is answered after the change.
	last, _ := q.checks.tenants.Load("acme")
	held := &heldEngine{Engine: r.store.Engine, came: make(chan struct{}), leave: make(chan struct{})}
	r.move(10 * time.Second) // the held units have expired
	r.store.Engine = held
	done := make(chan bool)
	go func() { done <- admit() }()
	<-held.came
	platform.AddSubject(override(10))
	close(held.leave)
	require.True(t, <-done)
	held.came = make(chan struct{}, 1000)
	require.False(t, q.grant(last.Load(), platform, "acme", 1), "units held under the old limit are not granted")
	require.False(t, admit(), "51 of 10 are used")
}

// The quotas of two tenants are used alternately, with the same scratch memory. If one tenant is
// denied from memory, it must not get the units of the other.
func TestQuotasDoNotShareUnits(t *testing.T) {
	quota := minute("checks", 1000)
	quota.Resource = QuotaResource
	data := PolicyData{Rules: []limit.Rule{quota}}
	r := newRig(t, data)
	source := &fakeSource{data: map[limit.TenantID]PolicyData{r.policy.tenant: data}}
	q := NewQuota(r.checker, NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), r.metrics), r.policy.tenant)
	tenant := func(slug string) *Policy {
		policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Slug: slug})
		require.NoError(t, err)
		return policy
	}
	rich, poor := tenant("rich"), tenant("poor")
	_, ok := q.Admit(t.Context(), poor, 1000)
	require.True(t, ok, "poor has used up its quota")
	scratch := new(Scratch)
	q.scratches.New = func() any { return scratch } // one scratch for all, as with little traffic
	for i := range 200 {
		_, ok = q.Admit(t.Context(), rich, 1)
		require.True(t, ok, i)
		q.scratches.Put(scratch)
		_, ok = q.Admit(t.Context(), poor, 1)
		require.False(t, ok, i)
		if last, asked := q.checks.tenants.Load("poor"); asked {
			require.Nil(t, last.Load(), "nothing is held for poor")
		}
	}
}
