package redis_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

var (
	seed      = flag.Uint64("seed", 1, "the random sequences to run are those of this seed")
	sequences = flag.Int("sequences", defaultSequences, "random sequences for each algorithm")
)

// A customer must get the same answer, to the millisecond and the unit, from Redis, from an
// instance without Redis, and from the specification.
func TestRandomSequences(t *testing.T) {
	for _, a := range limit.Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			redis := redisengine.New(redisClient(t), redisOptions())
			memory := engine.NewMemory(engine.MemoryOptions{})
			for first := 0; first < *sequences; first += 20 {
				compareSequences(t, a, first, min(20, *sequences-first), redis, memory)
			}
		})
	}
}

func compareSequences(t *testing.T, a limit.Algorithm, first, count int, redis, memory engine.Engine) {
	ctx := context.Background()
	var all [3][]*engine.Call // of the same sequences: by Redis, in memory, by the reference
	var sequence []int        // the sequence of each call
	keys := map[string]engine.Counter{}
	prefix := enginetest.Prefix()
	for i := range count {
		r := rand.New(rand.NewPCG(*seed, uint64(a)<<32|uint64(first+i)))
		for _, c := range enginetest.RandomCalls(r, a, fmt.Sprintf("%s%d:", prefix, i)) {
			sequence = append(sequence, first+i)
			for e := range all {
				call := *c
				all[e] = append(all[e], &call)
			}
			for _, counter := range c.Counters {
				keys[counter.OwnKey()] = counter
			}
		}
	}
	redis.Evaluate(ctx, all[0]...)
	memory.Evaluate(ctx, all[1]...)
	enginetest.NewReference().Evaluate(ctx, all[2]...)
	for i, want := range all[2] {
		for e, name := range []string{"redis", "memory"} {
			got := all[e][i]
			if got.Err == nil && same(want.Outcome, got.Outcome) {
				continue
			}
			require.NoError(t, got.Err, "%s, seed %d, sequence %d: %+v", name, *seed, sequence[i], got)
			require.Equal(t, want.Outcome, got.Outcome, "%s, seed %d, sequence %d, call %d of the batch: %+v",
				name, *seed, sequence[i], i, want)
		}
	}
	used := slices.Collect(maps.Values(keys))
	require.NoError(t, redis.Reset(ctx, used...))
	require.NoError(t, memory.Reset(ctx, used...))
}

// same is a faster require.Equal for the hundreds of thousands of equal answers.
func same(a, b engine.Outcome) bool {
	return a.NowMS == b.NowMS && a.Allowed == b.Allowed && slices.Equal(a.Verdicts, b.Verdicts)
}
