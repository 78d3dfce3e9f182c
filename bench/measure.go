package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	weir "github.com/weir-dev/weir-go"

	"weir/bench/kernel"
	"weir/bench/load"
)

// sample is the result of one cell in one round. Times are in microseconds. CPU time and
// allocations are per check.
type sample struct {
	perSecond      float64 // checks
	p50, p99, p999 float64
	late99         float64 // open loop: how late the driver sent
	// Open loop: latencies without the lateness of the driver.
	servedP50, servedP99, servedP999 float64

	serverCPU         float64
	redisCPU          float64
	driverCPU         float64
	allocations       float64
	peakBytes         float64
	redisBytes        float64 // per counter; 0 if there are too few counters
	requests, denials int64
	failed, degraded  int64
	unsent, unstamped int64
	others, steal     float64 // shares of the machine's CPU time
}

// fewCounters is the number of counters below which their memory cannot be distinguished from
// noise.
const fewCounters = 1000

// requestTimeout is how long a client with leases waits for the server, which other rows keep busy.
const requestTimeout = 10 * time.Second

// connections is the number of connections of the driver.
const connections = 64

// gauges are values that are read at the beginning and the end of the measured part.
type gauges struct {
	server, redis, driver time.Duration
	machine               kernel.Clock
}

func readGauges(sv *server) (g gauges, err error) {
	var errs [3]error
	for _, instance := range sv.all() {
		cpu, err := kernel.CPU(instance.pid())
		if err != nil {
			return g, err
		}
		g.server += cpu
	}
	g.redis, errs[0] = sv.store.cpu()
	g.driver, errs[1] = kernel.CPU(os.Getpid())
	g.machine, errs[2] = kernel.ReadClock()
	return g, errors.Join(errs[:]...)
}

// others returns the shares of the machine's CPU time that other processes and other machines of
// the same hypervisor used.
func (g gauges) others(begun gauges) (others, steal float64) {
	passed := g.machine.Since(begun.machine)
	ours := g.server - begun.server + g.redis - begun.redis + g.driver - begun.driver
	return max(0, ratio(float64(passed.Busy-ours), float64(passed.All()))), ratio(float64(passed.Steal), float64(passed.All()))
}

// measure runs one cell once, on an empty Redis, with plain HTTP unless the cell names another
// protocol.
func (s *stage) measure(ctx context.Context, c cell, rate int64, o options) (sample, error) {
	sv := s.servers[c.server]
	allocatedBefore, err := sv.allocations(ctx)
	if err := errors.Join(err, sv.store.flush(ctx), sv.resetPeak()); err != nil {
		return sample{}, err
	}
	var begun, ended gauges
	var beginErr, endErr error
	plan := load.Plan{
		Connections: connections, Warm: o.warm, Measure: o.measure,
		Begin: func() { begun, beginErr = readGauges(sv) },
		End:   func() { ended, endErr = readGauges(sv) },
	}
	result, err := ask(ctx, sv, s.cert, c, rate, plan)
	if err := errors.Join(err, beginErr, endErr); err != nil {
		return sample{}, fmt.Errorf("%s: %w%s", c.name, err, sv.lastWords())
	}
	allocated, err := sv.allocations(ctx)
	if err != nil {
		return sample{}, err
	}
	m := newSample(result, c.checks, begun, ended)
	m.allocations = ratio(allocated-allocatedBefore, float64(result.Asked)*float64(c.checks))
	if m.peakBytes, err = sv.peak(); err != nil {
		return sample{}, err
	}
	m.redisBytes, err = sv.store.counterBytes(ctx)
	return m, err
}

func (sv *server) resetPeak() error {
	for _, instance := range sv.all() {
		if err := kernel.ResetPeakMemory(instance.pid()); err != nil {
			return err
		}
	}
	return nil
}

// peak returns the sum of the peak memory of the instances.
func (sv *server) peak() (bytes float64, err error) {
	for _, instance := range sv.all() {
		peak, err := kernel.PeakMemory(instance.pid())
		if err != nil {
			return 0, err
		}
		bytes += float64(peak)
	}
	return bytes, nil
}

// allocations returns the number of objects that all instances have allocated, or 0 if it is
// unknown.
func (sv *server) allocations(ctx context.Context) (total float64, err error) {
	for _, instance := range sv.all() {
		if instance.metrics == "" {
			continue
		}
		n, err := allocations(ctx, instance.metrics)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

func ask(ctx context.Context, sv *server, cert *certificate, c cell, rate int64, plan load.Plan) (*load.Result, error) {
	if c.leasing != nil {
		return decide(ctx, sv, c.leasing, plan)
	}
	target := load.Target{Protocol: c.protocol, TLS: cert.trust}
	for _, instance := range sv.all() {
		switch c.protocol {
		case load.HTTP1:
			target.Addrs = append(target.Addrs, instance.http)
		case load.GRPC:
			target.Addrs = append(target.Addrs, instance.grpc)
		default:
			target.Addrs = append(target.Addrs, instance.https)
		}
	}
	if rate > 0 {
		return load.Open(ctx, target, c.traffic, rate, plan)
	}
	return load.Closed(ctx, target, c.traffic, plan)
}

// decide decides checks in this process, with units that a client leases from the server.
func decide(ctx context.Context, sv *server, l *leasing, plan load.Plan) (*load.Result, error) {
	client, err := weir.New("http://"+sv.all()[0].http, l.tenant.key, weir.WithLeases(), weir.WithTimeout(requestTimeout))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	check := weir.Check{Subject: "leasing", Resource: resource}
	plan.Connections = l.callers
	return load.Calls(ctx, plan, func() (bool, error) {
		d, err := client.Check(ctx, check)
		if err == nil && d.NoDecision != nil {
			err = d.NoDecision
		}
		return d.Allowed, err
	})
}

func newSample(r *load.Result, checks int, begun, ended gauges) sample {
	total := float64(r.Requests) * float64(checks)
	each := func(d time.Duration) float64 { return ratio(micros(d), total) }
	others, steal := ended.others(begun)
	return sample{
		others: others, steal: steal,
		perSecond: r.Rate() * float64(checks),
		p50:       micros(r.Latency(50)), p99: micros(r.Latency(99)), p999: micros(r.Latency(99.9)),
		late99:    micros(r.Late(99)),
		servedP50: micros(r.Served(50)), servedP99: micros(r.Served(99)), servedP999: micros(r.Served(99.9)),
		serverCPU: each(ended.server - begun.server),
		redisCPU:  each(ended.redis - begun.redis),
		driverCPU: each(ended.driver - begun.driver),
		requests:  r.Requests, denials: r.Denied, failed: r.Failed, degraded: r.Degraded, unsent: r.Unsent,
		unstamped: r.Unstamped,
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ratio returns 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// counterBytes empties Redis and returns the memory per counter, including its share of the tables
// of keys and of expiries, or 0 if there were too few counters. The memory for Redis's clients
// changes all the time, but not while Redis is emptied.
func counterBytes(ctx context.Context, client *redis.Client) (float64, error) {
	keys, err := client.DBSize(ctx).Result()
	if err != nil {
		return 0, err
	}
	before, err := usedMemory(ctx, client)
	if err != nil {
		return 0, err
	}
	if err := client.Do(ctx, "FLUSHALL", "SYNC").Err(); err != nil {
		return 0, err
	}
	after, err := usedMemory(ctx, client)
	if err != nil || keys < fewCounters {
		return 0, err
	}
	return float64(before-after) / float64(keys), nil
}

func usedMemory(ctx context.Context, client *redis.Client) (int64, error) {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(infoText(info, "used_memory"), 10, 64)
}

// infoText returns a field of Redis's INFO.
func infoText(info, name string) string {
	for line := range strings.Lines(info) {
		if field, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && field == name {
			return value
		}
	}
	return ""
}

// allocations returns the number of objects that a server has allocated since it started.
func allocations(ctx context.Context, url string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("no count of allocations at %s", url)
}
