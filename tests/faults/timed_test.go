package faults

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// fromMemory is how old a denial may be that an instance answers from memory.
const fromMemory = 100 * time.Millisecond

// timedModel is the specification of a counter whose windows end and whose units come back during
// the history: the arithmetic of internal/limit, which the scripts in Redis must repeat. The
// instant of a check is one of the milliseconds between its call and its answer. An allowed check
// names what remains, when everything is available again, and how long it must wait, all as of that
// instant. A denial may be answered from memory, so it holds if it was right a little earlier, and
// its numbers are not compared.
func timedModel(n limit.Numbers) porcupine.Model {
	denies := func(s limit.State, cost, now int64) bool { return s.Remaining(&n, now) < cost }
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{limit.NewState(n.Algorithm)} },
		Step: func(state, input, output any) (next []any) {
			s, in, out := state.(limit.State), input.(spend), output.(spent)
			if out.unknown {
				next = append(next, s)
			}
			for now := in.from; now <= in.to; now++ {
				if !out.allowed && !out.unknown {
					if denies(s, int64(in.cost), now) || denies(s, int64(in.cost), now-fromMemory.Milliseconds()) {
						return []any{s}
					}
					continue
				}
				j := limit.Judgement{Numbers: &n, State: s.Clone()}
				v := j.Admit(int64(in.cost), now)
				if !v.Allowed {
					continue
				}
				j.Charge(&v, int64(in.cost), now)
				j.Finish(&v, int64(in.cost), now)
				if out.unknown || v.Remaining == out.remaining && v.DelayMS == out.delay.Milliseconds() && v.ResetMS-now == out.reset.Milliseconds() {
					next = append(next, j.State)
				}
			}
			return next
		},
		Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
	}
	return model.ToModel()
}

// linearizableInTime checks histories of some windows of a second each. Not those of
// sliding_window_log: its answers do not tell the instant at which it counted, because all of it is
// available again one window after any check. Each possible instant is then another state, and
// their number multiplies with every check.
func (m *measurement) linearizableInTime(r *rig) {
	const most, window, each = 200, time.Second, 60
	c := r.everyAlgorithm("timed", most, "1s", "100ms")
	histories, operations, wrong, undecided := 0, 0, 0, 0
	for n, algorithm := range algorithms {
		if algorithmOf[n] == limit.SlidingWindowLog {
			continue
		}
		numbers := limit.Numbers{Algorithm: algorithmOf[n], Limit: most, WindowMS: window.Milliseconds()}
		if numbers.Algorithm.Bucket() {
			numbers.Burst = most
		}
		if numbers.Algorithm == limit.SlidingWindowBuckets {
			numbers.PrecisionMS = 100
		}
		for round := range int(m.seconds(3, 1)) {
			history, _, _ := r.history(c, algorithm, fmt.Sprint("timed_", round), each, 2500*time.Millisecond)
			histories, operations = histories+1, operations+len(history)
			switch porcupine.CheckOperationsTimeout(timedModel(numbers), history, 20*time.Second) {
			case porcupine.Illegal:
				wrong++
				m.Logf("%s, round %d in time is not linearizable", algorithm, round)
			case porcupine.Unknown:
				undecided++
			}
		}
	}
	m.none(fmt.Sprintf("not linearizable while windows end, of %d histories with %d operations", histories, operations), wrong)
	m.atMost("such histories that porcupine could not decide in 20 s", undecided, histories/8)
	m.note("In the histories of windows of a second, porcupine knows the arithmetic of all algorithms but `sliding_window_log`, whose answers do not tell the instant at which it counted.")
}

// algorithmOf has the algorithms in the order of their names in algorithms.
var algorithmOf = []limit.Algorithm{
	limit.SlidingWindowCounter, limit.SlidingWindowLog, limit.SlidingWindowBuckets, limit.FixedWindow, limit.FixedWindowFirstHit,
	limit.TokenBucket, limit.LeakyBucket, limit.LeakyBucketQueue,
}

// The model knows when a window ends, and distinguishes answers that differ in one number.
func TestTimedModel(t *testing.T) {
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 4, WindowMS: 1000}
	ask := func(at int64) spend { return spend{cost: 3, from: at, to: at + 2} }
	first := spent{allowed: true, remaining: 1, reset: 499 * time.Millisecond} // counted at 10 501
	for name, c := range map[string]struct {
		second spend
		out    spent
		legal  bool
	}{
		"denied":                     {ask(10_600), spent{}, true},
		"allowed beyond the limit":   {ask(10_600), spent{allowed: true, remaining: -2, reset: 400 * time.Millisecond}, false},
		"the next window":            {ask(11_000), spent{allowed: true, remaining: 1, reset: time.Second}, true},
		"a wrong number":             {ask(11_000), spent{allowed: true, remaining: 2, reset: time.Second}, false},
		"a wrong time":               {ask(11_000), spent{allowed: true, remaining: 1, reset: 990 * time.Millisecond}, false},
		"denied from memory":         {ask(11_050), spent{}, true},
		"denied in the next window":  {ask(11_200), spent{}, false},
		"unknown in the next window": {ask(11_200), spent{unknown: true}, true},
	} {
		history := []porcupine.Operation{
			{Input: ask(10_500), Output: first, Call: 0, Return: 1},
			{Input: c.second, Output: c.out, Call: 2, Return: 3},
		}
		require.Equal(t, c.legal, porcupine.CheckOperations(timedModel(n), history), name)
	}
}
