package faults

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"weir/tests/harness"
)

// spend is one check of a counter: how many units it asked for, and the answer.
type spend struct{ cost int }

// spent is the answer of a check. Without a decision of Redis, it is unknown whether the units were
// counted.
type spent struct {
	allowed, unknown bool
	remaining        int64
}

// counterModel is the specification of one counter whose window does not end: a check is allowed if
// its cost fits, and the answer names what remains. A denial may be answered from memory for
// 100 ms, with what remained then, so its number is not compared. The state is the number of used
// units.
func counterModel(limit int) porcupine.Model {
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
			case out.allowed && fits && out.remaining == int64(limit-used-in.cost):
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

func linearizable(m *measurement) {
	const clients, each = 12, 167
	const limit = clients * each * 5 / 4 // they ask for twice as much
	r := newRig(m.T, with(harness.Settings{"WEIR_REDIS_TIMEOUT": "1s"}))
	exact := []string{"sliding_window_log", "fixed_window", "fixed_window_first_hit", "token_bucket", "leaky_bucket"}
	c := r.everyAlgorithm(limit, harness.QuietWindow(time.Now(), 360, 3), "3d")
	histories, operations, wrong, undecided := 0, 0, 0, 0
	for _, algorithm := range exact {
		for round := range max(4, *manyFlag/1000/len(exact)) {
			var mu sync.Mutex
			var history []porcupine.Operation
			var workers sync.WaitGroup
			began := time.Now()
			for client := range clients {
				workers.Go(func() {
					for n := range each {
						in := spend{cost: 1 + (client+n)%3}
						call := time.Since(began).Nanoseconds()
						var rec record
						rec.read(c.try(http.MethodPost, r.nodes[(client+n)%instances].url()+"/v1/check",
							fmt.Sprintf(`{"subject":"history_%d","resource":%q,"cost":%d}`, round, algorithm, in.cost)))
						answered := time.Since(began).Nanoseconds()
						out := spent{allowed: rec.allowed, unknown: rec.degraded || rec.failure != "", remaining: rec.remaining}
						mu.Lock()
						history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: answered})
						mu.Unlock()
					}
				})
			}
			workers.Wait()
			histories, operations = histories+1, operations+len(history)
			switch porcupine.CheckOperationsTimeout(counterModel(limit), history, 20*time.Second) {
			case porcupine.Illegal:
				wrong++
				m.Logf("%s, round %d is not linearizable", algorithm, round)
			case porcupine.Unknown:
				undecided++
			}
		}
	}
	m.none(fmt.Sprintf("not linearizable, of %d histories with %d operations", histories, operations), wrong)
	m.note("Of five algorithms: in each history, %d clients send %d checks each over %d instances.", clients, each, instances)
	m.number("histories that porcupine could not decide in 20 s", float64(undecided), 0, "")
}
