package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// BenchmarkShards evaluates one counter of many tenants, on one Redis and on Clusters, with a run
// of the script for each slot or for each node. redis-us/op is the CPU time of all servers,
// client-us/op that of this process, and checks/run how many calls a run decided.
func BenchmarkShards(b *testing.B) {
	for _, shards := range []int{0, 1, 3, 6} {
		url := ""
		if shards == 0 {
			url = testenv.StartRedis(b).URL
		} else {
			url = testenv.StartCluster(b, shards, 0, time.Minute).URL
		}
		client, err := NewClient(url)
		require.NoError(b, err)
		defer client.Close()
		e := New(client, Options{Deadline: clusterPatience})
		servers := []*redis.Client{}
		if shards == 0 {
			servers = append(servers, client.(*redis.Client))
		} else {
			e.awaitAcross(b, shards)
			e.servers.Range(func(master *redis.Client, _ *server) bool {
				servers = append(servers, master)
				return true
			})
		}
		for _, run := range []string{"slot", "node"} {
			state := acrossYes
			if run == "slot" {
				state = acrossNo
			}
			e.servers.Range(func(_ *redis.Client, s *server) bool {
				s.across.state.Store(state)
				return true
			})
			if shards == 0 {
				if run = "all"; state == acrossYes {
					break
				}
			}
			for _, tenants := range []int{64, 10_000} {
				for _, callers := range []int{64, 256} {
					b.Run(fmt.Sprintf("shards=%d/run=%s/tenants=%d/callers=%d", shards, run, tenants, callers), func(b *testing.B) {
						benchmarkShards(b, e, servers, tenants, callers)
					})
				}
			}
		}
	}
}

func benchmarkShards(b *testing.B, e *Engine, servers []*redis.Client, tenants, callers int) {
	keys := make([]string, max(tenants, 10_000))
	for i := range keys {
		keys[i] = fmt.Sprintf("w{%03x}%09d", i%tenants, i)
	}
	b.ReportAllocs()
	b.SetParallelism(callers / runtime.GOMAXPROCS(0))
	redisBefore, runsBefore, ownBefore := usedBy(b, servers, "cpu"), usedBy(b, servers, "runs"), ownCPU(b)
	b.RunParallel(func(pb *testing.PB) {
		call := engine.Call{Cost: 1, Counters: []engine.Counter{{ID: "rule-0001", Numbers: limit.Numbers{
			Algorithm: limit.SlidingWindowCounter, Limit: 100_000_000, WindowMS: 60_000,
		}}}}
		for pb.Next() {
			call.Counters[0].Key = keys[rand.IntN(len(keys))]
			e.Evaluate(context.Background(), &call)
			if call.Err != nil {
				b.Error(call.Err)
			}
		}
	})
	b.ReportMetric((ownCPU(b)-ownBefore)*1e6/float64(b.N), "client-us/op")
	b.ReportMetric((usedBy(b, servers, "cpu")-redisBefore)*1e6/float64(b.N), "redis-us/op")
	b.ReportMetric(float64(b.N)/(usedBy(b, servers, "runs")-runsBefore), "checks/run")
}

// usedBy returns the seconds of CPU time of all servers, or how many scripts they have run.
func usedBy(tb testing.TB, servers []*redis.Client, what string) (total float64) {
	for _, server := range servers {
		info, err := server.Info(context.Background(), "cpu", "commandstats").Result()
		require.NoError(tb, err)
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch {
			case what == "cpu" && (name == "used_cpu_sys" || name == "used_cpu_user"):
			case what == "runs" && (name == "cmdstat_evalsha" || name == "cmdstat_eval"):
				value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			default:
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			require.NoError(tb, err)
			total += n
		}
	}
	return total
}

// ownCPU returns the seconds of CPU time of this process.
func ownCPU(tb testing.TB) float64 {
	var used syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
