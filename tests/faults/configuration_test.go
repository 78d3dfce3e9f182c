package faults

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// spread changes the limit of a tenant's rule repeatedly, and returns how long each change took to
// reach the instance that was last.
func (r *rig) spread(c *caller, changes int) (times []time.Duration) {
	r.t.Helper()
	for n := range changes {
		limit := 200_000 + n
		began := time.Now()
		status, _, _ := r.putLimit(c, r.nodes[n%instances], limit)
		require.Equal(r.t, http.StatusOK, status)
		for _, node := range r.nodes {
			for limitAt(c, node) != limit {
				require.Less(r.t, time.Since(began), patience)
			}
		}
		times = append(times, time.Since(began))
	}
	return times
}

func notificationsLost(m *measurement) {
	elsewhere := harness.NewDatabase(m.T)
	r := newRig(m.T, func(r *rig) { r.settings["WEIR_DATABASE_LISTEN_URL"] = elsewhere })
	times := r.spread(r.ordinary("quiet"), int(m.seconds(30, 6)))
	m.within(fmt.Sprintf("slowest of %d changes without notifications", len(times)), quantileOf(times, 1), time.Second)
	m.within("median", quantileOf(times, 0.5), time.Second)

	r = newRig(m.T)
	c := r.ordinary("loud")
	var slowest time.Duration
	rounds := int(m.seconds(5, 2))
	for range rounds {
		r.database(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir_listener'`)
		slowest = max(slowest, quantileOf(r.spread(c, 3), 1))
	}
	m.within(fmt.Sprintf("slowest of %d changes while listeners are ended", 3*rounds), slowest, time.Second)
}

func largeTenantChanges(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_WRITE_RATE": "0"}))
	document := func(n int) string {
		var rules, plans, limits []string
		for i := range 300 {
			slug := fmt.Sprintf("rule-%d", i)
			rules = append(rules, fmt.Sprintf(`{"slug":%q,"resource":"r-%d","limit":%d,"window":"1m"}`, slug, i, 100+n+i))
			limits = append(limits, fmt.Sprintf(`%q:{"limit":%d}`, slug, 10+n+i))
		}
		for i := range 10 {
			plans = append(plans, fmt.Sprintf(`{"slug":"plan-%d","limits":{%s}}`, i, strings.Join(limits, ",")))
		}
		return `{"rules":[` + strings.Join(rules, ",") + `],"plans":[` + strings.Join(plans, ",") + `]}`
	}
	large := r.tenant("large", document(0))
	other := r.ordinary("other")
	l := r.load(r.probing()...)
	l.seconds(3)
	fault := l.now()
	done := make(chan struct{})
	var writer sync.WaitGroup
	var changes atomic.Int64
	writer.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if status, body, err := large.try(http.MethodPut, r.nodes[n%instances].url()+"/v1/config", document(n)); err != nil || status != http.StatusOK {
				m.Errorf("%v %d %s", err, status, body)
				return
			}
			changes.Add(1)
		}
	})
	var times []time.Duration
	for changes.Load() < 10 && !m.Failed() {
		times = append(times, r.spread(other, 40)...)
	}
	repair := l.now()
	close(done)
	writer.Wait()
	h := l.stop()
	m.decided(h)
	m.within(fmt.Sprintf("p99 of %d changes of another tenant", len(times)), quantileOf(times, 0.99), 300*time.Millisecond)
	m.within("median", quantileOf(times, 0.5), 300*time.Millisecond)
	base := h.between(time.Second, fault).p99()
	m.within("p99 of checks", h.between(fault, repair).p99(), base*3/2)
	m.note("%d changes of 3 000 limits each in %s. Base p99 %s.", changes.Load(), round(repair-fault), round(base))
}

// quantileOf returns a quantile of times, such as 0.99; 1 is the longest.
func quantileOf(times []time.Duration, q float64) time.Duration {
	h := &history{}
	for _, t := range times {
		h.records = append(h.records, record{took: t})
	}
	return h.quantile(q)
}
