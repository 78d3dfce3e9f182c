package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// BenchmarkFar evaluates one counter of 64 tenants at a fixed rate, on a Redis at a distance of
// 80 ms. waits/interval is the part of intervals of 100 ms in which calls waited for a pipeline
// longer than package overload accepts. docs/scaling.md compares it with the model. Run it with
// -benchtime 8000x or more.
func BenchmarkFar(b *testing.B) {
	redis, rest, _ := strings.Cut(strings.TrimPrefix(testenv.StartRedis(b).URL, "redis://"), "/")
	client, err := NewClient("redis://" + delayed(b, redis, 40*time.Millisecond) + "/" + rest)
	require.NoError(b, err)
	defer client.Close()
	for _, perSecond := range []int{1000, 1600, 2560} {
		b.Run(fmt.Sprintf("rate=%d", perSecond), func(b *testing.B) {
			benchmarkFar(b, New(client, Options{Deadline: clusterPatience}), perSecond)
		})
	}
}

func benchmarkFar(b *testing.B, e *Engine, perSecond int) {
	var mu sync.Mutex
	var took []time.Duration
	var calls sync.WaitGroup
	long, intervals := 0, 0
	begin := time.Now()
	for i := range b.N {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
		if i%(perSecond/10) == perSecond/10-1 {
			intervals++
			if e.Waited() > 50*time.Millisecond {
				long++
			}
		}
		calls.Go(func() {
			n := rand.IntN(64)
			call := engine.Call{Tenant: limit.TenantID{byte(n)}, Cost: 1, Counters: []engine.Counter{{
				ID: "rule-0001", Key: fmt.Sprintf("w{%03x}%09d", n, rand.IntN(1000)),
				Numbers: limit.Numbers{Algorithm: limit.SlidingWindowCounter, Limit: 100_000_000, WindowMS: 60_000},
			}}}
			began := time.Now()
			e.Evaluate(context.Background(), &call)
			if call.Err != nil {
				b.Error(call.Err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
		})
	}
	calls.Wait()
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(float64(long)/float64(max(1, intervals)), "waits/interval")
}

// delayed returns the address of a proxy that delivers everything so much later.
func delayed(tb testing.TB, to string, delay time.Duration) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				return
			}
			go carry(server, from, delay)
			go carry(from, server, delay)
		}
	}()
	return listener.Addr().String()
}

func carry(to, from net.Conn, delay time.Duration) {
	type part struct {
		due  time.Time
		data []byte
	}
	parts := make(chan part, 1000)
	go func() {
		defer to.Close()
		for p := range parts {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data) // the reader notices a broken connection
		}
	}()
	defer close(parts)
	for {
		data := make([]byte, 64<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		parts <- part{time.Now().Add(delay), data[:n]}
	}
}
