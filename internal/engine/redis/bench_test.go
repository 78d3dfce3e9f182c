package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

// benchmarkEvaluate evaluates calls of 10 000 subjects with 1, 3 and 10 counters each.
func benchmarkEvaluate(b *testing.B, eng engine.Engine) {
	prefix := enginetest.Prefix()
	keys := make([]string, 10_000*10)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%022d", prefix, i)
	}
	for _, counters := range []int{1, 3, 10} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32) // 64 callers on two cores
			b.RunParallel(func(pb *testing.PB) {
				call := engine.Call{Cost: 1}
				for pb.Next() {
					subject := rand.IntN(10_000)
					call.Counters = call.Counters[:0]
					for i := range counters {
						n := numbersOf(limit.Algorithms[i%len(limit.Algorithms)], 1_000)
						n.PenaltyMS = 0
						call.Counters = append(call.Counters, engine.Counter{Key: keys[subject*10+i], Numbers: n})
					}
					eng.Evaluate(context.Background(), &call)
					if call.Err != nil {
						b.Error(call.Err)
					}
				}
			})
		})
	}
}

func BenchmarkEvaluateMemory(b *testing.B) {
	benchmarkEvaluate(b, engine.NewMemory(engine.MemoryOptions{MaxPerTenant: 200_000}))
}

func BenchmarkEvaluateRedis(b *testing.B) {
	benchmarkEvaluate(b, redisengine.New(redisClient(b), redisOptions()))
}

// BenchmarkEvaluateRedisAlone measures the round trip of a single caller.
func BenchmarkEvaluateRedisAlone(b *testing.B) {
	eng := redisengine.New(redisClient(b), redisOptions())
	call := engine.Call{Cost: 1, Counters: []engine.Counter{{
		Key: enginetest.Prefix() + "k", Numbers: numbersOf(limit.SlidingWindowCounter, 1_000_000),
	}}}
	b.ReportAllocs()
	for b.Loop() {
		eng.Evaluate(context.Background(), &call)
	}
	require.NoError(b, call.Err)
}

// BenchmarkRulesInRedis evaluates 10 000 subjects under rules with windows of one minute and more,
// with and without a group. redis-us/op is the CPU time of Redis, as Redis reports it.
func BenchmarkRulesInRedis(b *testing.B) {
	client := redisClient(b)
	eng := redisengine.New(client, redisOptions())
	for _, grouped := range []bool{false, true} {
		for _, rules := range []int{1, 3, 10} {
			b.Run(fmt.Sprintf("grouped=%t/rules=%d", grouped, rules), func(b *testing.B) {
				prefix := enginetest.Prefix()
				groups := make([]string, 10_000)
				for i := range groups {
					groups[i] = fmt.Sprintf("%s%09d", prefix, i)
				}
				b.ReportAllocs()
				b.SetParallelism(32) // 64 callers on two cores
				before := cpuOfRedis(b, client)
				b.RunParallel(func(pb *testing.PB) {
					call := engine.Call{Cost: 1}
					for pb.Next() {
						call.Counters = call.Counters[:0]
						group := groups[rand.IntN(len(groups))]
						for i := range rules {
							c := engine.Counter{Key: group, ID: fmt.Sprintf("%04d-rule", i), Grouped: true, Numbers: limit.Numbers{
								Algorithm: limit.SlidingWindowCounter, Limit: 100_000_000, WindowMS: int64(i+1) * 60_000,
							}}
							if !grouped {
								c.Key, c.Grouped = c.OwnKey(), false
							}
							call.Counters = append(call.Counters, c)
						}
						eng.Evaluate(context.Background(), &call)
						if call.Err != nil {
							b.Error(call.Err)
						}
					}
				})
				b.ReportMetric((cpuOfRedis(b, client)-before)*1e6/float64(b.N), "redis-us/op")
			})
		}
	}
}

// cpuOfRedis returns how many seconds of CPU time a server has used.
func cpuOfRedis(tb testing.TB, client redis.UniversalClient) (seconds float64) {
	info, err := client.Info(context.Background(), "cpu").Result()
	require.NoError(tb, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			used, err := strconv.ParseFloat(value, 64)
			require.NoError(tb, err)
			seconds += used
		}
	}
	return seconds
}

// BenchmarkBatchInRedis evaluates a hundred subjects at a time under one rule; an op is one check.
func BenchmarkBatchInRedis(b *testing.B) {
	client := redisClient(b)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%09d", prefix, i)
	}
	b.ReportAllocs()
	b.SetParallelism(32) // 64 callers on two cores
	before := cpuOfRedis(b, client)
	b.RunParallel(func(pb *testing.PB) {
		calls := make([]*engine.Call, 100)
		for i := range calls {
			calls[i] = &engine.Call{Cost: 1, Counters: []engine.Counter{{ID: "rule-0001", Numbers: limit.Numbers{
				Algorithm: limit.SlidingWindowCounter, Limit: 100_000_000, WindowMS: 60_000,
			}}}}
		}
		for more := true; more; {
			n := 0
			for n < len(calls) && pb.Next() {
				calls[n].Counters[0].Key = keys[rand.IntN(len(keys))]
				n++
			}
			if more = n == len(calls); n == 0 {
				break
			}
			eng.Evaluate(context.Background(), calls[:n]...)
			if calls[0].Err != nil {
				b.Error(calls[0].Err)
			}
		}
	})
	b.ReportMetric((cpuOfRedis(b, client)-before)*1e6/float64(b.N), "redis-us/op")
}

// BenchmarkRefund returns a unit to each of 1 and 3 counters.
func BenchmarkRefund(b *testing.B) {
	eng := redisengine.New(redisClient(b), redisOptions())
	for _, counters := range []int{1, 3} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			call, prefix := engine.Call{Cost: 900_000_000}, enginetest.Prefix()
			for i := range counters {
				n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 1_000_000_000, WindowMS: 86_400_000}
				call.Counters = append(call.Counters, engine.Counter{Key: fmt.Sprintf("%s%022d", prefix, i), Numbers: n})
			}
			eng.Evaluate(b.Context(), &call)
			require.NoError(b, call.Err)
			refund := &engine.Refund{}
			for i := range call.Counters {
				c := &call.Counters[i]
				refund.Parts = append(refund.Parts, engine.RefundPart{
					Key: c.Key, Numbers: c.Numbers, Units: 1, Ground: c.Numbers.Ground(&call.Outcome.Verdicts[i], call.Outcome.NowMS),
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				if eng.Refund(b.Context(), refund); refund.Err != nil || refund.Refused > 0 {
					b.Fatal(refund.Err, refund.Refused)
				}
			}
		})
	}
}
