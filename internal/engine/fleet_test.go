package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/limit"
	"weir/internal/peers"
)

// leasing is an instance with its engines.
type leasing struct {
	*check.Checker
	*engine.Stack
}

// newInstance returns an instance that uses a store and the real clock.
func newInstance(keys check.Keys, shared engine.Engine) *leasing {
	registry := prometheus.NewRegistry()
	stack := engine.NewStack(engine.StackOptions{
		Shared: shared, Local: engine.NewMemory(engine.MemoryOptions{}),
		Share: peers.New(1, nil, registry).Share, Metrics: engine.NewMetrics(registry),
	})
	return &leasing{check.NewChecker(check.CheckerOptions{Keys: keys, Engine: stack, Metrics: check.NewMetrics(registry)}), stack}
}

// fleet is a number of instances with one counter store and a clock that only the test moves.
type fleet struct {
	t         *testing.T
	now       int64 // milliseconds since 1970
	store     *countingEngine
	instances []*leasing
	registry  []*prometheus.Registry
	policy    *check.Policy
	keys      check.Keys
}

// countingEngine counts the calls to an engine, and can be made to fail.
type countingEngine struct {
	engine.Engine
	exchanges atomic.Int64
	fail      atomic.Bool
}

func (e *countingEngine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	e.exchanges.Add(1)
	if e.fail.Load() {
		for _, c := range calls {
			c.Err = context.DeadlineExceeded
		}
		return
	}
	e.Engine.Evaluate(ctx, calls...)
}

func (e *countingEngine) Refund(ctx context.Context, refunds ...*engine.Refund) {
	e.exchanges.Add(1)
	e.Engine.Refund(ctx, refunds...)
}

const fleetStart = int64(1_800_000_000_000) // a whole minute

var fleetTenant = uuid.MustParse("018f0000-0000-7000-8000-000000000009")

func newFleet(t *testing.T, instances int, rules ...limit.Rule) *fleet {
	t.Helper()
	f := &fleet{t: t, now: fleetStart, keys: check.NewKeys([16]byte{3})}
	f.store = &countingEngine{Engine: engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return f.now }})}
	for i := range instances {
		f.instances, f.registry = append(f.instances, nil), append(f.registry, nil)
		f.start(i)
	}
	f.use(rules...)
	return f
}

// start starts a new instance at place i. If there was one, it is gone, with all units that it
// held.
func (f *fleet) start(i int) {
	f.registry[i] = prometheus.NewRegistry()
	clock := func() time.Time { return time.UnixMilli(f.now) }
	stack := engine.NewStack(engine.StackOptions{
		Shared: f.store, Local: engine.NewMemory(engine.MemoryOptions{}), Clock: clock,
		Share: peers.New(1, nil, f.registry[i]).Share, Metrics: engine.NewMetrics(f.registry[i]),
	})
	checker := check.NewChecker(check.CheckerOptions{Keys: f.keys, Engine: stack, Metrics: check.NewMetrics(f.registry[i]), Clock: clock})
	f.instances[i] = &leasing{checker, stack}
}

func (f *fleet) use(rules ...limit.Rule) {
	f.t.Helper()
	policy, err := check.CompilePolicy(f.keys, fleetTenant, check.PolicyData{Slug: "t", Rules: rules})
	require.NoError(f.t, err)
	f.policy = policy
}

func (f *fleet) ask(instance int, subject string, cost int64) check.Decision {
	f.t.Helper()
	return f.check(instance, check.Request{Subject: subject, Resource: "r", Cost: cost})
}

func (f *fleet) check(instance int, req check.Request) check.Decision {
	f.t.Helper()
	ds, err := f.instances[instance].Check(context.Background(), f.policy, []check.Request{req})
	require.NoError(f.t, err)
	return ds[0]
}

// move advances the clock, and lets every instance inspect its leases each 50 ms.
func (f *fleet) move(ms int64) {
	for next := f.now - f.now%50 + 50; next <= f.now+ms; next += 50 {
		ms -= next - f.now
		f.now = next
		for _, c := range f.instances {
			c.ReturnIdle()
		}
	}
	f.now += ms
}

// checkUntilLeased sends checks until units are leased, and returns the number of checks.
func (f *fleet) checkUntilLeased(instance int, subject string) (asked int64) {
	f.t.Helper()
	for {
		require.True(f.t, f.ask(instance, subject, 1).Allowed)
		asked++
		if held, _ := f.instances[instance].LeaseHeld(); held > 0 {
			return asked
		}
		require.Less(f.t, asked, int64(100), "never leased")
	}
}

func (f *fleet) metric(instance int, name string) float64 {
	f.t.Helper()
	families, err := f.registry[instance].Gather()
	require.NoError(f.t, err)
	i := slices.IndexFunc(families, func(m *dto.MetricFamily) bool { return m.GetName() == name })
	require.GreaterOrEqual(f.t, i, 0, name)
	m := families[i].Metric[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func leasedRule(slug string, a limit.Algorithm, lim, windowMS int64) limit.Rule {
	r := limit.Rule{
		Slug: slug, Resource: "*", Algorithm: a, Limit: lim, By: []string{"subject"}, Consistency: limit.Leased,
		Window: limit.Window{Duration: limit.Duration{Text: "w", MS: windowMS}},
	}
	if a == limit.SlidingWindowBuckets {
		r.Precision = limit.Duration{Text: "p", MS: windowMS / 5}
	}
	return r
}

func leasableAlgorithms() (out []limit.Algorithm) {
	for _, a := range limit.Algorithms {
		if n := (limit.Numbers{Algorithm: a}); n.Leasable() {
			out = append(out, a)
		}
	}
	return out
}

// Numbers for random traffic: small and large limits, short and long windows, and two or three
// rules at once, one of them in shadow mode.
func randomLeasedRules(r *rand.Rand, a limit.Algorithm) []limit.Rule {
	one := func(slug string, a limit.Algorithm) limit.Rule {
		rule := leasedRule(slug, a, []int64{20, 100, 500, 5_000}[r.IntN(4)], []int64{1_000, 2_000, 10_000, 60_000}[r.IntN(4)])
		if a.Bucket() {
			rule.Burst = []int64{rule.Limit, 10, 50, 200, 1_000}[r.IntN(5)]
		}
		return rule
	}
	rules := []limit.Rule{one("a", a)}
	if a.Bucket() && r.IntN(2) == 0 { // a bucket that is full again while units of it are held
		rules[0].Limit, rules[0].Burst = []int64{300, 700, 1_000, 3_000}[r.IntN(4)], []int64{50, 100, 300, 1_000}[r.IntN(4)]
		rules[0].Window.MS = 1_000
		return rules
	}
	for i := range r.IntN(3) {
		more := one(fmt.Sprintf("b%d", i), leasableAlgorithms()[r.IntN(len(leasableAlgorithms()))])
		if r.IntN(3) == 0 {
			more.Mode = limit.Shadow
		}
		rules = append(rules, more)
	}
	return rules
}

// strictly sends to the reference the checks that instances allowed, at the same instants.
type strictly struct {
	reference *enginetest.Reference
	rules     []limit.Rule
}

func (s *strictly) call(now, cost int64, dry bool) *engine.Call {
	call := &engine.Call{NowMS: now, Cost: cost, DryRun: dry}
	for i := range s.rules {
		call.Counters = append(call.Counters, engine.Counter{Key: s.rules[i].Slug, Numbers: s.rules[i].Numbers(), Shadow: s.rules[i].Mode == limit.Shadow})
	}
	s.reference.Evaluate(context.Background(), call)
	return call
}

// Instances prefetch, grant, return, lose units and crash in random order. Whatever they allow, a
// strict engine could have allowed at the same instants. No check is denied early because of more
// units than other instances hold or have lost.
func TestLeasesNeverExceed(t *testing.T) {
	for _, a := range leasableAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			leased, early := 0.0, 0
			for seed := range uint64(leasedRuns) {
				l, e := runLeased(t, a, seed)
				leased += l
				early += e
			}
			require.Greater(t, leased, 10.0*leasedRuns, "checks were answered from memory")
			t.Log("answered from memory", leased, "denied early", early)
		})
	}
}

func runLeased(t *testing.T, a limit.Algorithm, seed uint64) (leased float64, early int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(a)))
	rules := randomLeasedRules(r, a)
	f := newFleet(t, 1+r.IntN(4), rules...)
	run := leasedRun{fleet: f, strict: strictly{enginetest.NewReference(), rules}, seed: seed, most: 1 + r.Int64N(4)}
	pace := []float64{0.05, 0.3, 1, 3}[r.IntN(4)]
	for range 600 {
		switch {
		case r.Float64() < pace:
			f.move(1 + r.Int64N(6))
		case r.IntN(200) == 0:
			f.move(50 + r.Int64N(400))
		case r.IntN(400) == 0: // an instance crashes, and a new one replaces it
			i := r.IntN(len(f.instances))
			_, charged := f.instances[i].LeaseHeld()
			run.lost += charged + int64(f.metric(i, "weir_lease_units_stranded_total"))
			leased += f.metric(i, "weir_checks_leased_total")
			f.start(i)
		case r.IntN(60) == 0: // all instances prefetch as much as they can, at once
			f.move(r.Int64N(120))
			for i := range f.instances {
				for units := int64(1_000) >> r.IntN(11); units > 0; units /= 2 {
					for run.ask(i, units) {
					}
				}
			}
		}
		cost := int64(1)
		if r.IntN(4) == 0 {
			cost = 1 + r.Int64N(run.most)
		}
		run.ask(r.IntN(len(f.instances)), cost)
	}
	for i := range f.instances {
		leased += f.metric(i, "weir_checks_leased_total")
		f.instances[i].Close()
	}
	return leased, run.early
}

// Units that were charged to a full bucket must not drain while they are held. If everything is
// used at one instant, it is at most the burst, however many units each instance held or returned.
func TestLeasedBucketNeverExceedsItsBurst(t *testing.T) {
	for _, lim := range []int64{500, 1_000} {
		for _, asks := range []int{6, 150} { // a bucket that was full a moment ago, and one in steady use
			for _, wait := range []int64{1, 20, 60, 85, 150} {
				for idle := range 3 { // how many instances become idle before
					taken := takeAllOfBucket(t, 3, lim, asks, wait, idle)
					require.LessOrEqual(t, taken, int64(1_000), "limit %d, asked %d times, wait %d, idle %d", lim, asks, wait, idle)
				}
				require.LessOrEqual(t, takeAllOfBucket(t, 1, lim, asks, wait, 0), int64(1_000), "alone: limit %d, asked %d times, wait %d", lim, asks, wait)
			}
		}
	}
}

// takeAllOfBucket returns how many units of a bucket of 1000 are allowed in one millisecond, if as
// many instances lease it.
func takeAllOfBucket(t *testing.T, instances int, lim int64, asks int, wait int64, idle int) (taken int64) {
	t.Helper()
	rule := leasedRule("a", limit.TokenBucket, lim, 1_000)
	rule.Burst = 1_000
	f := newFleet(t, instances, rule)
	for range asks { // slower than it refills
		for i := range f.instances {
			require.True(t, f.ask(i, "s", 1).Allowed)
		}
		f.move(6 * 1_000 / lim)
	}
	held := int64(0)
	for i := range f.instances {
		toGive, _ := f.instances[i].LeaseHeld()
		held += toGive
	}
	require.Positive(t, held)
	for range wait { // instances in use prefetch more, while idle ones return their units
		f.move(1)
		for i := idle; i < instances && wait > 85; i++ {
			f.ask(i, "s", 1)
		}
	}
	for range 3 { // these are granted late; units that are returned then have drained in part
		if f.ask(instances-1, "s", 1).Allowed {
			taken++
		}
	}
	for n := range instances {
		i, units := (instances-1+n)%instances, int64(1_000)
		if n > 0 { // grant the remaining units one by one, so that no greater cost returns them
			units = 1
		}
		for units > 0 {
			if f.ask(i, "s", units).Allowed {
				taken += units
			} else {
				units /= 2
			}
		}
	}
	return taken
}

// leasedRun is one run of random traffic.
type leasedRun struct {
	*fleet
	strict strictly
	seed   uint64
	most   int64
	lost   int64 // units lost by crashes
	early  int
}

func (r *leasedRun) ask(instance int, cost int64) (allowed bool) {
	before := r.store.exchanges.Load()
	if r.fleet.ask(instance, "s", cost).Allowed {
		call := r.strict.call(r.now, cost, false)
		require.True(r.t, call.Outcome.Allowed, "seed %d at %d: the strict engine would deny: %+v", r.seed, r.now-fleetStart, call)
		return true
	}
	if r.store.exchanges.Load() == before { // a denial from memory: it was correct when it was decided
		return false
	}
	if would := r.strict.call(r.now, cost, true); would.Outcome.Allowed {
		r.early++
		require.LessOrEqual(r.t, r.remaining(would, r.strict.rules)-cost, r.missing()+r.lost+drains(r.strict.rules),
			"seed %d at %d: denied early by more units than others hold: %+v %+v", r.seed, r.now-fleetStart, r.strict.rules, would)
	}
	return false
}

// remaining returns the minimum that a strict engine would have left under an enforcing rule,
// before the call.
func (f *fleet) remaining(dry *engine.Call, rules []limit.Rule) int64 {
	least := int64(1 << 62)
	for i, v := range dry.Outcome.Verdicts {
		if rules[i].Mode == limit.Enforce {
			least = min(least, v.Remaining+dry.Cost)
		}
	}
	return least
}

// drains returns how many units of buckets may drain unused, during leases and after they have
// ended.
func drains(rules []limit.Rule) (units int64) {
	for i := range rules {
		if n := rules[i].Numbers(); n.Algorithm.Bucket() {
			units = max(units, n.Limit*350/n.WindowMS+8)
		}
	}
	return units
}

// missing returns the units that the instances hold, and those that were lost to windows that are
// not over.
func (f *fleet) missing() (units int64) {
	for i, c := range f.instances {
		_, charged := c.LeaseHeld()
		units += charged + int64(f.metric(i, "weir_lease_units_stranded_total"))
	}
	return units
}

// Without a fault, all units of a limit can be used, on whichever instances its checks arrive. A
// bucket used to keep the units of a lease if any other instance had charged it since: in one run
// of three instances, 937 of 1,000 units could be used.
func TestLeasesGiveTheWholeLimit(t *testing.T) {
	for _, a := range leasableAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			for seed := range uint64(20) {
				require.EqualValues(t, 1_000, takeWholeLimit(t, a, seed), "seed %d", seed)
			}
		})
	}
}

// takeWholeLimit returns how many units are allowed until all instances deny.
func takeWholeLimit(t *testing.T, a limit.Algorithm, seed uint64) (taken int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(a)))
	f := newFleet(t, 3, leasedRule("a", a, 1_000, 86_400_000))
	for denied := 0; denied < 20; {
		i := r.IntN(len(f.instances))
		if seed%3 == 0 && r.IntN(3) > 0 {
			i = 0 // one instance gets most of the checks
		}
		cost := int64(1)
		if seed%2 == 1 && r.IntN(5) == 0 {
			cost = 1 + r.Int64N(5)
		}
		switch {
		case f.ask(i, "s", cost).Allowed:
			taken += cost
			denied = 0
		case cost == 1:
			denied++
			f.move(150) // a denial is remembered, and units of other instances return
		}
		if r.IntN(4) == 0 {
			f.move(1 + r.Int64N(5))
		}
		if r.IntN(100) == 0 {
			f.move(r.Int64N(200))
		}
	}
	leased := 0.0
	for i := range f.instances {
		leased += f.metric(i, "weir_checks_leased_total")
	}
	require.Greater(t, leased, 100.0, "answered from memory")
	return taken
}
