package engine_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// used returns the usage of the fleet's only rule.
func (f *fleet) used(subject string) int64 {
	f.t.Helper()
	d := f.ask(0, subject, 0)
	return d.Rules[0].Quota - d.Rules[0].Remaining
}

// A subject with ten thousand checks per second costs at most about forty calls to the store per
// second. A subject with occasional checks is never leased.
func TestLeasedHotSubjectCostsFewCalls(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.SlidingWindowCounter, 1_000_000, 60_000))
	for range 500 { // the first half second: leases grow
		for range 10 {
			require.True(t, f.ask(0, "s", 1).Allowed)
		}
		f.move(1)
	}
	before := f.store.exchanges.Load()
	for range 1_000 {
		for range 10 {
			require.True(t, f.ask(0, "s", 1).Allowed)
		}
		f.move(1)
	}
	require.LessOrEqual(t, f.store.exchanges.Load()-before, int64(40))
	require.EqualValues(t, 15_000, f.used("s")-f.heldBy(0))

	rare := newFleet(t, 1, leasedRule("api", limit.SlidingWindowCounter, 1_000_000, 60_000))
	for range 300 {
		rare.ask(0, "s", 1)
		rare.move(30)
	}
	require.EqualValues(t, 300, rare.store.exchanges.Load())
	require.Zero(t, rare.instances[0].LeaseSets())
}

func (f *fleet) heldBy(instance int) int64 {
	toGive, _ := f.instances[instance].LeaseHeld()
	return toGive
}

// Unused units are returned within 150 ms, all of them, and the set is removed.
func TestLeasedUnitsGoBackWhenIdle(t *testing.T) {
	for _, a := range leasableAlgorithms() {
		f := newFleet(t, 1, leasedRule("api", a, 1_000, 60_000))
		asked := f.checkUntilLeased(0, "s")
		require.Positive(t, f.heldBy(0))
		require.Greater(t, f.used("s"), asked)
		f.move(200)
		require.Zero(t, f.instances[0].LeaseSets())
		if n := (limit.Numbers{Algorithm: a}); n.Algorithm.Bucket() {
			require.InDelta(t, asked, f.used("s"), 4, "plus what was returned in the meantime")
			continue
		}
		require.Equal(t, asked, f.used("s"), a)
		require.Positive(t, f.metric(0, "weir_lease_units_returned_total"))
		require.Zero(t, f.metric(0, "weir_lease_units_stranded_total"))
	}
}

// Nothing is held for longer than 250 ms, even if the subject is still used occasionally.
func TestLeasesEnd(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 10_000, 60_000))
	for range 200 {
		f.ask(0, "s", 1)
	}
	f.move(1)
	require.Greater(t, f.heldBy(0), int64(20))
	f.now += 247
	require.Positive(t, f.heldBy(0))
	f.now++
	require.Zero(t, f.heldBy(0))
	before := f.store.exchanges.Load()
	require.True(t, f.ask(0, "s", 1).Allowed)
	require.Equal(t, before+1, f.store.exchanges.Load())
	f.move(300)
	require.EqualValues(t, 201, f.used("s"), "and the rest was returned")
}

// An instance that stops returns all units that it holds. If it crashes, exactly those units are
// stranded, until the window is over.
func TestLeasesOfAStoppedInstance(t *testing.T) {
	f := newFleet(t, 2, leasedRule("api", limit.FixedWindow, 1_000, 60_000))
	admitted := f.checkUntilLeased(0, "s")
	f.instances[0].Close()
	require.Equal(t, admitted, f.used("s"))

	f.start(0)
	admitted += f.checkUntilLeased(0, "s")
	_, charged := f.instances[0].LeaseHeld()
	require.Positive(t, charged)
	require.LessOrEqual(t, charged, int64(250))
	f.start(0) // it crashed
	for f.ask(1, "s", 1).Allowed {
		admitted++
	}
	require.Equal(t, 1_000-charged, admitted)
	f.move(60_000)
	for range 1_000 {
		require.True(t, f.ask(1, "s", 1).Allowed, "the next window has its full quota")
	}
	require.False(t, f.ask(1, "s", 1).Allowed)
}

// A reset, another limit, another consistency and another rule take effect with the next check.
func TestLeasesFollowChanges(t *testing.T) {
	rule := leasedRule("api", limit.FixedWindow, 1_000, 60_000)
	f := newFleet(t, 1, rule)
	f.checkUntilLeased(0, "s")
	_, _, err := f.instances[0].Reset(context.Background(), f.policy, nil, check.Request{Subject: "s"})
	require.NoError(t, err)
	require.Zero(t, f.heldBy(0))
	require.True(t, f.ask(0, "s", 1).Allowed)
	require.EqualValues(t, 1, f.used("s")-f.heldBy(0), "counted again from zero")
	f.move(200)
	require.EqualValues(t, 1, f.used("s"), "nothing is returned to a new counter")

	f.checkUntilLeased(0, "s")
	used := f.used("s")
	rule.Limit = used // together with the units held, nothing remains
	f.use(rule)
	d := f.ask(0, "s", 1)
	require.False(t, d.Allowed)
	require.Equal(t, used, d.Rules[0].Limit)

	rule.Limit, rule.Consistency = 1_000, limit.Strict
	f.use(rule)
	before := f.store.exchanges.Load()
	for range 10 {
		require.True(t, f.ask(0, "s", 1).Allowed)
	}
	require.Equal(t, before+10, f.store.exchanges.Load())
}

// The units that an instance holds return when it scales their counter, by the same ratio.
func TestLeasesOfAScaledCounter(t *testing.T) {
	f := newFleet(t, 1)
	plans := []check.PlanData{
		{Slug: "large", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 10_000}}},
		{Slug: "small", Limits: map[string]limit.Limit{"api": {Limit: 1_000}}},
	}
	rules := []limit.Rule{leasedRule("api", limit.FixedWindow, 10_000, 60_000)}
	policy, err := check.CompilePolicy(f.keys, fleetTenant, check.PolicyData{Slug: "t", Rules: rules, Plans: plans})
	require.NoError(t, err)
	f.policy = policy
	asked := f.checkUntilLeased(0, "s")
	for f.heldBy(0) < 40 { // more than the roundings
		f.move(1)
		for range 10 {
			require.True(t, f.ask(0, "s", 1).Allowed)
			asked++
		}
	}
	f.move(1)
	f.policy.AddSubject(check.SubjectData{Subject: "s", Plan: "small"})
	require.NoError(t, f.instances[0].Checker.Amend(t.Context(), f.policy, check.CounterChange{ID: 1, Subject: "s", From: "large", To: "small"}))
	require.Zero(t, f.heldBy(0))
	used := f.used("s")
	require.GreaterOrEqual(t, 10*used, asked)
	require.LessOrEqual(t, 10*used, asked+30, "each of two leases and the count are rounded")
}

// A check is answered from memory only if all its rules are leased and its cost is not 0.
func TestChecksThatAreNotLeased(t *testing.T) {
	strict := leasedRule("strict", limit.FixedWindow, 1_000_000, 60_000)
	strict.Resource, strict.Consistency = "both", limit.Strict
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 1_000_000, 60_000), strict)
	f.checkUntilLeased(0, "s")
	held := f.heldBy(0)
	for _, req := range []check.Request{
		{Subject: "s", Resource: "both", Cost: 1},
		{Subject: "s", Resource: "r", Cost: 0},
		{Subject: "s", Resource: "r", Cost: 1, DryRun: true},
		{Subject: "s", Resource: "r", Cost: 1, Explain: true},
	} {
		before := f.store.exchanges.Load()
		require.True(t, f.check(0, req).Allowed)
		require.Equal(t, before+1, f.store.exchanges.Load(), "%+v", req)
	}
	require.Equal(t, held, f.heldBy(0))
	before := f.store.exchanges.Load()
	require.True(t, f.ask(0, "s", 1).Allowed)
	require.Equal(t, before, f.store.exchanges.Load())
}

// An answer from memory has the same fields as any other answer.
func TestLeasedAnswer(t *testing.T) {
	f := newFleet(t, 2, leasedRule("api", limit.FixedWindow, 1_000, 60_000))
	asked := f.checkUntilLeased(0, "s")
	f.move(10)
	d := f.ask(0, "s", 2)
	require.EqualValues(t, 1, f.metric(0, "weir_checks_leased_total"))
	require.True(t, d.Allowed && !d.Degraded)
	require.Equal(t, 0, d.Deciding)
	r := d.Rules[0]
	require.Equal(t, 1_000-asked-2, r.Remaining)
	require.Equal(t, fleetStart+60_000, d.NowMS+r.ResetAfterMS)
	require.Equal(t, f.now, d.NowMS)
	require.Zero(t, r.RetryAfterMS)
	require.EqualValues(t, 1_000, r.Quota)
	require.Equal(t, "rule", r.Source)
	f.ask(1, "s", 100)
	require.Equal(t, 1_000-asked-3, f.ask(0, "s", 1).Rules[0].Remaining, "usage of other instances is visible after the next prefetch")
}

// If Redis is unavailable, the units held are granted until the lease ends. After that, each rule's
// on_unavailable answers.
func TestLeasesWithoutTheStore(t *testing.T) {
	rule := leasedRule("api", limit.FixedWindow, 10_000, 60_000)
	rule.OnUnavailable = limit.Deny
	f := newFleet(t, 1, rule)
	for range 100 {
		f.ask(0, "s", 1)
	}
	held := f.heldBy(0)
	require.Positive(t, held)
	f.store.fail.Store(true)
	for range held {
		d := f.ask(0, "s", 1)
		require.True(t, d.Allowed && !d.Degraded)
	}
	d := f.ask(0, "s", 1)
	require.False(t, d.Allowed)
	require.Equal(t, check.CountersUnavailable, d.Code)
	require.Equal(t, int64(1), d.Cost)
}

// A cost that is greater than the units held is not denied because of units of the same instance.
func TestGreatCostIsNotDeniedByOwnLease(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.SlidingWindowBuckets, 1_000, 60_000))
	asked := f.checkUntilLeased(0, "s")
	require.True(t, f.ask(0, "s", 1_000-asked).Allowed)
	require.False(t, f.ask(0, "s", 1).Allowed)
}

// A rule in shadow mode can be leased, and never denies.
func TestLeasedShadow(t *testing.T) {
	shadow := leasedRule("shadow", limit.FixedWindow, 40, 60_000)
	shadow.Mode = limit.Shadow
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 1_000, 60_000), shadow)
	would := 0
	for range 100 {
		d := f.ask(0, "s", 1)
		require.True(t, d.Allowed)
		if d.Rules[1].Allowed {
			would++
		}
	}
	require.Equal(t, 40, would)
	require.Positive(t, f.metric(0, "weir_checks_leased_total"))
}

// In a batch, the first check may prefetch the units for the checks after it.
func TestLeasedBatch(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 150, 60_000))
	allowed := 0
	for range 4 {
		reqs := make([]check.Request, 50)
		for i := range reqs {
			reqs[i] = check.Request{Subject: "s", Resource: "r", Cost: 1}
		}
		ds, err := f.instances[0].Check(context.Background(), f.policy, reqs)
		require.NoError(t, err)
		for i := range ds {
			if ds[i].Allowed {
				allowed++
			}
		}
		f.move(10)
	}
	require.Equal(t, 150, allowed)
}

// Three instances with 64 clients each, over one Redis, allow at most the limit while they lease,
// and the full limit once they have returned the units that they held.
func TestLeasesOverRedis(t *testing.T) {
	const lim = 6_000
	for _, a := range leasableAlgorithms() {
		rule := leasedRule("api", a, lim, 366*86_400_000)
		if a == limit.SlidingWindowBuckets {
			rule.Precision = rule.Window.Duration
		}
		keys := check.NewKeys([16]byte([]byte(enginetest.Prefix())[:16]))
		policy, err := check.CompilePolicy(keys, fleetTenant, check.PolicyData{Rules: []limit.Rule{rule}})
		require.NoError(t, err)
		counters := redisengine.New(redisClient(t), redisengine.Options{Deadline: testenv.RedisTimeout})
		var admitted, leased atomic.Int64
		var instances []*leasing
		var clients sync.WaitGroup
		for range 3 {
			c := newInstance(keys, counters)
			instances = append(instances, c)
			for range 64 {
				clients.Go(func() {
					for range 40 {
						ds, err := c.Check(context.Background(), policy, []check.Request{{Subject: "s", Resource: "r", Cost: 1}})
						switch {
						case err != nil || ds[0].Degraded:
							t.Error("not decided by Redis", err, ds)
							return
						case ds[0].Allowed:
							admitted.Add(1)
							if toGive, _ := c.LeaseHeld(); toGive > 0 {
								leased.Add(1)
							}
						}
					}
				})
			}
		}
		clients.Wait()
		require.LessOrEqual(t, admitted.Load(), int64(lim), a)
		require.Positive(t, leased.Load(), a)
		for _, c := range instances {
			c.Close()
		}
		c := newInstance(keys, counters)
		defer c.Close()
		rest := int64(0)
		for cost := int64(lim); cost > 0; {
			ds, err := c.Check(context.Background(), policy, []check.Request{{Subject: "s", Resource: "r", Cost: cost}})
			require.NoError(t, err)
			if ds[0].Allowed {
				rest += cost
			} else {
				cost /= 2
			}
		}
		if a.Bucket() { // units that other instances charged later stay in the bucket and drain
			require.LessOrEqual(t, admitted.Load()+rest, int64(lim+1), a)
			continue
		}
		require.Equal(t, int64(lim), admitted.Load()+rest, a)
	}
}

// The number of leases is limited, however many subjects are used. All of them are removed shortly
// after.
func TestLeasesAreBounded(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 1_000, 60_000))
	for subject := range 17_000 {
		for range 6 {
			require.True(t, f.ask(0, strconv.Itoa(subject), 1).Allowed)
		}
	}
	require.LessOrEqual(t, f.instances[0].LeaseSets(), 1<<14)
	require.Greater(t, f.instances[0].LeaseSets(), 15_000)
	f.move(250)
	require.Zero(t, f.instances[0].LeaseSets())
	require.Zero(t, f.metric(0, "weir_lease_units_held"))
	require.Positive(t, f.metric(0, "weir_lease_units_returned_total"))
}

func redisClient(t *testing.T) redis.UniversalClient {
	t.Helper()
	client, err := redisengine.NewClient(testenv.RedisURL(t), redisengine.WithTimeout(testenv.RedisTimeout))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}
