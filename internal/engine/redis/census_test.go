package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// censusStack has a Redis of its own, and instances that bound the counters of tenants.
type censusStack struct {
	t      testing.TB
	server *testenv.Redis
	keys   check.Keys
	bounds sync.Map // by tenant
	n      int
}

type instance struct {
	*redisengine.Engine
	census *redisengine.Census
}

func newCensusStack(t testing.TB) *censusStack {
	return &censusStack{t: t, server: testenv.StartRedis(t), keys: check.NewKeys([16]byte{7}), n: 1}
}

func (s *censusStack) instance() instance {
	client := clientOf(s.t, s.server.URL)
	census := redisengine.NewCensus(redisengine.CensusOptions{
		Client: client, Prefix: s.keys.Prefix, Instances: func() int { return s.n },
		Bound: func(tenant limit.TenantID) (int64, bool) {
			bound, known := s.bounds.Load(tenant)
			if !known {
				return 0, true
			}
			return bound.(int64), true
		},
	})
	options := redisOptions()
	options.Census = census
	return instance{redisengine.New(client, options), census}
}

func (s *censusStack) tenant(bound int64) limit.TenantID {
	tenant := limit.TenantID(uuid.New())
	s.bounds.Store(tenant, bound)
	return tenant
}

// counter returns a counter of a subject under a rule, with names as those of package check.
func (s *censusStack) counter(tenant limit.TenantID, subject uint64, n limit.Numbers) engine.Counter {
	r := rand.New(rand.NewPCG(subject, 1))
	rule := rand.New(rand.NewPCG(uint64(n.Algorithm), uint64(n.WindowMS)))
	id := engine.KeyName{Low: rule.Uint64() & (1<<40 - 1), High: rule.Uint64() & (1<<32 - 1)}
	values := engine.KeyName{Low: r.Uint64() & (1<<40 - 1), High: r.Uint64() & (1<<32 - 1)}
	return engine.Counter{Key: string(values.Plus(id).Append([]byte(s.keys.Prefix(tenant)))), ID: string(id.Append(nil)), Numbers: n}
}

func (s *censusStack) call(tenant limit.TenantID, cost int64, counters ...engine.Counter) *engine.Call {
	return &engine.Call{Tenant: tenant, Cost: cost, Counters: counters}
}

func (i instance) admits(t testing.TB, call *engine.Call) bool {
	i.Evaluate(context.Background(), call)
	require.NoError(t, call.Err)
	return call.Outcome.Allowed
}

// flood checks so many new subjects.
func (s *censusStack) flood(i instance, tenant limit.TenantID, from, subjects int, n limit.Numbers) {
	const batch = 500
	for first := from; first < from+subjects; first += batch {
		calls := make([]*engine.Call, min(batch, from+subjects-first))
		for j := range calls {
			calls[j] = s.call(tenant, 1, s.counter(tenant, uint64(first+j), n))
		}
		i.Evaluate(context.Background(), calls...)
		for _, call := range calls {
			require.NoError(s.t, call.Err)
		}
	}
}

// keysOf returns how many keys of a tenant are in Redis, and how many of them are lists of
// counters.
func (s *censusStack) keysOf(tenant limit.TenantID) (keys, lists int) {
	for _, key := range allKeys(s.t.(*testing.T), clientOf(s.t, s.server.URL), "w{") {
		if strings.HasPrefix(key, s.keys.Prefix(tenant)) {
			keys++
			if strings.HasPrefix(key, s.keys.Prefix(tenant)+"n"+string(tenant[:])) {
				lists++
			}
		}
	}
	return keys, lists
}

var aYear = limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 10, WindowMS: 365 * 24 * 3_600_000}

// One connection that checks four times as many different subjects, under a rule with a long
// window, leaves at most the tenant's number of keys in Redis. Other tenants are not affected.
func TestCensusBoundsKeys(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { i.census.Run(ctx) })
	defer all.Wait()
	defer cancel()
	first := 0
	for _, bound := range []int64{1000, 10_000, 25_000} {
		tenant, other := s.tenant(bound), s.tenant(bound)
		for keys := 0; keys <= int(bound)/2; { // the bound can be used, once the census has looked
			s.flood(i, tenant, first, 4*int(bound), aYear)
			first += 4 * int(bound) // the names of different tenants differ
			keys, _ = s.keysOf(tenant)
			require.LessOrEqual(t, keys, int(bound))
		}
		s.flood(i, other, 0, 200, aYear)
		keys, lists := s.keysOf(other)
		require.Equal(t, 200, keys-lists, "each has its own counter")
	}
}

// Two instances that do not know of each other's calls stay within the bound together.
func TestCensusOfTwoInstances(t *testing.T) {
	s := newCensusStack(t)
	s.n = 2
	a, b := s.instance(), s.instance()
	const bound = 5000
	tenant := s.tenant(bound)
	for round := range 40 {
		s.flood(a, tenant, round*1000, 500, aYear)
		s.flood(b, tenant, round*1000+500, 500, aYear)
		a.census.Look(t.Context())
		b.census.Look(t.Context())
		keys, _ := s.keysOf(tenant)
		require.LessOrEqual(t, keys, bound)
	}
	keys, _ := s.keysOf(tenant)
	require.Greater(t, keys, bound/2)
}

// A subject with counters of its own gets exactly its limit while its tenant is full, under every
// algorithm, with penalties, in groups, and in calls for several subjects. New subjects share
// counters, and none gets more than the limit.
func TestCensusKeepsLimits(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	const lim = 10
	type subject struct {
		name string
		call func(subject uint64) *engine.Call
	}
	tenant := s.tenant(1000)
	var kinds []subject
	for _, a := range limit.Algorithms {
		n := numbersOf(a, lim)
		if a == limit.FixedWindow || a == limit.SlidingWindowCounter || a == limit.SlidingWindowBuckets {
			n.WindowMS, n.PrecisionMS = 24*3_600_000, n.PrecisionMS*3600 // no window ends during the test
		}
		if n.Algorithm.Bucket() {
			n.WindowMS = 300 * 24 * 3_600_000
		}
		kinds = append(kinds, subject{a.String() + " with a penalty", func(subject uint64) *engine.Call { return s.call(tenant, 1, s.counter(tenant, subject, n)) }})
		without := n
		without.PenaltyMS = 0
		kinds = append(kinds, subject{a.String(), func(subject uint64) *engine.Call { return s.call(tenant, 1, s.counter(tenant, subject, without)) }})
	}
	group := groupOf("", lim)
	kinds = append(kinds, subject{"group", func(subject uint64) *engine.Call {
		own := s.counter(tenant, subject, limit.Numbers{})
		name := engine.ReadName(own.Key[len(own.Key)-9:]).Minus(engine.ReadName(own.ID))
		counters := append([]engine.Counter{}, group[2])
		last := group[2]
		last.ID, last.Numbers.WindowMS, last.Numbers.Limit = "0009-rule", 24*3_600_000, 2*lim
		counters[0].Numbers.WindowMS, counters[0].Numbers.Limit = 12*3_600_000, lim
		counters = append(counters, last)
		for j := range counters {
			counters[j].Key = string(name.Append([]byte(s.keys.Prefix(tenant))))
		}
		return s.call(tenant, 1, counters...)
	}})
	kinds = append(kinds, subject{"each its own cost", func(subject uint64) *engine.Call {
		call := s.call(tenant, 1, s.counter(tenant, subject, aYear), s.counter(tenant, subject+1_000_000, aYear))
		call.PerCounter = true
		for j := range call.Counters {
			call.Counters[j].Cost = 1
		}
		return call
	}})
	const used = 4
	for k, kind := range kinds {
		for range used {
			require.True(t, i.admits(t, kind.call(uint64(k+1)<<32)), kind.name)
		}
	}
	s.flood(i, tenant, 0, 2000, aYear)
	i.census.Look(t.Context())
	s.flood(i, tenant, 2000, 2000, aYear)
	i.census.Look(t.Context())
	require.LessOrEqual(t, i.census.Left(tenant), int64(0))
	before, _ := s.keysOf(tenant)
	for k, kind := range kinds {
		look := kind.call(uint64(k+1) << 32)
		look.DryRun = true
		require.True(t, i.admits(t, look), kind.name)
		require.EqualValues(t, lim-used-1, look.Outcome.Verdicts[0].Remaining, kind.name)
		admitted := used
		for range 2 * lim {
			if i.admits(t, kind.call(uint64(k+1)<<32)) {
				admitted++
			}
		}
		require.Equal(t, lim, admitted, kind.name)
		admitted = 0
		for range 2 * lim { // a new one
			if i.admits(t, kind.call(uint64(k+1)<<32+1)) {
				admitted++
			}
		}
		require.LessOrEqual(t, admitted, lim, kind.name)
	}
	after, _ := s.keysOf(tenant)
	require.LessOrEqual(t, after-before, 5*len(kinds), "the counters of new subjects are shared")
	total := 0
	for subject := range 500 {
		for range 3 {
			if i.admits(t, s.call(tenant, 1, s.counter(tenant, uint64(subject)+1<<40, aYear))) {
				total++
			}
		}
	}
	require.LessOrEqual(t, total, lim*int(i.census.Spares(tenant)))
}

// When counters expire, or Redis has lost them, new subjects get counters of their own again.
func TestCensusFreesRoom(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(1000)
	alive := func() int64 {
		i.census.Look(t.Context())
		n, err := i.census.Alive(t.Context(), tenant, 1000)
		require.NoError(t, err)
		return n
	}
	s.flood(i, tenant, 0, 500, aYear)
	require.LessOrEqual(t, alive(), int64(500))
	s.flood(i, tenant, 0, 5000, aYear)
	alive()
	s.flood(i, tenant, 0, 5000, aYear)
	require.InDelta(t, 875, alive(), 1)
	require.LessOrEqual(t, i.census.Left(tenant), int64(0))

	require.NoError(t, clientOf(t, s.server.URL).FlushAll(t.Context()).Err())
	require.Zero(t, alive())
	require.EqualValues(t, 875, i.census.Left(tenant))

	past := s.call(tenant, 1, s.counter(tenant, 1, limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 10, WindowMS: 1000}))
	past.NowMS = time.Now().Add(-time.Hour).UnixMilli()
	require.True(t, i.admits(t, past))
	require.Zero(t, alive(), "it has expired")
	require.EqualValues(t, 875, i.census.Left(tenant))
}

// The estimate of a large tenant is within a few percent, and instances agree on it.
func TestCensusEstimate(t *testing.T) {
	s := newCensusStack(t)
	a, b := s.instance(), s.instance()
	const bound, subjects = 1_000_000, 100_000
	tenant := s.tenant(bound)
	s.flood(a, tenant, 0, subjects, aYear)
	a.census.Look(t.Context())
	for _, i := range []instance{a, b} {
		n, err := i.census.Alive(t.Context(), tenant, bound)
		require.NoError(t, err)
		require.InEpsilon(t, subjects, n, 0.15)
	}
	keys, lists := s.keysOf(tenant)
	require.Equal(t, 1, lists)
	require.Equal(t, subjects+1, keys)
}

// A bound that the operator changes is used from the next look on.
func TestCensusBoundChanges(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(1000)
	s.flood(i, tenant, 0, 1000, aYear)
	i.census.Look(t.Context())
	s.bounds.Store(tenant, int64(5000))
	i.census.Look(t.Context())
	require.Greater(t, i.census.Left(tenant), int64(3000))
	s.bounds.Store(tenant, int64(1000))
	i.census.Look(t.Context())
	require.LessOrEqual(t, i.census.Left(tenant), int64(875))
}

// What the Census adds to a call allocates nothing.
func TestCensusAllocatesNothing(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(1_000_000)
	call := s.call(tenant, 1, s.counter(tenant, 1, aYear), s.counter(tenant, 2, aYear))
	require.True(t, i.admits(t, call))
	count := i.census.Count()
	count(call)
	require.Zero(t, testing.AllocsPerRun(1000, func() { count(call) }))
}

// BenchmarkEvaluateRedisCensus is BenchmarkEvaluateRedis with and without a Census.
func BenchmarkEvaluateRedisCensus(b *testing.B) {
	s := newCensusStack(b)
	with := s.instance()
	tenant := s.tenant(1_000_000)
	without := redisengine.New(clientOf(b, s.server.URL), redisOptions())
	for _, counters := range []int{1, 3, 10} {
		for name, eng := range map[string]engine.Engine{"with": with, "without": without} {
			b.Run(fmt.Sprintf("counters=%d/%s", counters, name), func(b *testing.B) {
				made := make([][]engine.Counter, 10_000)
				for subject := range made {
					for c := range counters {
						n := numbersOf(limit.SlidingWindowCounter, 1_000_000)
						n.PenaltyMS, n.WindowMS = 0, int64(60_000*(c+1))
						made[subject] = append(made[subject], s.counter(tenant, uint64(subject), n))
					}
				}
				b.ReportAllocs()
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					call := engine.Call{Tenant: tenant, Cost: 1}
					for pb.Next() {
						call.Counters = append(call.Counters[:0], made[rand.IntN(len(made))]...)
						eng.Evaluate(context.Background(), &call)
					}
				})
			})
		}
	}
}
