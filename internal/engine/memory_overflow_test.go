package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// overflowRig is a memory engine whose time stands until it is moved, and which counts what each
// key was allowed.
type overflowRig struct {
	t       *testing.T
	now     int64
	engine  *Memory
	allowed map[string]int64
	last    limit.Verdict
}

func newOverflowRig(t *testing.T, o MemoryOptions) *overflowRig {
	r := &overflowRig{t: t, now: engineStart, allowed: map[string]int64{}}
	o.Clock = func() int64 { return r.now }
	r.engine = NewMemory(o)
	return r
}

func (r *overflowRig) ask(tenant limit.TenantID, key string, n limit.Numbers) bool {
	call := &Call{Tenant: tenant, Cost: 1, Counters: []Counter{{Key: key, Numbers: n}}}
	r.engine.Evaluate(context.Background(), call)
	require.NoError(r.t, call.Err)
	r.last = call.Outcome.Verdicts[0]
	if call.Outcome.Allowed {
		r.allowed[key]++
		require.LessOrEqual(r.t, r.allowed[key], n.Limit, "no key is allowed more than its limit")
	}
	return call.Outcome.Allowed
}

// overflows returns how many overflow counters there are, and how many of a tenant.
func (r *overflowRig) overflows(tenant limit.TenantID) (all, own int64) {
	for i := range r.engine.shards {
		for key := range r.engine.shards[i].overflow {
			all++
			if key.tenant == tenant {
				own++
			}
		}
	}
	require.Equal(r.t, all, r.engine.overflow.Load())
	return all, own
}

// tidy lets a timer pass over all shards.
func (r *overflowRig) tidy(away bool) {
	for range memoryShards {
		r.engine.tidy(func(string) bool { return away })
	}
}

// A tenant with very many windows must not use up the memory of an instance: its overflow counters
// are bounded, those of all tenants are, and a tenant that comes late still gets some.
func TestOverflowCountersAreBounded(t *testing.T) {
	r := newOverflowRig(t, MemoryOptions{MaxPerTenant: 1, MaxCounters: 1_000, MaxOverflow: 2_000, MaxOverflowPerTenant: 200})
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 2}
	flood := func(tenant limit.TenantID) (own int64) {
		for rule := range 100 {
			for subject := range 20 {
				n.WindowMS = 3_600_000 + int64(rule)*1_000
				for r.ask(tenant, fmt.Sprint(tenant, rule, subject), n) {
				}
			}
		}
		_, own = r.overflows(tenant)
		return own
	}
	require.Equal(t, int64(200), flood(uuid.New()))
	require.True(t, r.last.Uncounted, "there is no counter to share")
	require.Positive(t, r.last.RetryAfterMS)
	require.Equal(t, int64(180), flood(uuid.New()), "a ninth of what is free")
	for range 20 {
		require.Positive(t, flood(uuid.New()))
	}
	all, _ := r.overflows(uuid.Nil)
	require.Less(t, all, int64(2_000))

	// Reading is not denied, and overage never is.
	full := uuid.New()
	flood(full)
	n.WindowMS = 7_200_000
	for subject := range 64 { // of each shard
		call := &Call{Tenant: full, Counters: []Counter{{Key: fmt.Sprint("read", subject), Numbers: n}}}
		r.engine.Evaluate(context.Background(), call)
		require.True(t, call.Outcome.Allowed)
		call.Cost, call.Counters[0].Numbers.Overage = 5, true
		r.engine.Evaluate(context.Background(), call)
		require.True(t, call.Outcome.Allowed)
		require.Zero(t, call.Outcome.Verdicts[0].Overage)
		call.Cost, call.Counters[0].Numbers.Overage, call.Counters[0].Shadow = 1, false, true
		r.engine.Evaluate(context.Background(), call)
		require.True(t, call.Outcome.Allowed, "a rule in shadow mode never denies")
	}
}

// A few tenants must not take all counters: what each may have depends on what is free.
func TestTenantsShareTheBounds(t *testing.T) {
	b := bounds{all: 1_000, perTenant: 100}
	total := int64(0)
	var got []int64
	for range 50 {
		own := int64(0)
		for !b.reached(own, total) {
			own, total = own+1, total+1
		}
		got = append(got, own)
	}
	require.Equal(t, []int64{100, 90, 81, 73}, got[:4])
	require.Positive(t, got[49], "a late one gets some")
	require.LessOrEqual(t, total, b.all)
	alone := bounds{all: 10, perTenant: 10}
	require.False(t, alone.reached(9, 9))
	require.True(t, alone.reached(10, 10))
}

// A key whose counter changes - a shared one becomes finer, or it gets its own - must not lose the
// units that it has used.
func TestOverflowKeepsUnits(t *testing.T) {
	for _, algorithm := range limit.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			n := limit.Numbers{Algorithm: algorithm, Limit: 5, WindowMS: 3_600_000}
			switch {
			case algorithm.Bucket():
				n.Burst = 5
			case algorithm == limit.SlidingWindowBuckets:
				n.PrecisionMS = 60_000
			}
			short := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 5, WindowMS: 10_000}
			r := newOverflowRig(t, MemoryOptions{MaxPerTenant: 1, MaxCounters: 100, MaxOverflow: 100, MaxOverflowPerTenant: 4})
			tenant := uuid.New()
			require.True(t, r.ask(tenant, "own", short))
			require.True(t, r.ask(tenant, "fine", short))
			require.True(t, r.ask(tenant, "finer", short))
			for range 5 {
				require.True(t, r.ask(tenant, "key", n))
			}
			all, _ := r.overflows(tenant)
			require.Equal(t, int64(3), all)
			require.False(t, r.ask(tenant, "key", n), "it shares a coarse counter")

			for i := range r.engine.shards { // the fine ones expire
				for _, kept := range r.engine.shards[i].overflow {
					if kept.overflow.key.windowMS == short.WindowMS {
						kept.expires = r.now
					}
				}
			}
			r.tidy(true)
			require.False(t, r.ask(tenant, "key", n), "a fine counter begins with the coarse one")
			require.NoError(t, r.engine.Reset(context.Background(), Counter{Key: "own"}))
			require.False(t, r.ask(tenant, "key", n), "so does its own")
			require.Equal(t, int64(5), r.allowed["key"])
			r.now += 3 * n.WindowMS
			r.allowed = map[string]int64{}
			require.True(t, r.ask(tenant, "key", n), "until the window ends")
		})
	}
}

// A tenant's overflow counters must not stay in memory after the outage, nor expired counters if
// nothing is counted locally any more. During an outage a used up limit stays used up.
func TestOutageLeavesNoMemory(t *testing.T) {
	r := newOverflowRig(t, MemoryOptions{MaxPerTenant: 10, MaxCounters: 100})
	tenant := uuid.New()
	year := limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 1, WindowMS: limit.MaxWindowMS}
	minute := limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 1, WindowMS: 60_000}
	for i := range 10 {
		require.True(t, r.ask(tenant, fmt.Sprint(i), minute))
	}
	for i := range 50 {
		r.ask(tenant, fmt.Sprint("shared", i), year)
	}
	all, _ := r.overflows(tenant)
	require.Positive(t, all)
	r.now += 60_000 + expirySlackMS
	r.tidy(false)
	require.Zero(t, r.engine.Len(), "expired")
	require.Equal(t, all, r.engine.overflow.Load(), "the store may fail again")
	r.now += overflowIdleMS
	r.tidy(true)
	require.Equal(t, all, r.engine.overflow.Load(), "it has not returned")
	require.False(t, r.ask(tenant, "shared0", year))
	r.tidy(false)
	require.Zero(t, r.engine.overflow.Load())
	require.Empty(t, r.engine.tenants)
	for i := range r.engine.shards {
		require.Zero(t, cap(r.engine.shards[i].all))
	}
}
