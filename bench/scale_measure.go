package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/kernel"
	"weir/bench/load"
)

// scaleRun is one run with many tenants, and its results.
type scaleRun struct {
	*stage
	o      scaleOptions
	random *rand.Rand
	rows   [][2]string
	base   float64 // heap of an instance with almost no policies
	hot    []int   // loaded tenants
}

func (r *scaleRun) found(what, format string, args ...any) {
	r.rows = append(r.rows, [2]string{what, fmt.Sprintf(format, args...)})
	progress("  %s: %s", what, fmt.Sprintf(format, args...))
}

// metric returns one of a server's metrics, named with its label.
func (s *stage) metric(ctx context.Context, name, metric string) (float64, error) {
	body, err := s.internal(ctx, name, "/metrics")
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), metric+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", name, metric)
}

func (s *stage) internal(ctx context.Context, name, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.servers[name].metrics, "/metrics")+path, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// heap returns the size of a server's heap after two collections, and the server's own estimate of
// the size of its policies.
func (s *stage) heap(ctx context.Context, name string) (heap, policies float64, err error) {
	for range 2 {
		if _, err := s.internal(ctx, name, "/debug/pprof/heap?gc=1"); err != nil {
			return 0, 0, err
		}
	}
	heap, err1 := s.metric(ctx, name, "go_memstats_heap_alloc_bytes")
	policies, err2 := s.metric(ctx, name, "weir_policy_memory_bytes")
	return heap, policies, errors.Join(err1, err2)
}

// begin starts an instance and returns the time until it was ready.
func (r *scaleRun) begin(ctx context.Context, name, memory string) (time.Duration, error) {
	begun := time.Now()
	sv, err := r.startInstance(ctx, name, r.databaseURL(), r.store, "WEIR_POLICY_MEMORY="+memory)
	if err != nil {
		return 0, err
	}
	r.undo = append(r.undo, sv.stop)
	r.servers[name] = sv
	return time.Since(begun), nil
}

func (r *scaleRun) startSmall(ctx context.Context) error {
	took, err := r.begin(ctx, writerName, "16MiB")
	if err != nil {
		return err
	}
	heap, policies, err := r.heap(ctx, writerName)
	if err != nil {
		return err
	}
	r.base = heap - policies
	r.found("time to ready, with little policy memory", "%.1f s", took.Seconds())
	r.found("heap after a garbage collection, without policies", "%.0f MB", r.base/1e6)
	r.found("of it, per known tenant with its keys", "%.0f B", r.base/float64(r.o.tenants))
	return nil
}

func (r *scaleRun) startFull(ctx context.Context) error {
	took, err := r.begin(ctx, weirName, r.o.memory)
	if err != nil {
		return err
	}
	tenants, err := r.metric(ctx, weirName, "weir_policy_tenants")
	if err != nil {
		return err
	}
	r.found("time to ready", "%.1f s", took.Seconds())
	r.found("tenants loaded at that time", "%s", thousands(tenants))
	begun := time.Now()
	for last := -1.0; last != tenants; {
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		last = tenants
		if tenants, err = r.metric(ctx, weirName, "weir_policy_tenants"); err != nil {
			return err
		}
	}
	loaded := time.Since(begun) - 2*time.Second
	heap, policies, err := r.heap(ctx, weirName)
	if err != nil {
		return err
	}
	if err := kernel.ResetPeakMemory(r.servers[weirName].pid()); err != nil {
		return err
	}
	resident, err := kernel.PeakMemory(r.servers[weirName].pid())
	if err != nil {
		return err
	}
	r.found("tenants loaded in the background", "%s, in %.0f s", thousands(tenants), loaded.Seconds())
	r.found("heap after a garbage collection at that time; resident memory", "%.0f MB; %.0f MB", heap/1e6, float64(resident)/1e6)
	r.found("heap per loaded tenant, with its rules and subjects", "%.0f B", (heap-r.base)/tenants)
	r.found("the same, by the estimate that `WEIR_POLICY_MEMORY` limits", "%.0f B", policies/tenants)
	for n := r.o.tenants - 1; n > 0 && len(r.hot) < int(tenants*0.9); n-- { // the newest are loaded first
		r.hot = append(r.hot, n)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func scaleRequest(tenant, subject int) load.Request {
	body := fmt.Sprintf(`{"subject":"%s","resource":"resource-0"}`, scaleSubject(subject))
	return load.Request{Path: "/v1/check", Key: scaleKey(tenant, 0), Body: []byte(body)}
}

// traffic returns checks of registered subjects of tenants, evenly spread.
func (r *scaleRun) traffic(tenants []int) *load.Traffic {
	requests := make([]load.Request, max(10_000, len(tenants)))
	for i := range requests {
		requests[i] = scaleRequest(tenants[i%len(tenants)], 10*(i%(r.o.subjectsEach()/10))+1)
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

// open sends checks at a fixed rate.
func (r *scaleRun) open(ctx context.Context, traffic *load.Traffic, rate int64, d time.Duration) (*load.Result, error) {
	result, err := load.Open(ctx, load.Target{Addrs: []string{r.servers[weirName].http}}, traffic, rate,
		load.Plan{Connections: connections, Warm: time.Second, Measure: d, Begin: func() {}, End: func() {}})
	if err == nil && result.Failed > 0 {
		err = fmt.Errorf("%d of %d checks failed", result.Failed, result.Requests)
	}
	return result, err
}

const scaleRate = 2000 // checks a second

func (r *scaleRun) oneAgainstMany(ctx context.Context) error {
	one, many := r.traffic(r.hot[:1]), r.traffic(r.hot)
	var p50, p99 [2][]float64
	if _, err := r.open(ctx, many, scaleRate, 10*time.Second); err != nil { // one check per tenant
		return err
	}
	for range 5 {
		for i, traffic := range []*load.Traffic{one, many} {
			result, err := r.open(ctx, traffic, scaleRate, 2*time.Second)
			if err != nil {
				return err
			}
			p50[i] = append(p50[i], micros(result.Latency(50)))
			p99[i] = append(p99[i], micros(result.Latency(99)))
		}
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	r.found(fmt.Sprintf("check at %d/s, one tenant: p50, p99", scaleRate), "%s, %s ms", millis(median(p50[0])), millis(median(p99[0])))
	r.found(fmt.Sprintf("the same, %s tenants", thousands(float64(len(r.hot)))), "%s, %s ms", millis(median(p50[1])), millis(median(p99[1])))
	r.found("many tenants relative to one: p50, p99", "%.2f, %.2f", median(p50[1])/median(p50[0]), median(p99[1])/median(p99[0]))
	return nil
}

// call sends one request and returns the status and the body.
func (r *scaleRun) call(ctx context.Context, server, method, key, path, body string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+r.servers[server].http+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// until repeats a request until seen returns true, and returns how long that took.
func (r *scaleRun) until(ctx context.Context, key string, seen func(status int, answer []byte) bool) (time.Duration, error) {
	begun := time.Now()
	for time.Since(begun) < time.Minute {
		status, answer, err := r.call(ctx, weirName, http.MethodPost, key, "/v1/check", `{"subject":"nobody","resource":"resource-0","cost":0}`)
		if err != nil || seen(status, answer) {
			return time.Since(begun), err
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("no change was seen within a minute")
}

// changes writes at one instance, and waits for the change at the other.
func (r *scaleRun) changes(ctx context.Context) error {
	const times = 40
	var rules, keys []time.Duration
	for i := range times {
		tenant := r.hot[r.random.IntN(len(r.hot))]
		key, limit := scaleKey(tenant, 0), 2_000_000+r.random.IntN(1_000_000)
		status, answer, err := r.call(ctx, writerName, http.MethodPatch, key, "/v1/rules/rule-0", fmt.Sprintf(`{"limit":%d}`, limit))
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("change a rule: %d %s %w", status, answer, err)
		}
		took, err := r.until(ctx, key, func(_ int, answer []byte) bool {
			return strings.Contains(string(answer), fmt.Sprintf(`"limit":%d`, limit))
		})
		if err != nil {
			return err
		}
		rules = append(rules, took)

		var made struct{ ID, Secret string }
		status, answer, err = r.call(ctx, writerName, http.MethodPost, key, "/v1/keys", fmt.Sprintf(`{"name":"bench %d","scopes":["check"]}`, i))
		if err != nil || status != http.StatusCreated {
			return fmt.Errorf("create a key: %d %s %w", status, answer, err)
		}
		if err := json.Unmarshal(answer, &made); err != nil {
			return err
		}
		if _, err := r.until(ctx, made.Secret, func(status int, _ []byte) bool { return status == http.StatusOK }); err != nil {
			return err
		}
		if status, answer, err = r.call(ctx, writerName, http.MethodDelete, key, "/v1/keys/"+made.ID, ""); err != nil || status != http.StatusNoContent {
			return fmt.Errorf("revoke a key: %d %s %w", status, answer, err)
		}
		if took, err = r.until(ctx, made.Secret, func(status int, _ []byte) bool { return status == http.StatusUnauthorized }); err != nil {
			return err
		}
		keys = append(keys, took)
	}
	r.found("a changed rule is live on another instance: p50, max", "%s", middleAndMost(rules))
	r.found("a revoked key is refused on another instance: p50, max", "%s", middleAndMost(keys))
	return nil
}

func middleAndMost(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("%s, %s ms", millis(micros(took[len(took)/2])), millis(micros(took[len(took)-1])))
}

// coldTenant returns a tenant that is not loaded, a different one for each n.
func (r *scaleRun) coldTenant(n int) int { return 2 + n }

const coldTimes = 500

func (r *scaleRun) cold(ctx context.Context) error {
	if r.o.tenants-len(r.hot) < 4*coldTimes {
		r.found("first check of a tenant", "all are loaded")
		return nil
	}
	var took []time.Duration
	for n := range coldTimes {
		begun := time.Now()
		status, answer, err := r.call(ctx, weirName, http.MethodPost, scaleKey(r.coldTenant(n), 0), "/v1/check", `{"subject":"customer00000001","resource":"resource-0"}`)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %s %w", status, answer, err)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	r.found("first check of a tenant that is not loaded: p50, p99, max", "%s, %s, %s ms", millis(micros(took[coldTimes/2])), millis(micros(took[coldTimes*99/100])), millis(micros(took[coldTimes-1])))
	return nil
}

// interference checks a tenth of the loaded tenants without other load, and again while eight
// callers check tenants that are not loaded, the largest among them.
func (r *scaleRun) interference(ctx context.Context) error {
	traffic := r.traffic(r.hot[:max(1, len(r.hot)/10)])
	quiet, err := r.open(ctx, traffic, scaleRate/2, 5*time.Second)
	if err != nil {
		return err
	}
	storm, stop := context.WithCancel(ctx)
	defer stop()
	var next, answered, unavailable atomic.Int64
	next.Store(coldTimes)
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for storm.Err() == nil {
				tenant := 0 // one caller checks the largest tenant
				if caller > 0 {
					tenant = r.coldTenant(int(next.Add(1)))
				}
				if tenant >= r.o.tenants-len(r.hot) {
					return
				}
				switch status, _, err := r.call(storm, weirName, http.MethodPost, scaleKey(tenant, 0), "/v1/check", `{"subject":"customer00000001"}`); {
				case err != nil:
				case status == http.StatusServiceUnavailable:
					unavailable.Add(1)
				default:
					answered.Add(1)
				}
			}
		})
	}
	begun := time.Now()
	busy, err := r.open(ctx, traffic, scaleRate/2, 5*time.Second)
	took := time.Since(begun)
	stop()
	callers.Wait()
	if err != nil {
		return err
	}
	r.found(fmt.Sprintf("check of a loaded tenant, at %d/s: p50, p99", scaleRate/2), "%s, %s ms", millis(micros(quiet.Latency(50))), millis(micros(quiet.Latency(99))))
	r.found("the same while other tenants are loaded", "%s, %s ms", millis(micros(busy.Latency(50))), millis(micros(busy.Latency(99))))
	r.found("tenants loaded per second at that time", "%.0f, and %d checks answered 503", float64(answered.Load())/took.Seconds(), unavailable.Load())
	return nil
}

// restoreTenants are the tenants in memory of which each must have its restored limit.
const restoreTenants = 200

// restore gives the configuration a new epoch, as an operator does after a restore, and measures
// the time until the tenants in memory are those of the database. Limits that change without a new
// version stand for those of the backup.
func (r *scaleRun) restore(ctx context.Context) error {
	tenants := make([]int, restoreTenants)
	ids := make([][16]byte, restoreTenants)
	for i := range tenants {
		tenants[i] = r.hot[r.random.IntN(len(r.hot))]
		ids[i] = scaleTenant(tenants[i])
	}
	limit := 5_000_000 + r.random.IntN(1_000_000)
	if err := r.write(ctx, "UPDATE rules SET limit_units = $1 WHERE slug = 'rule-0' AND tenant_id = ANY($2)", limit, ids); err != nil {
		return err
	}
	type outcome struct {
		result *load.Result
		err    error
	}
	checks := make(chan outcome, 1)
	go func() {
		result, err := r.open(ctx, r.traffic(r.hot[:max(1, len(r.hot)/10)]), scaleRate/2, 10*time.Second)
		checks <- outcome{result, err}
	}()
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	begun := time.Now()
	if err := r.write(ctx, "UPDATE config_version SET epoch = gen_random_uuid()"); err != nil {
		return err
	}
	for _, tenant := range tenants {
		if _, err := r.until(ctx, scaleKey(tenant, 0), func(_ int, answer []byte) bool {
			return strings.Contains(string(answer), fmt.Sprintf(`"limit":%d`, limit))
		}); err != nil {
			return err
		}
	}
	took := time.Since(begun)
	during := <-checks
	if during.err != nil {
		return during.err
	}
	r.found(fmt.Sprintf("after a restore, %s tenants in memory are read again", thousands(float64(len(r.hot)))), "in %.1f s", took.Seconds())
	r.found(fmt.Sprintf("check at that time, at %d/s: p50, p99", scaleRate/2), "%s, %s ms", millis(micros(during.result.Latency(50))), millis(micros(during.result.Latency(99))))
	return nil
}

// heads measures the time in which the heads of all audit trails are printed.
func (r *scaleRun) heads(ctx context.Context) error {
	begun := time.Now()
	printed, err := r.command(ctx, r.database, "audit", "heads")
	if err != nil {
		return err
	}
	r.found("`server audit heads`", "%.1f s, %s lines", time.Since(begun).Seconds(), thousands(float64(strings.Count(printed, "\n"))))
	return nil
}

// largest measures the time until the tenant with a tenth of all subjects is loaded.
func (r *scaleRun) largest(ctx context.Context) error {
	// The other instance has no other work, and enough memory.
	r.servers[writerName].stop()
	if _, err := r.begin(ctx, writerName, "1GiB"); err != nil {
		return err
	}
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	begun := time.Now()
	for {
		status, answer, err := r.call(ctx, writerName, http.MethodPost, scaleKey(0, 0), "/v1/check", `{"subject":"customer00000001","resource":"resource-0"}`)
		if err != nil {
			return err
		}
		if status == http.StatusOK {
			break
		}
		if status != http.StatusServiceUnavailable || time.Since(begun) > 2*time.Minute {
			return fmt.Errorf("%d %s", status, answer)
		}
	}
	r.found(fmt.Sprintf("first check of the tenant with %s subjects, retried until it is answered", thousands(float64(r.o.largestSubjects()))), "%.1f s", time.Since(begun).Seconds())
	return nil
}
