package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"weir/bench/kernel"
	"weir/bench/load"
)

// crowdedOptions are the options of -overload and -neighbours.
type crowdedOptions struct {
	overload, neighbours bool
	before               string
	connections          int
}

const beforeName = "before"

// measureCrowded measures an instance that more wants than it can serve. The server and its Redis
// share one processor, and the driver has the others, so that the driver is not what is measured.
func measureCrowded(ctx context.Context, o options) error {
	s := &stage{servers: map[string]*server{}, timeout: o.timeout}
	defer s.close()
	if runtime.NumCPU() < 2 {
		return errors.New("it takes two processors: one for the server, one for the driver")
	}
	if err := firstErr(ctx, s.makeFolder, s.build, s.createDatabase, s.startRedis, s.migrate); err != nil {
		return err
	}
	names := []string{weirName}
	if o.crowded.before != "" {
		dir, err := filepath.Abs(o.crowded.before)
		if err != nil {
			return err
		}
		if err := s.compile(ctx, dir, "./cmd/server", beforeName); err != nil {
			return err
		}
		names = []string{beforeName, weirName}
	}
	tenants := crowdedTenants()
	if err := s.prepare(ctx, []*tenant{tenants.one, tenants.logs, tenants.quiet}); err != nil {
		return err
	}
	endpoint, err := s.createEndpoint(ctx, tenants.one)
	if err != nil {
		return err
	}
	s.servers[weirName].stop()
	for _, pid := range []int{s.store.nodes[0].pid(), os.Getpid()} {
		processor := 0
		if pid == os.Getpid() {
			processor = 1
		}
		if err := kernel.Pin(pid, processor); err != nil {
			return err
		}
	}
	// All threads of the driver share its processor. With one thread for goroutines, those of the
	// neighbour would wait for those of the other tenant.
	runtime.GOMAXPROCS(4)
	if o.crowded.overload {
		if err := s.measureOverload(ctx, names, tenants, o); err != nil {
			return err
		}
	}
	if o.crowded.neighbours {
		return s.measureNeighbours(ctx, names, tenants, endpoint, o)
	}
	return nil
}

// crowdedCast are the tenants of these modes.
type crowdedCast struct{ one, logs, quiet *tenant }

// crowdedTenants returns a tenant with a cheap rule, one with the most expensive rules that there
// are, and their neighbour.
func crowdedTenants() crowdedCast {
	c := crowdedCast{
		one:   &tenant{slug: "one-rule", rules: []rule{oneRule(algorithms[0])}},
		logs:  &tenant{slug: "logs"},
		quiet: &tenant{slug: "quiet", rules: []rule{oneRule(algorithms[0])}},
	}
	for i := range 32 {
		c.logs.rules = append(c.logs.rules, rule{
			Slug: fmt.Sprintf("log-%d", i+1), Algorithm: "sliding_window_log", Limit: 10_000, Window: fmt.Sprintf("%dd", 366-i),
		})
	}
	return c
}

// traffic is checks of a tenant for many subjects.
func (t *tenant) traffic() *load.Traffic {
	requests := make([]load.Request, subjects)
	for i := range requests {
		requests[i] = load.Request{Path: "/v1/check", Key: t.key, Body: fmt.Appendf(nil, `{"subject":"user_%05d","resource":"%s"}`, i, resource)}
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

// startPinned starts a server on the processor of Redis, with an empty Redis.
func (s *stage) startPinned(ctx context.Context, name string) (*server, error) {
	if err := s.store.flush(ctx); err != nil {
		return nil, err
	}
	// The limit of threads is read at the start. s.timeout is not used: overload must not lead to
	// degraded answers with the default timeout.
	sv, err := s.startBinary(ctx, name, name, s.databaseURL(), s.store, "GOMAXPROCS=1", "WEIR_REDIS_TIMEOUT=50ms")
	if err != nil {
		return nil, err
	}
	if err := kernel.Pin(sv.pid(), 0); err != nil {
		sv.stop()
		return nil, err
	}
	return sv, nil
}

// startPinnedBare starts the bare server as startPinned starts a server.
func (s *stage) startPinnedBare(ctx context.Context) (*server, error) {
	if err := s.startMinimal(ctx, bareName, bareName, []string{"GOMAXPROCS=1"}); err != nil {
		return nil, err
	}
	bare := s.servers[bareName]
	bare.name = bareName
	return bare, kernel.Pin(bare.pid(), 0)
}

// crowdedRow is one measurement.
type crowdedRow struct {
	of, load  string
	capacity  float64
	result    *load.Result
	healthP99 time.Duration
}

func (s *stage) measureOverload(ctx context.Context, names []string, tenants crowdedCast, o options) error {
	const title = "| server | checks | load | due/s | sent/s | decided/s | of capacity | refused/s | degraded | decided p50, p99 ms | refused p50, p99 ms | health p99 ms |"
	rows := []string{title, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"}
	plan := load.Plan{Connections: connections, Warm: o.warm, Measure: o.measure, Begin: func() {}, End: func() {}}
	many := plan
	many.Connections, many.Warm = o.crowded.connections, max(o.warm, 3*time.Second) // the bound adapts in that time
	many.Skip = 5 * time.Millisecond                                                // the driver may be slower than three times the capacity
	bare, err := s.startPinnedBare(ctx)
	if err != nil {
		return err
	}
	for range o.rounds {
		// What the bare server loses because the kernel serves more connections.
		more, err := overloadRows(ctx, bare, tenants.one, plan, many)
		if err != nil {
			return fmt.Errorf("the bare server: %w", err)
		}
		rows = append(rows, more...)
		for _, t := range []*tenant{tenants.one, tenants.logs} {
			for _, name := range names {
				sv, err := s.startPinned(ctx, name)
				if err != nil {
					return err
				}
				more, err := overloadRows(ctx, sv, t, plan, many)
				sv.stop()
				if err != nil {
					return fmt.Errorf("%s, %s: %w%s", name, t.slug, err, sv.lastWords())
				}
				rows = append(rows, more...)
			}
		}
	}
	fmt.Println(strings.Join(rows, "\n"))
	return nil
}

func overloadRows(ctx context.Context, sv *server, t *tenant, plan, many load.Plan) (rows []string, err error) {
	target, traffic := load.Target{Addrs: []string{sv.http}}, t.traffic()
	progress("%s: capacity of %s", sv.name, t.slug)
	usual, err := load.Closed(ctx, target, traffic, plan)
	if err != nil {
		return nil, err
	}
	capacity := usual.Rate()
	show := func(kind string, due float64, r *load.Result, health []time.Duration) {
		decided := float64(r.Requests-r.Failed) / r.Elapsed.Seconds()
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %.0f | %.0f | %.0f | %.0f %% | %.0f | %.1f %% | %s, %s | %s, %s | %s |", sv.name, t.slug, kind,
			due, r.Rate(), decided, 100*decided/capacity, float64(r.Refused)/r.Elapsed.Seconds(), 100*ratio(float64(r.Degraded), float64(r.Requests)),
			ms(r.Decided(50)), ms(r.Decided(99)), ms(r.Refusal(50)), ms(r.Refusal(99)), ms(percentile(health, 99))))
	}
	show(fmt.Sprintf("closed, %d connections", plan.Connections), usual.Rate(), usual, nil)
	progress("%s: %d connections of %s", sv.name, many.Connections, t.slug)
	stop := watchHealth(ctx, sv)
	closed, err := load.Closed(ctx, target, traffic, many)
	health := stop()
	if err != nil {
		return rows, err
	}
	show(fmt.Sprintf("closed, %d connections", many.Connections), closed.Rate(), closed, health)
	rate := int64(3 * capacity)
	progress("%s: %d/s of %s", sv.name, rate, t.slug)
	stop = watchHealth(ctx, sv)
	open, err := load.Open(ctx, target, traffic, rate, many)
	health = stop()
	if err != nil {
		return rows, err
	}
	show("open, 3 × capacity", float64(rate), open, health)
	return rows, nil
}

// watchHealth requests /healthz until stop is called, which returns the latencies.
func watchHealth(ctx context.Context, sv *server) (stop func() []time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	took := make(chan []time.Duration, 1)
	go func() {
		var all []time.Duration
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			start := time.Now()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+sv.http+"/healthz", nil)
			if err == nil {
				var response *http.Response
				if response, err = client.Do(request); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
					all = append(all, time.Since(start))
				}
			}
			if err != nil && ctx.Err() == nil {
				all = append(all, time.Minute) // it did not answer
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		took <- all
	}()
	return func() []time.Duration {
		cancel()
		return <-took
	}
}

func percentile(all []time.Duration, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)*percent/100, len(all)-1)]
}

// neighbourRate is what the quiet tenant sends per second.
const neighbourRate = 200

func (s *stage) measureNeighbours(ctx context.Context, names []string, tenants crowdedCast, endpoint string, o options) error {
	rows := []string{
		"| server | what the other tenant sends | its answers/s | its refusals/s | p50, p99 ms of the neighbour | sent late, p99 ms | × its own alone | degraded | refused |",
		"|---|---|---:|---:|---:|---:|---:|---:|---:|",
	}
	plan := load.Plan{Connections: 8, Warm: max(o.warm, time.Second), Measure: o.measure, Begin: func() {}, End: func() {}}
	loud := load.Plan{Connections: connections, Warm: plan.Warm, Measure: plan.Measure, Begin: func() {}, End: func() {}}
	for range o.rounds {
		for _, name := range names {
			sv, err := s.startPinned(ctx, name)
			if err != nil {
				return err
			}
			more, err := neighbourRows(ctx, sv, tenants, endpoint, plan, loud)
			sv.stop()
			if err != nil {
				return fmt.Errorf("%s: %w%s", name, err, sv.lastWords())
			}
			rows = append(rows, more...)
		}
	}
	fmt.Println(strings.Join(rows, "\n"))
	return nil
}

func neighbourRows(ctx context.Context, sv *server, tenants crowdedCast, endpoint string, plan, loud load.Plan) (rows []string, err error) {
	target, quiet := load.Target{Addrs: []string{sv.http}}, tenants.quiet.traffic()
	var alone time.Duration
	for _, other := range []struct {
		name        string
		connections int
		traffic     *load.Traffic
	}{
		{"nothing", 0, nil},
		{"checks of one cheap rule", connections, tenants.one.traffic()},
		{"checks of 32 logs of a year", connections, tenants.logs.traffic()},
		{"the same over 2 000 connections", 2000, tenants.logs.traffic()},
		{"forged billing events", connections, billingEvents(endpoint, "whsec_forged")},
		{"signed billing events", connections, billingEvents(endpoint, endpointSecret)},
	} {
		loud := loud
		loud.Connections = other.connections
		name, busy := other.name, (*load.Result)(nil)
		ended := make(chan error, 1)
		if other.traffic != nil {
			go func() {
				var err error
				busy, err = load.Closed(ctx, target, other.traffic, loud)
				ended <- err
			}()
		} else {
			ended <- nil
		}
		progress("%s: a neighbour beside %s", sv.name, name)
		r, err := load.Open(ctx, target, quiet, neighbourRate, plan)
		if err := errors.Join(err, <-ended); err != nil {
			return rows, err
		}
		decisions, refusals := 0.0, 0.0
		if busy == nil {
			alone = r.Latency(99)
		} else {
			decisions, refusals = float64(busy.Requests-busy.Failed)/busy.Elapsed.Seconds(), float64(busy.Failed)/busy.Elapsed.Seconds()
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %.0f | %.0f | %s, %s | %s | %.1f | %d | %d |", sv.name, name, decisions, refusals,
			ms(r.Latency(50)), ms(r.Latency(99)), ms(r.Late(99)), ratio(float64(r.Latency(99)), float64(alone)), r.Degraded, r.Failed))
	}
	return rows, nil
}

// ms writes a time in milliseconds.
func ms(d time.Duration) string { return fmt.Sprintf("%.2f", micros(d)/1000) }
