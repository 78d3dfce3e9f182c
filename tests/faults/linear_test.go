package faults

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// spend is one check of a counter: how many units it asked for, and the milliseconds since 1970 in
// which it was sent and answered.
type spend struct {
	cost     int
	from, to int64
}

// spent is the answer of a check. Without a decision of Redis, it is unknown whether the units were
// counted.
type spent struct {
	allowed, unknown bool
	remaining        int64
	delay, reset     time.Duration
}

// counterModel is the specification of one counter whose window does not end during the history.
// All algorithms are the same then: a check is allowed if its cost fits, and the answer names what
// remains. A denial may be answered from memory for 100 ms, with what remained then, so its number
// is not compared. The state is the number of used units. delayed reports whether an allowed check
// may be told to wait this long after so many used units.
func counterModel(limit int, delayed func(used int, delay time.Duration) bool) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{0} },
		Step: func(state, input, output any) []any {
			used, in, out := state.(int), input.(spend), output.(spent)
			fits := used+in.cost <= limit
			switch {
			case out.unknown && fits:
				return []any{used, used + in.cost}
			case out.unknown:
				return []any{used}
			case out.allowed && fits && out.remaining == int64(limit-used-in.cost) && delayed(used, out.delay):
				return []any{used + in.cost}
			case !out.allowed && !fits:
				return []any{used}
			}
			return nil
		},
		Equal: func(a, b any) bool { return a.(int) == b.(int) },
	}
	return model.ToModel()
}

// delays returns what an algorithm tells allowed checks: to wait until all earlier units have
// drained if it is leaky_bucket_queue, and not to wait otherwise. Units drain from the first check
// on, so a wait is shorter than that of a full bucket by at most the time that a history takes.
func delays(algorithm string, limit int, window, longest time.Duration) func(used int, delay time.Duration) bool {
	return func(used int, delay time.Duration) bool {
		if algorithm != "leaky_bucket_queue" {
			return delay == 0
		}
		full := time.Duration(float64(window) / float64(limit) * float64(used))
		return full-longest <= delay && delay <= full+time.Millisecond
	}
}

// The clients of a history.
const historyClients = 12

// historySize is how many checks each of the clients sends.
func (m *measurement) historySize() int { return int(m.seconds(167, 40)) }

// historyLimit is the limit of each rule of N2 and N11. The clients ask for twice as much, and a
// little more.
func (m *measurement) historyLimit() int { return historyClients * m.historySize() * 5 / 4 }

func linearizable(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	window := harness.QuietWindow(time.Now(), 360, 3)
	m.linearizableEverywhere(r, r.everyAlgorithm("algorithms", m.historyLimit(), window, "3d"), window, nil)
	m.linearizableInTime(r)
}

func linearizableInCluster(m *measurement) {
	r := newRig(m.T, withCluster(2*time.Second), with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	window := harness.QuietWindow(time.Now(), 360, 3)
	c := r.everyAlgorithm("algorithms", m.historyLimit(), window, "3d")
	u := &upheaval{rig: r, key: r.counterOf(c, "fixed_window")}
	u.during(func() { m.linearizableEverywhere(r, c, window, u) })
	m.upheavals(u)
}

// linearizableEverywhere records histories of each algorithm, and checks each with porcupine. With
// an upheaval, an algorithm has histories until each kind of it has occurred.
func (m *measurement) linearizableEverywhere(r *rig, c *caller, window string, u *upheaval) {
	var days int
	if _, err := fmt.Sscanf(window, "%dd", &days); err != nil {
		m.Errorf("the window %q: %v", window, err)
		return
	}
	limit := m.historyLimit()
	pace := time.Duration(0)
	if u != nil {
		pace = time.Second // so that something occurs during a history
	}
	histories, operations, degraded, possible, wrong, undecided, overlapping := 0, 0, 0, 0, 0, 0, 0
	for _, algorithm := range algorithms {
		seen := u.startOf(m)
		rounds := max(int(m.seconds(3, 1)), *manyFlag/1000/len(algorithms))
		for round := 0; round < rounds || !u.eachSince(seen); round++ {
			before := u.counts()
			history, unknown, took := r.history(c, algorithm, fmt.Sprint("history_", round), m.historySize(), pace)
			if u.counts() != before {
				overlapping++
			}
			histories, operations, degraded = histories+1, operations+len(history), degraded+unknown
			for _, operation := range history {
				if operation.Output.(spent).unknown {
					possible++
				}
			}
			model := counterModel(limit, delays(algorithm, limit, time.Duration(days)*24*time.Hour, took+time.Second))
			switch porcupine.CheckOperationsTimeout(model, history, 20*time.Second) {
			case porcupine.Illegal:
				wrong++
				m.Logf("%s, round %d is not linearizable", algorithm, round)
			case porcupine.Unknown:
				undecided++
			}
			if m.Failed() {
				return
			}
		}
	}
	m.none(fmt.Sprintf("not linearizable, of %d histories with %d operations", histories, operations), wrong)
	m.atMost("histories that porcupine could not decide in 20 s", undecided, histories/8)
	m.note("Of all eight algorithms: in each history, %d clients send %d checks each over %d instances. %d answers were degraded, of which Redis may have counted %d. No window ends during these histories.",
		historyClients, m.historySize(), instances, degraded, possible)
	if u != nil {
		m.some("histories during which a move, a failover or a flush was completed", overlapping)
	}
}

// history records the checks of one counter, which the clients send in this time, or as fast as
// they can. unknown is how many got no decision of Redis. Of them, only those are part of the
// history that Redis may have counted.
func (r *rig) history(c *caller, algorithm, subject string, each int, lasts time.Duration) (part []porcupine.Operation, unknown int, took time.Duration) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	var operations []porcupine.Operation
	answers := new(history)
	began := time.Now()
	for client := range historyClients {
		workers.Go(func() {
			for n := range each {
				in := spend{cost: 1 + (client+n)%3, from: time.Now().UnixMilli()}
				call, node := time.Since(began), (client+n)%instances
				rec := c.check(r.nodes[node], subject, algorithm, in.cost)
				answered := time.Since(began)
				in.to = time.Now().UnixMilli()
				out := spent{rec.allowed, rec.degraded || rec.failure != "", rec.remaining, rec.delay, rec.reset}
				rec.node, rec.at, rec.sent, rec.took = node, call, call, answered-call
				mu.Lock()
				rec.subject = len(operations) // where it is in the history
				answers.records = append(answers.records, rec)
				operations = append(operations, porcupine.Operation{ClientId: client, Input: in, Call: call.Nanoseconds(), Output: out, Return: answered.Nanoseconds()})
				mu.Unlock()
				if lasts > 0 {
					r.pause(lasts / time.Duration(each))
				}
			}
		})
	}
	workers.Wait()
	took = time.Since(began)
	possible := map[int]bool{}
	for _, rec := range answers.uncertain() {
		possible[rec.subject] = true
	}
	for n, operation := range operations {
		without := operation.Output.(spent).unknown
		if without {
			unknown++
		}
		if !without || possible[n] {
			part = append(part, operation)
		}
	}
	return part, unknown, took
}

// The model distinguishes histories that differ in one number.
func TestCounterModel(t *testing.T) {
	const limit, window = 4, 40 * time.Second
	first := spent{allowed: true, remaining: 2}
	last := spent{allowed: true, remaining: 0}
	for name, c := range map[string]struct {
		algorithm string
		second    spent
		third     spent
		legal     bool
	}{
		"counted":                      {"fixed_window", last, spent{}, true},
		"lost":                         {"fixed_window", spent{allowed: true, remaining: 2}, spent{}, false},
		"allowed beyond the limit":     {"fixed_window", last, spent{allowed: true}, false},
		"unknown, and counted":         {"fixed_window", spent{unknown: true}, spent{}, true},
		"unknown, and not counted":     {"fixed_window", spent{unknown: true}, last, true},
		"denied although units remain": {"fixed_window", spent{}, last, false},
		"a wait without a queue":       {"leaky_bucket", spent{allowed: true, delay: 20 * time.Second}, spent{}, false},
		"the wait of a queue":          {"leaky_bucket_queue", spent{allowed: true, delay: 20 * time.Second}, spent{}, true},
		"a shorter wait":               {"leaky_bucket_queue", spent{allowed: true, delay: 10 * time.Second}, spent{}, false},
	} {
		var history []porcupine.Operation
		for n, out := range []spent{first, c.second, c.third} {
			history = append(history, porcupine.Operation{Input: spend{cost: 2}, Output: out, Call: int64(2 * n), Return: int64(2*n + 1)})
		}
		model := counterModel(limit, delays(c.algorithm, limit, window, time.Second))
		require.Equal(t, c.legal, porcupine.CheckOperations(model, history), name)
	}
}
