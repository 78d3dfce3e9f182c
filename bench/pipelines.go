package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"weir/bench/kernel"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

// sharing is a way in which concurrent checks share pipelines to Redis.
type sharing struct {
	name   string
	pool   int // connections
	engine func(client *redis.Client) (engine.Engine, error)
}

// patience is a timeout so long that checks on a busy machine are not degraded.
const patience = 5 * time.Second

// sharings returns the ways to compare. One is a client that sends each command through go-redis's
// own pipelines.
func sharings() []sharing {
	own := func(pipelines int) func(*redis.Client) (engine.Engine, error) {
		return func(client *redis.Client) (engine.Engine, error) {
			return redisengine.New(client, redisengine.Options{Deadline: patience, Pipelines: pipelines}), nil
		}
	}
	auto := func(change func(*redis.AutoPipelineOptions)) func(*redis.Client) (engine.Engine, error) {
		return func(client *redis.Client) (engine.Engine, error) {
			o := redis.DefaultBlockingAutoPipelineOptions()
			change(o)
			pipeliner, err := client.AutoPipelineWithOptions(o)
			if err != nil {
				return nil, err
			}
			return redisengine.New(autoClient{client, pipeliner}, redisengine.Options{Deadline: patience, Pipelines: 1024, MaxBatch: 1}), nil
		}
	}
	return []sharing{
		{"Weir's batches, 1 pipeline", 16, own(1)},
		{"Weir's batches, 2 pipelines (default)", 16, own(2)},
		{"Weir's batches, 3 pipelines", 16, own(3)},
		{"AutoPipeline, default", 16, auto(func(*redis.AutoPipelineOptions) {})},
		{"AutoPipeline, full duplex", 16, auto(func(o *redis.AutoPipelineOptions) { o.FullDuplex = true })},
		{"one call per check, pool of 256", 256, func(client *redis.Client) (engine.Engine, error) {
			return redisengine.New(client, redisengine.Options{Deadline: patience, Pipelines: 1024, MaxBatch: 1}), nil
		}},
	}
}

// autoClient is a client whose commands share go-redis's pipelines.
type autoClient struct {
	redis.UniversalClient
	auto *redis.AutoPipeliner
}

// Process is part of redis.UniversalClient.
func (c autoClient) Process(ctx context.Context, cmd redis.Cmder) error {
	return c.auto.Process(ctx, cmd)
}

// demand is a load on the engines.
type demand struct {
	name    string
	callers int
	rate    int // checks per second, evenly spaced; 0 for as many as possible
}

var demands = []demand{{"64 callers, maximum rate", 64, 0}, {"256 callers, maximum rate", 256, 0}, {"5 000/s, evenly spaced", 64, 5000}, {"1 caller", 1, 0}}

// shared is the result of a sharing under a demand in one round. CPU time and bytes are per check.
type shared struct{ rate, client, redis, p50, p99, in, out float64 }

// measurePipelines measures the sharings in turns, without HTTP, and prints a table for each
// demand.
func measurePipelines(ctx context.Context, o options) error {
	s := &stage{}
	defer s.close()
	for _, step := range []func(context.Context) error{s.makeFolder, s.startRedis} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	ways := sharings()
	found := make([][][]shared, len(demands)) // by demand, sharing, round
	for i := range found {
		found[i] = make([][]shared, len(ways))
	}
	for round := range o.rounds {
		for i, d := range demands {
			for j, w := range ways {
				m, err := s.share(ctx, w, d, o)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", w.name, d.name, err)
				}
				progress("round %d, %s, %s: %.0f/s", round+1, d.name, w.name, m.rate)
				found[i][j] = append(found[i][j], m)
			}
		}
	}
	fmt.Print(pipelinesReport(ways, found))
	return nil
}

func pipelinesReport(ways []sharing, found [][][]shared) string {
	var b strings.Builder
	for i, d := range demands {
		fmt.Fprintf(&b, "\n| %s | checks/s | client µs | Redis µs | p50 ms | p99 ms | bytes to Redis | from Redis |\n|---|---:|---:|---:|---:|---:|---:|---:|\n", d.name)
		for j, w := range ways {
			of := func(get func(shared) float64) float64 {
				return medianOf(len(found[i][j]), func(k int) float64 { return get(found[i][j][k]) })
			}
			fmt.Fprintf(&b, "| %s | %s | %.1f | %.1f | %.2f | %.2f | %.0f | %.0f |\n", w.name, thousands(of(func(m shared) float64 { return m.rate })),
				of(func(m shared) float64 { return m.client }), of(func(m shared) float64 { return m.redis }),
				of(func(m shared) float64 { return m.p50 }), of(func(m shared) float64 { return m.p99 }),
				of(func(m shared) float64 { return m.in }), of(func(m shared) float64 { return m.out }))
		}
	}
	return b.String()
}

// share measures one sharing under one demand, on an empty Redis.
func (s *stage) share(ctx context.Context, w sharing, d demand, o options) (m shared, err error) {
	universal, err := redisengine.NewClient(s.store.url, redisengine.WithPoolSize(w.pool))
	if err != nil {
		return m, err
	}
	defer universal.Close()
	eng, err := w.engine(universal.(*redis.Client))
	if err != nil {
		return m, err
	}
	if err := s.store.flush(ctx); err != nil {
		return m, err
	}
	if _, err := drive(ctx, eng, d, o.warm); err != nil {
		return m, err
	}
	inBefore, outBefore, err := s.traffic(ctx)
	if err != nil {
		return m, err
	}
	clientBefore, redisBefore, err := s.bothClocks()
	if err != nil {
		return m, err
	}
	begin := time.Now()
	seen, err := drive(ctx, eng, d, o.measure)
	if err != nil {
		return m, err
	}
	elapsed := time.Since(begin)
	client, redis, err := s.bothClocks()
	if err != nil {
		return m, err
	}
	in, out, err := s.traffic(ctx)
	if err != nil {
		return m, err
	}
	count := float64(seen.TotalCount())
	return shared{
		rate:   count / elapsed.Seconds(),
		client: ratio(micros(client-clientBefore), count), redis: ratio(micros(redis-redisBefore), count),
		in: ratio(in-inBefore, count), out: ratio(out-outBefore, count),
		p50: float64(seen.ValueAtQuantile(50)) / 1000, p99: float64(seen.ValueAtQuantile(99)) / 1000,
	}, nil
}

// bothClocks returns the CPU time of this process, which is the client, and of Redis.
func (s *stage) bothClocks() (client, redis time.Duration, err error) {
	if client, err = kernel.CPU(os.Getpid()); err != nil {
		return 0, 0, err
	}
	redis, err = s.store.cpu()
	return client, redis, err
}

// traffic returns the bytes that Redis has received and sent.
func (s *stage) traffic(ctx context.Context) (in, out float64, err error) {
	info, err := s.redis.Info(ctx, "stats").Result()
	if err != nil {
		return 0, 0, err
	}
	if in, err = strconv.ParseFloat(infoText(info, "total_net_input_bytes"), 64); err != nil {
		return 0, 0, err
	}
	out, err = strconv.ParseFloat(infoText(info, "total_net_output_bytes"), 64)
	return in, out, err
}

// drive makes checks for a time, and returns the latencies in microseconds. With a rate, a latency
// counts from when the check was due.
func drive(ctx context.Context, eng engine.Engine, d demand, last time.Duration) (*hdrhistogram.Histogram, error) {
	began := time.Now()
	end := began.Add(last)
	due := make(chan time.Time, d.callers)
	total := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
	var together sync.Mutex
	var failure atomic.Pointer[error]
	var callers sync.WaitGroup
	for range d.callers {
		callers.Go(func() {
			seen := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
			call := engine.Call{Cost: 1, Counters: make([]engine.Counter, 1)}
			for at := began; d.rate > 0 || at.Before(end); {
				if d.rate > 0 {
					var more bool
					if at, more = <-due; !more {
						break
					}
				}
				call.Counters[0] = engine.Counter{Key: fmt.Sprintf("w{bench}%07d", rand.IntN(subjects)), Numbers: limit.Numbers{
					Algorithm: limit.SlidingWindowCounter, Limit: generous, WindowMS: time.Minute.Milliseconds(),
				}}
				eng.Evaluate(ctx, &call)
				if call.Err != nil {
					failure.CompareAndSwap(nil, &call.Err)
					break
				}
				now := time.Now()
				_ = seen.RecordValue(max(1, now.Sub(at).Microseconds())) // in range: patience is shorter
				if d.rate == 0 {
					at = now
				}
			}
			together.Lock()
			defer together.Unlock()
			total.Merge(seen)
		})
	}
	if d.rate > 0 {
		pace(began, end, d.rate, due, &failure)
	}
	close(due)
	callers.Wait()
	if err := failure.Load(); err != nil {
		return nil, *err
	}
	return total, ctx.Err()
}

// pace sends the time of each check when it is due, by the kernel's clock. Timers of the runtime
// are up to a millisecond late.
func pace(began, end time.Time, rate int, due chan<- time.Time, failure *atomic.Pointer[error]) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := 0; ; i++ {
		at := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if !at.Before(end) || failure.Load() != nil {
			return
		}
		for wait := time.Until(at); wait > 0; wait = time.Until(at) {
			ts := unix.NsecToTimespec(int64(wait))
			_ = unix.Nanosleep(&ts, nil) // after an interruption, the loop sleeps for the remaining time
		}
		due <- at
	}
}
