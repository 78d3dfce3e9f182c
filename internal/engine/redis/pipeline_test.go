package redis_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// commandCalls returns how often a server has run a command, by its own statistics.
func commandCalls(t *testing.T, client redis.UniversalClient, command string) int64 {
	t.Helper()
	info, err := client.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		if rest, found := strings.CutPrefix(line, "cmdstat_"+command+":calls="); found {
			calls, _, _ := strings.Cut(rest, ",")
			n, err := strconv.ParseInt(calls, 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	return 0
}

// hotCounters returns counters of every algorithm for which equal calls are combined, with the
// given limit.
func hotCounters(prefix string, lim int64) []engine.Counter {
	var counters []engine.Counter
	for _, a := range limit.Algorithms {
		if a != limit.SlidingWindowLog && a != limit.SlidingWindowBuckets {
			n := numbersOf(a, lim)
			n.PenaltyMS = 0
			counters = append(counters, engine.Counter{Key: prefix + a.String(), Numbers: n})
		}
	}
	return counters
}

// If 64 clients check one subject at once, Redis reads and writes its counter once, and exactly the
// limit is allowed.
func TestEqualCallsAreOne(t *testing.T) {
	server := testenv.StartRedis(t)
	client := clientOf(t, server.URL)
	eng := redisengine.New(client, redisOptions())
	for i, c := range hotCounters(enginetest.Prefix(), 100) {
		calls := make([]*engine.Call, 64)
		for j := range calls {
			calls[j] = &engine.Call{Cost: 3, Counters: []engine.Counter{c}}
		}
		eng.EvaluateTogether(calls...)
		for j, call := range calls {
			require.NoError(t, call.Err)
			require.Equal(t, j < 33, call.Outcome.Allowed, "call %d", j)
			require.EqualValues(t, max(1, 100-3*(j+1)), call.Outcome.Verdicts[0].Remaining, "as if they were sequential")
		}
		require.EqualValues(t, i+1, commandCalls(t, client, "mget"))
		require.EqualValues(t, i+1, commandCalls(t, client, "set"))
	}
}

// Calls that share a pipeline are decided in some sequential order, which keeps the order of the
// calls of each request. Another engine that gets the calls in that order gives the same answers.
func TestTogetherIsInOrder(t *testing.T) {
	ctx := context.Background()
	eng := redisengine.New(redisClient(t), redisOptions())
	for round := range 300 {
		r := rand.New(rand.NewPCG(7, uint64(round)))
		memory := engine.NewMemory(engine.MemoryOptions{})
		counters := hotCounters(enginetest.Prefix(), 1+r.Int64N(40))
		log := engine.Counter{Key: counters[0].Key + "log", Numbers: numbersOf(limit.SlidingWindowLog, 1+r.Int64N(40))}
		now := int64(1_704_672_000_000) + r.Int64N(100_000)
		for range 3 {
			now += r.Int64N(40_000)
			calls := make([]*engine.Call, 1+r.IntN(60))
			for i := range calls {
				from := r.IntN(len(counters))
				call := &engine.Call{NowMS: now, Cost: r.Int64N(4), DryRun: oneOf(r, 20)}
				call.Counters = slices.Clone(counters[from:min(len(counters), from+1+r.IntN(2))])
				call.Counters[0].Shadow = oneOf(r, 4)
				if oneOf(r, 6) {
					call.Counters = append(call.Counters, log)
				}
				calls[i] = call
			}
			order := eng.EvaluateTogether(calls...)
			require.ElementsMatch(t, calls, order)
			again := make([]*engine.Call, len(order))
			for i, c := range order {
				same := *c
				same.Outcome = engine.Outcome{}
				again[i] = &same
			}
			memory.Evaluate(ctx, again...)
			for i, c := range order {
				require.NoError(t, c.Err)
				require.Equal(t, again[i].Outcome, c.Outcome, "round %d: %+v", round, c)
			}
		}
	}
}

func oneOf(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// The calls of one request are never reordered, whichever scripts decide them.
func TestRequestStaysInOrder(t *testing.T) {
	ctx := context.Background()
	eng, memory := redisengine.New(redisClient(t), redisOptions()), engine.NewMemory(engine.MemoryOptions{})
	r := rand.New(rand.NewPCG(8, 8))
	for range 100 {
		prefix := enginetest.Prefix()
		counters := hotCounters(prefix, 30)
		log := engine.Counter{Key: prefix + "log", Numbers: numbersOf(limit.SlidingWindowLog, 30)}
		var calls, same []*engine.Call
		for range 40 {
			call := engine.Call{NowMS: 1_704_672_000_123, Cost: 1 + r.Int64N(3), Counters: []engine.Counter{counters[r.IntN(3)]}}
			if oneOf(r, 3) {
				call.Counters = append(call.Counters, log)
			}
			other := call
			calls, same = append(calls, &call), append(same, &other)
		}
		eng.Evaluate(ctx, calls...)
		memory.Evaluate(ctx, same...)
		for i := range calls {
			require.NoError(t, calls[i].Err)
			require.Equal(t, same[i].Outcome, calls[i].Outcome, i)
		}
	}
}

// In a Cluster, a script can access only one slot. Tenants are in many slots, but still share
// pipelines.
func TestRedisCluster(t *testing.T) {
	ctx := context.Background()
	server := testenv.StartRedis(t, "cluster-enabled yes")
	plain := clientOf(t, server.URL)
	require.NoError(t, plain.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	require.Eventually(t, func() bool {
		info, err := plain.ClusterInfo(ctx).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, time.Minute, 10*time.Millisecond)
	addr := strings.TrimSuffix(strings.TrimPrefix(server.URL, "redis://"), "/0")
	client := clientOf(t, "redis://"+addr+"?addr="+addr)
	eng := redisengine.New(client, redisOptions())
	var calls []*engine.Call
	for tenant := range 20 {
		for _, c := range hotCounters("w{"+strconv.Itoa(tenant)+"}", 5) {
			for range 6 {
				calls = append(calls, &engine.Call{Cost: 1, Counters: []engine.Counter{c}})
			}
		}
	}
	eng.EvaluateTogether(calls...)
	for i, call := range calls {
		require.NoError(t, call.Err)
		require.Equal(t, i%6 < 5, call.Outcome.Allowed)
	}
	enginetest.Suite(t, eng)
}
