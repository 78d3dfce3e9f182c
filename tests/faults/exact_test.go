package faults

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

var algorithms = []string{
	"sliding_window_counter", "sliding_window_log", "sliding_window_buckets", "fixed_window", "fixed_window_first_hit",
	"token_bucket", "leaky_bucket", "leaky_bucket_queue",
}

// everyAlgorithm creates a tenant with a rule and a resource for each algorithm. The precision is
// that of sliding_window_buckets.
func (r *rig) everyAlgorithm(tenant string, limit int, window, precision string) *caller {
	r.t.Helper()
	var rules string
	for n, algorithm := range algorithms {
		more := ""
		if algorithm == "sliding_window_buckets" {
			more = `,"precision":"` + precision + `"`
		}
		rules += fmt.Sprintf(`,{"slug":"r%d","resource":%q,"algorithm":%q,"limit":%d,"window":%q,"on_unavailable":"deny"%s}`,
			n, algorithm, algorithm, limit, window, more)
	}
	c := r.tenant(tenant, `{"rules":[`+rules[1:]+`]}`)
	for _, n := range r.nodes {
		require.Eventually(r.t, func() bool {
			_, body, err := c.try(http.MethodPost, n.url()+"/v1/check", `{"subject":"peek","resource":"fixed_window","cost":0}`)
			var a answer
			return err == nil && json.Unmarshal(body, &a) == nil && a.Remaining != nil
		}, patience, tick)
	}
	return c
}

// manyFlag is for long runs of N1, N2, N10 and N11: `make exactness`.
var manyFlag = flag.Int("many", 0, "decisions of N1 and of N10 for each algorithm; N2 and N11 check a history for each thousand of them")

// clientsEach is how many clients ask each instance in N1 and N10.
const clientsEach = 64

func concurrentExactness(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	m.exactEverywhere(r, r.everyAlgorithm("algorithms", m.exactLimit(), harness.QuietWindow(time.Now(), 360, 3), "3d"), nil)
}

func exactnessInCluster(m *measurement) {
	r := newRig(m.T, withCluster(2*time.Second), with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	c := r.everyAlgorithm("algorithms", m.exactLimit(), harness.QuietWindow(time.Now(), 360, 3), "3d")
	u := &upheaval{rig: r, key: r.counterOf(c, "fixed_window")}
	u.during(func() { m.exactEverywhere(r, c, u) })
	m.upheavals(u)
}

// exactLimit is the limit of each rule of N1 and N10.
func (m *measurement) exactLimit() int { return int(m.seconds(4000, 1000)) }

// exactEverywhere uses up limits of each algorithm, and reports what was allowed beyond them and
// what was left of them. With an upheaval, an algorithm is used until each kind of it has
// occurred.
func (m *measurement) exactEverywhere(r *rig, c *caller, u *upheaval) {
	limit := m.exactLimit()
	decisions, degraded, limits, began := 0, 0, 0, time.Now()
	rounds := int(m.seconds(2, 1))
	for _, algorithm := range algorithms {
		over, under, before, seen := 0, 0, decisions, u.startOf(m)
		for round := 0; round < rounds || decisions-before < *manyFlag || !u.eachSince(seen); round++ {
			used, ok := r.useUp(c, algorithm, fmt.Sprint("round_", round), limit)
			if !ok {
				m.Errorf("%s: checks failed", algorithm)
				return
			}
			over = max(over, used.allowed-limit)
			under = max(under, used.left, limit-used.allowed-used.unknown)
			decisions, degraded, limits = decisions+used.decisions, degraded+used.degraded, limits+1
		}
		m.none(algorithm+": O, units", over)
		m.none("U", under)
	}
	m.note("%d decisions, of which %d degraded, %.0f per second. %d limits of %d units each. `make exactness` has a million decisions for each algorithm.",
		decisions, degraded, float64(decisions)/time.Since(began).Seconds(), limits, limit)
}

// usedUp is the outcome of one limit: the units that were allowed, those of degraded answers, which
// Redis may or may not have counted, and those that Redis still has afterwards.
type usedUp struct{ allowed, unknown, left, decisions, degraded int }

// useUp lets all clients use one limit together. Each asks for smaller and smaller costs, so that
// the last units are used one by one. ok is false if a check got no decision.
func (r *rig) useUp(c *caller, algorithm, subject string, limit int) (result usedUp, ok bool) {
	r.t.Helper()
	var allowed, unknown, decisions, degraded, failures atomic.Int64
	var workers sync.WaitGroup
	for n := range clientsEach * instances {
		workers.Go(func() {
			for cost := n%5 + 1; cost > 0; {
				rec := c.check(r.nodes[n%instances], subject, algorithm, cost)
				decisions.Add(1)
				switch {
				case rec.failure != "":
					failures.Add(1)
					r.t.Errorf("%s", rec.failure)
					return
				case rec.degraded:
					degraded.Add(1)
					unknown.Add(int64(cost))
					r.pause(20 * time.Millisecond) // the processors are those of Redis, which shall recover
				case rec.allowed:
					allowed.Add(int64(cost))
				default:
					cost--
				}
			}
		})
	}
	workers.Wait()
	result = usedUp{int(allowed.Load()), int(unknown.Load()), 0, int(decisions.Load()), int(degraded.Load())}
	for began := time.Now(); failures.Load() == 0 && time.Since(began) < patience; {
		if rec := c.check(r.nodes[0], subject, algorithm, 0); rec.failure == "" && !rec.degraded {
			result.left = int(rec.remaining)
			return result, true
		}
	}
	return result, false
}

// check sends one check to an instance.
func (c *caller) check(n *node, subject, resource string, cost int) (rec record) {
	rec.remaining = -1
	rec.read(c.try(http.MethodPost, n.url()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":%q,"cost":%d}`, subject, resource, cost)))
	return rec
}
