package faults

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

var tenantRows = []row{
	{id: "T1", fault: "One tenant checks 100 000 distinct subjects, of which its tier allows 50 000 counters", run: manySubjects,
		goal: "others: E = 0, O = 0, p99 ≤ 1.5 x base; ≤ 250 B of Redis per subject; RSS + 64 MiB per instance at most; further subjects share counters"},
	{id: "T2", fault: "One denied subject, as fast as 32 clients can", quick: true, run: deniedSubject,
		goal: "≤ 10 script calls per second and instance for it; a smaller cost that fits is allowed"},
	{id: "T3", fault: "One allowed subject, as fast as 48 clients can", quick: true, run: hotSubject,
		goal: "O = 0 and U = 0; script calls ≤ 1/5 of the checks"},
	{id: "T4", fault: "A tenant over its own quota, as fast as 16 clients can", run: overQuota,
		goal: "CPU time of a refusal ≤ 10 % of that of a check; p99 of others ≤ 1.1 x base"},
	{id: "T5", fault: "Batches of 100 checks with long sliding logs, fine buckets and 16 attributes", run: expensiveRules,
		goal: "a script runs ≤ 1 ms at p99; E = 0; p99 of others ≤ 1.5 x base"},
	{id: "T6", fault: "All operations, roles and objects of other tenants, from the OpenAPI document",
		goal: "all operations covered; always 404",
		why:  "`TestAnotherTenantsObjects` in `internal/api` has a case for each operation of the document in `make test`, and fails without one."},
}

// redisFigure returns a field of INFO.
func redisFigure(m *measurement, s *testenv.Redis, section, field string) float64 {
	m.Helper()
	info, err := admin(m.T, s).Info(m.T.Context(), section).Result()
	require.NoError(m.T, err)
	_, rest, found := strings.Cut(info, field+":")
	require.True(m.T, found, field)
	line, _, _ := strings.Cut(rest, "\r\n")
	value, err := strconv.ParseFloat(line, 64)
	require.NoError(m.T, err)
	return value
}

var callsOf = regexp.MustCompile(`cmdstat_(?:evalsha|eval|evalsha_ro|fcall):calls=(\d+)`)

// scriptCalls returns how many scripts Redis has run.
func scriptCalls(m *measurement, s *testenv.Redis) (calls float64) {
	m.Helper()
	info, err := admin(m.T, s).Info(m.T.Context(), "commandstats").Result()
	require.NoError(m.T, err)
	for _, found := range callsOf.FindAllStringSubmatch(info, -1) {
		n, err := strconv.ParseFloat(found[1], 64)
		require.NoError(m.T, err)
		calls += n
	}
	return calls
}

func manySubjects(m *measurement) {
	const subjects, bound = 100_000, 50_000
	r := newRig(m.T, with(harness.Settings{"WEIR_TENANT_COUNTERS": strconv.Itoa(bound)}))
	c := r.tenant("many", fmt.Sprintf(`{"rules":[{"slug":"requests","resource":"requests","limit":1000,"window":%q}]}`, harness.QuietWindow(time.Now(), 30, 1)))
	r.awaitRule(c, "requests")
	l := r.load(r.probing()...)
	l.steady(4)
	memory, resident, keys := redisFigure(m, r.redis, "memory", "used_memory"), r.most("process_resident_memory_bytes"), r.size(m)
	fault := l.now()
	r.batches(c, "requests", 0, subjects)
	end := l.now()
	added, peak := r.size(m)-keys, r.most("process_resident_memory_bytes")
	perSubject := (redisFigure(m, r.redis, "memory", "used_memory") - memory) / float64(max(1, added))
	l.seconds(1)
	h := l.stop()
	m.decided(h)
	base := h.between(time.Second, fault).p99()
	m.within("p99 of others", h.between(fault, end).p99(), base*3/2)
	m.limitHeld(" of others", h.exactWindows())
	m.number("Redis memory per counter", perSubject, 250, " B")
	m.number("RSS added", (peak-resident)/(1<<20), 64, " MiB")
	m.number("counters of the tenant", float64(added), bound*1.2, "")
	m.number("instances that report a full tenant, missing", instances-r.total("weir_tenants_full"), instances-1, "")
	m.note("%d subjects in %s. Base p99 %s.", subjects, round(end-fault), round(base))
}

// size returns the number of keys in Redis.
func (r *rig) size(m *measurement) int64 {
	m.Helper()
	size, err := admin(m.T, r.redis).DBSize(m.T.Context()).Result()
	require.NoError(m.T, err)
	return size
}

func deniedSubject(m *measurement) {
	// A late answer of Redis would count as an outage, which is not what this row is about.
	r := newRig(m.T, with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	c := r.tenant("hot", fmt.Sprintf(`{"rules":[{"slug":"requests","resource":"requests","algorithm":"fixed_window","limit":20,"window":%q}]}`, harness.QuietWindow(time.Now(), 30, 1)))
	r.awaitRule(c, "requests")
	_, _ = c.do(http.MethodPost, r.nodes[0].url()+"/v1/check", `{"subject":"user_0","resource":"requests","cost":15}`)
	const length = 5 * time.Second
	idle := scriptCalls(m, r.redis)
	r.pause(4 * time.Second)
	idle = (scriptCalls(m, r.redis) - idle) / 4
	r.hammer(c, 32, 200*time.Millisecond, "requests", 1, 10) // all instances know of the denial
	before := scriptCalls(m, r.redis)
	var smaller int
	var waiting sync.WaitGroup
	waiting.Go(func() {
		r.pause(length / 2)
		smaller, _, _ = c.try(http.MethodPost, r.nodes[1].url()+"/v1/check", `{"subject":"user_0","resource":"requests","cost":2}`)
	})
	result := r.hammer(c, 32, length, "requests", 1, 10)
	waiting.Wait()
	// One is for the smaller cost, and the first one of each instance begins its first interval.
	calls := (scriptCalls(m, r.redis)-before-1-instances)/result.seconds - idle
	m.none("connections that failed", int(result.failed))
	m.number("script calls per second and instance", calls/instances, 10, "")
	m.holds("a smaller cost is allowed", smaller == http.StatusOK)
	m.note("%.0f checks per second.", float64(result.good)/result.seconds)
}

func hotSubject(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	length := time.Duration(m.seconds(5, 2) * float64(time.Second))
	before := scriptCalls(m, r.redis)
	result := r.hammer(r.probe, 48, length, "tally", 1, 1)
	calls := scriptCalls(m, r.redis) - before
	var used int
	require.Eventually(m.T, func() bool {
		rec := r.ask("tally", 0, 0)
		used = tallyLimit - int(rec.remaining)
		return !rec.degraded && rec.failure == ""
	}, patience, tick)
	m.none("connections that failed", int(result.failed))
	degraded := int(r.total("weir_checks_degraded_total")) // on a busy machine: Redis may or may not have counted these
	m.atMost("counted but not allowed", used-int(result.good), 0)
	m.atMost("allowed but not counted", int(result.good)-degraded-used, 0)
	m.share("script calls for each check", calls/float64(result.good), 0.2)
	m.note("%.0f checks per second, all for one subject. The more checks wait at the same time, the fewer calls are needed.", float64(result.good)/result.seconds)
}

// cpu returns the processor time of all instances, in seconds.
func (r *rig) cpu() float64 { return r.total("process_cpu_seconds_total") }

func overQuota(m *measurement) {
	r := newRig(m.T)
	c := r.ordinary("limited")
	began := r.cpu()
	normal := r.hammer(c, 16, 3*time.Second, "requests", 500, 1)
	perCheck := (r.cpu() - began) / float64(normal.good)
	l := r.load(r.probing()...)
	l.seconds(4)
	status, body := r.operator.do(http.MethodPost, r.nodes[0].url()+"/v1/plans", `{"slug":"tiny","limits":{"checks-per-second":{"limit":2},"checks-per-month":{"limit":1000},"work-per-second":{"limit":20}}}`)
	require.Equal(m.T, http.StatusCreated, status, "%s", body)
	status, body = r.operator.do(http.MethodPut, r.nodes[0].url()+"/v1/subjects/limited", `{"plan":"tiny"}`)
	require.Less(m.T, status, 300, "%s", body)
	l.until("the quota is in force", func() bool {
		status, body, err := c.try(http.MethodPost, r.nodes[0].url()+"/v1/check", `{"subject":"a","resource":"requests"}`)
		return err == nil && status == http.StatusTooManyRequests && strings.Contains(string(body), "TENANT_QUOTA_EXCEEDED")
	})
	fault, idle := l.now(), r.cpu()
	l.seconds(2)
	perSecond := (r.cpu() - idle) / (l.now() - fault).Seconds() // of the load alone
	fault, began = l.now(), r.cpu()
	refused := r.hammer(c, 16, 3*time.Second, "requests", 500, 1)
	end := l.now()
	perRefusal := (r.cpu() - began - perSecond*(end-fault).Seconds()) / float64(refused.good)
	h := l.stop()
	m.decided(h)
	m.share("CPU time of a refusal", perRefusal/perCheck, 0.1)
	base := h.between(time.Second, fault-2*time.Second).p99()
	m.within("p99 of others", h.between(fault, end).p99(), base*11/10)
	m.note("%.0f µs of processor time per refusal, %.0f µs per check, most of it for HTTP. Base p99 %s.", 1e6*perRefusal, 1e6*perCheck, round(base))
}

var percentiles = regexp.MustCompile(`latency_percentiles_usec_evalsha:p50=([\d.]+),p99=([\d.]+)`)

func expensiveRules(m *measurement) {
	r := newRig(m.T)
	var by, attributes []string
	for n := range 15 { // with the subject, a rule counts by 16 values
		by = append(by, fmt.Sprintf(`"attributes.a%d"`, n))
		attributes = append(attributes, fmt.Sprintf(`"a%d":%q`, n, strings.Repeat("x", 120)))
	}
	c := r.tenant("expensive", fmt.Sprintf(`{"rules":[
		{"slug":"log","resource":"heavy","algorithm":"sliding_window_log","limit":1000,"window":"1h"},
		{"slug":"buckets","resource":"heavy","algorithm":"sliding_window_buckets","limit":1000000,"window":"30d","precision":"1d"},
		{"slug":"attributes","resource":"heavy","limit":1000000,"window":"30d","by":["subject",%s]}]}`, strings.Join(by, ",")))
	for _, n := range r.nodes {
		require.Eventually(m.T, func() bool {
			_, body, err := c.try(http.MethodPost, n.url()+"/v1/check", `{"subject":"peek","resource":"heavy","cost":0}`)
			return err == nil && strings.Contains(string(body), `"rule":"buckets"`)
		}, patience, tick)
	}
	l := r.load(r.probing()...)
	l.seconds(3)
	require.NoError(m.T, admin(m.T, r.redis).ConfigResetStat(context.Background()).Err())
	fault := l.now()
	var senders sync.WaitGroup
	for w := range 3 {
		senders.Go(func() {
			for n := range 60 {
				var checks []string
				for k := range 100 {
					checks = append(checks, fmt.Sprintf(`{"subject":"s%d","resource":"heavy","attributes":{%s}}`, (n+k)%40, strings.Join(attributes, ",")))
				}
				status, body, err := c.try(http.MethodPost, r.nodes[w].url()+"/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`)
				if err != nil || status != http.StatusOK {
					m.Errorf("%v %d %.200s", err, status, body)
					return
				}
			}
		})
	}
	senders.Wait()
	end := l.now()
	info, err := admin(m.T, r.redis).Info(context.Background(), "latencystats").Result()
	require.NoError(m.T, err)
	h := l.stop()
	m.decided(h)
	found := percentiles.FindStringSubmatch(info)
	require.NotNil(m.T, found, info)
	p50, _ := strconv.ParseFloat(found[1], 64)
	p99, _ := strconv.ParseFloat(found[2], 64)
	m.within("p50 of a script", time.Duration(p50)*time.Microsecond, time.Millisecond)
	m.within("p99 of a script", time.Duration(p99)*time.Microsecond, time.Millisecond)
	base := h.between(time.Second, fault).p99()
	m.within("p99 of others", h.between(fault, end).p99(), base*3/2)
	m.note("18 000 checks with three such rules each. Base p99 %s.", round(base))
}
