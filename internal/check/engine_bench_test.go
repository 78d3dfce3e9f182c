package check_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/testenv"
)

// benchmarkEvaluate asks for 10 000 subjects with 1, 3 and 10 counters a call.
func benchmarkEvaluate(b *testing.B, engine check.Engine) {
	prefix := checktest.Prefix()
	keys := make([]string, 10_000*10)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%022d", prefix, i)
	}
	for _, counters := range []int{1, 3, 10} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32) // 64 callers on two cores
			b.RunParallel(func(pb *testing.PB) {
				call := check.Call{Cost: 1}
				for pb.Next() {
					subject := rand.IntN(10_000)
					call.Counters = call.Counters[:0]
					for i := range counters {
						n := numbersOf(check.Algorithms[i%len(check.Algorithms)], 1_000)
						n.PenaltyMS = 0
						call.Counters = append(call.Counters, check.Counter{Key: keys[subject*10+i], Numbers: n})
					}
					engine.Evaluate(context.Background(), &call)
					if call.Err != nil {
						b.Error(call.Err)
					}
				}
			})
		})
	}
}

func BenchmarkEvaluateMemory(b *testing.B) {
	benchmarkEvaluate(b, check.NewMemoryEngine(check.MemoryOptions{MaxPerTenant: 200_000}))
}

func BenchmarkEvaluateRedis(b *testing.B) {
	benchmarkEvaluate(b, check.NewRedisEngine(redisClient(b), redisOptions()))
}

func BenchmarkEvaluateRedisPlain(b *testing.B) {
	o := redisOptions()
	o.Plain = true
	client, err := check.NewRedisClient(testenv.RedisURL(b), check.WithPoolSize(128))
	require.NoError(b, err)
	defer func() { _ = client.Close() }()
	benchmarkEvaluate(b, check.NewRedisEngine(client, o))
}

// BenchmarkEvaluateRedisAlone is one caller's round trip.
func BenchmarkEvaluateRedisAlone(b *testing.B) {
	engine := check.NewRedisEngine(redisClient(b), redisOptions())
	call := check.Call{Cost: 1, Counters: []check.Counter{{
		Key: checktest.Prefix() + "k", Numbers: numbersOf(check.SlidingWindowCounter, 1_000_000),
	}}}
	b.ReportAllocs()
	for b.Loop() {
		engine.Evaluate(context.Background(), &call)
	}
	require.NoError(b, call.Err)
}
