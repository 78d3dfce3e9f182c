package faults

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

var noFaultRows = []row{
	{id: "N1", fault: "Three instances, 64 clients each, one subject per limit, costs 1 to 5, for every algorithm", quick: true, run: concurrentExactness,
		goal: "O = 0 and U = 0, to the unit"},
	{id: "N2", fault: "Concurrent histories of one counter over three instances, checked with porcupine: of windows that last, and of windows of a second", quick: true, run: linearizable,
		goal: "all histories linearizable"},
	{id: "N3", fault: "The Lua scripts, the engine in memory and the reference model get the same random sequences",
		goal: "no difference",
		why:  "`TestRandomSequences` in `internal/engine/redis` compares them in `make test`."},
	{id: "N4", fault: "2 000 denied checks and batches", quick: true, run: denialsWriteNothing,
		goal: "every counter in Redis is the same byte for byte"},
	{id: "N5", fault: "Every algorithm, under load", quick: true, run: everyKeyExpires,
		goal: "no key without an expiry"},
	{id: "N6", fault: "The numbers of answers, over 10 s of load", quick: true, run: stableNumbers,
		goal: "`remaining` of a denial is less than its cost; the reset that answers of a window name is one instant, within 1 ms beyond the rounding to whole milliseconds"},
	{id: "N7", fault: "100 changes of rules, until the last instance uses them", quick: true, run: changesSpread,
		goal: "p50 ≤ 50 ms, p99 ≤ 300 ms, max ≤ 1 s; no counter is reset"},
	{id: "N8", fault: "60 revocations of keys, until the last instance refuses them; 20 more with notifications lost", quick: true, run: revocationsSpread,
		goal: "p99 ≤ 300 ms, max ≤ 1 s; max ≤ 1 s with notifications lost"},
	{id: "N9", fault: "An override, a change of plan and a reset, while all instances answer a denial from memory", quick: true, run: denialsLifted,
		goal: "the subject is allowed everywhere within 1 s"},
	{id: "N10", fault: "N1 with a Cluster of 3 + 3, while the slot of the counters is moved, its master is failed over by command, and scripts are flushed", quick: true, run: exactnessInCluster,
		goal: "O = 0 and U = 0, to the unit; every algorithm meets each of the three"},
	{id: "N11", fault: "The first histories of N2 with a Cluster of 3 + 3, while the slot of the counter is moved, its master is failed over by command, and scripts are flushed", quick: true, run: linearizableInCluster,
		goal: "all histories linearizable; every algorithm meets each of the three"},
}

// dump returns the contents of all counters.
func dump(m *measurement, s *testenv.Redis) map[string]string {
	m.Helper()
	control := admin(m.T, s)
	keys, err := control.Keys(m.T.Context(), "w{*").Result()
	require.NoError(m.T, err)
	all := map[string]string{}
	for _, key := range keys {
		if !strings.HasPrefix(key, "w{canary") {
			all[key] = control.Dump(m.T.Context(), key).Val()
		}
	}
	return all
}

func denialsWriteNothing(m *measurement) {
	r := newRig(m.T)
	c := r.everyAlgorithm("algorithms", 5, harness.QuietWindow(time.Now(), 360, 3), "3d")
	for _, algorithm := range algorithms {
		for range 5 {
			status, body := c.do(http.MethodPost, r.nodes[0].url()+"/v1/check", fmt.Sprintf(`{"subject":"ada","resource":%q}`, algorithm))
			require.Equal(m.T, http.StatusOK, status, "%s", body)
		}
	}
	before := dump(m, r.redis)
	require.GreaterOrEqual(m.T, len(before), len(algorithms))
	denied := 0
	for n := 0; denied < 2000; n++ {
		for _, algorithm := range algorithms {
			one := fmt.Sprintf(`{"subject":"ada","resource":%q,"cost":%d}`, algorithm, n%5+1)
			node := r.nodes[n%instances]
			if n%4 == 0 {
				status, body := c.do(http.MethodPost, node.url()+"/v1/check/batch", `{"checks":[`+one+`,`+one+`]}`)
				require.Equal(m.T, http.StatusOK, status, "%s", body)
				denied += 2
				continue
			}
			status, body := c.do(http.MethodPost, node.url()+"/v1/check", one)
			require.Equal(m.T, http.StatusTooManyRequests, status, "%s", body)
			denied++
		}
	}
	after := dump(m, r.redis)
	changed := 0
	for key, value := range after {
		if before[key] != value {
			changed++
		}
	}
	m.none(fmt.Sprintf("changed counters of %d after %d denials", len(before), denied), changed+abs(len(after)-len(before)))
}

func everyKeyExpires(m *measurement) {
	r := newRig(m.T)
	c := r.everyAlgorithm("algorithms", 50, "2s", "100ms")
	streams := r.probing()
	for _, algorithm := range algorithms {
		streams = append(streams, stream{from: c, resource: algorithm, subjects: 20, rate: 20, cost: 2})
	}
	l := r.load(streams...)
	keys := int64(0)
	for range 4 {
		l.seconds(1.5)
		keys = max(keys, keysWithoutExpiry(m.T, r.redis))
	}
	h := l.stop()
	m.decided(h)
	size, err := admin(m.T, r.redis).DBSize(m.T.Context()).Result()
	require.NoError(m.T, err)
	m.none(fmt.Sprintf("keys without expiry, of %d", size), int(keys))
}

func stableNumbers(m *measurement) {
	r := newRig(m.T)
	l := r.load(stream{from: r.probe, resource: "local", subjects: 6, rate: 150}, stream{from: r.probe, resource: "deny", subjects: 4, rate: 120, cost: 5})
	l.seconds(m.seconds(10, 4))
	h := l.stop()
	m.decided(h)
	m.none("denials with units left for their cost", h.count(func(rec *record) bool {
		return rec.failure == "" && !rec.allowed && !rec.degraded && rec.remaining >= int64(max(1, h.load.streams[rec.stream].cost))
	}))
	// An answer's reset lies between the times at which the check was sent and answered, plus
	// reset_after_ms, which counts from the millisecond in which Redis decided: the reset may be up
	// to one millisecond earlier. For all answers of a window, these periods have an instant in
	// common.
	type period struct{ from, to time.Duration }
	periods := map[[3]int64]period{}
	for i := range h.records {
		rec := &h.records[i]
		if rec.failure != "" || rec.degraded || rec.reset == 0 {
			continue
		}
		middle := h.load.began.Add(rec.done()).Add(rec.reset)
		key := [3]int64{int64(rec.stream), int64(rec.subject), (middle.UnixNano() + int64(probeWindow)/2) / int64(probeWindow)}
		p, known := periods[key]
		if !known {
			p = period{from: -never, to: never}
		}
		periods[key] = period{max(p.from, rec.sent+rec.reset-time.Millisecond), min(p.to, rec.done()+rec.reset)}
	}
	worst := time.Duration(0)
	for _, p := range periods {
		worst = max(worst, p.from-p.to)
	}
	m.some("windows with a reset", len(periods))
	m.within("wobble of the reset", worst, time.Millisecond)
	m.note("Answers name whole milliseconds of the clock of Redis; this rounding is not part of the figure. A denial from memory counts from the answer of Redis to the check that it denied, so its times are too long by the time which that answer took to arrive.")
}

func changesSpread(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_WRITE_RATE": "0"}))
	c := r.ordinary("changing")
	for n := range 5 {
		status, _ := c.do(http.MethodPost, r.nodes[n%instances].url()+"/v1/check", `{"subject":"ada","resource":"requests","cost":100}`)
		require.Equal(m.T, http.StatusOK, status)
	}
	times := r.spread(c, 100)
	m.within("p50", quantileOf(times, 0.5), 50*time.Millisecond)
	m.within("p99", quantileOf(times, 0.99), 300*time.Millisecond)
	m.within("max", quantileOf(times, 1), time.Second)
	c2 := r.tenant("kept", fmt.Sprintf(`{"rules":[{"slug":"requests","resource":"requests","algorithm":"fixed_window","limit":100000,"window":%q}]}`, harness.QuietWindow(time.Now(), 30, 1)))
	r.awaitRule(c2, "requests")
	_, _ = c2.do(http.MethodPost, r.nodes[0].url()+"/v1/check", `{"subject":"peek","resource":"requests","cost":500}`)
	r.spread(c2, 20)
	var rec record
	rec.read(c2.try(http.MethodPost, r.nodes[1].url()+"/v1/check", `{"subject":"peek","resource":"requests","cost":0}`))
	m.none("units lost by 20 changes", abs(200_019-500-int(rec.remaining)))
}

func revocationsSpread(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_WRITE_RATE": "0"}))
	var times []time.Duration
	for n := range 60 {
		times = append(times, r.revoked(r.nodes[(n+1)%instances], r.nodes[n%instances]))
	}
	m.within("p50", quantileOf(times, 0.5), 300*time.Millisecond)
	m.within("p99", quantileOf(times, 0.99), 300*time.Millisecond)
	m.within("max", quantileOf(times, 1), time.Second)
	elsewhere := harness.NewDatabase(m.T)
	r = newRig(m.T, func(r *rig) { r.settings["WEIR_DATABASE_LISTEN_URL"] = elsewhere })
	times = nil
	for n := range 20 {
		times = append(times, r.revoked(r.nodes[(n+1)%instances], r.nodes[n%instances]))
	}
	m.within("max without notifications", quantileOf(times, 1), time.Second)
}

func denialsLifted(m *measurement) {
	r := newRig(m.T)
	c := r.tenant("lifted", fmt.Sprintf(`{"rules":[{"slug":"requests","resource":"requests","algorithm":"fixed_window","limit":3,"window":%q}],
		"plans":[{"slug":"small","default":true,"limits":{"requests":{"limit":3}}},{"slug":"large","limits":{"requests":{"limit":100}}}]}`, harness.QuietWindow(time.Now(), 30, 1)))
	r.awaitRule(c, "requests")
	ask := func(n *node, subject string) bool {
		status, _ := c.do(http.MethodPost, n.url()+"/v1/check", `{"subject":"`+subject+`","resource":"requests"}`)
		return status == http.StatusOK
	}
	for _, how := range []struct{ name, method, path, body string }{
		{"override", http.MethodPut, "/overrides/requests", `{"limit":50,"reason":"test"}`},
		{"change of plan", http.MethodPut, "", `{"plan":"large"}`},
		{"reset", http.MethodPost, "/reset", `{"rule":"requests","reason":"test"}`},
	} {
		var slowest time.Duration
		for round := range 10 {
			subject := fmt.Sprintf("%c-%d", how.name[0], round)
			for _, n := range r.nodes {
				for ask(n, subject) {
				}
			}
			status, body := c.do(how.method, r.nodes[round%instances].url()+"/v1/subjects/"+subject+how.path, how.body)
			began := time.Now()
			require.Less(m.T, status, 300, "%s", body)
			for _, n := range r.nodes { // a reset frees three units: one for each instance
				require.Eventually(m.T, func() bool { return ask(n, subject) }, patience, time.Millisecond)
			}
			slowest = max(slowest, time.Since(began))
		}
		m.within(how.name+", slowest of 10", slowest, time.Second)
	}
}
