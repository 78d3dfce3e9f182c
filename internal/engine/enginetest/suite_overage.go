package enginetest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// With any number of concurrent clients, every unit is counted, and each call learns the excess
// after it: together they are all states that the counter can pass through.
func testOverage(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	n := five(a)
	if n.Overage = n.Overages(); !n.Overage {
		n.Overage = true
		call := &engine.Call{NowMS: start, Cost: 1, Counters: []engine.Counter{counter(Prefix()+"k", n)}}
		eng.Evaluate(context.Background(), call)
		require.Error(t, call.Err, "a counter without windows has no excess")
		return
	}
	prefix := Prefix()
	for _, grouped := range []bool{false, true} {
		c, beside := counter(prefix+"k", n), counter(prefix+"beside", five(limit.TokenBucket))
		if grouped { // where the algorithm can be in a group
			c.Key = prefix + "another-counter"
			if a != limit.SlidingWindowBuckets {
				c.Key, c.ID, c.Grouped = prefix+"some-group", "the-rule-", true
			}
		}
		beside.Shadow = true
		var mu sync.Mutex
		var seen []int64
		var clients sync.WaitGroup
		for client := range 16 {
			clients.Go(func() {
				for range 10 {
					call := &engine.Call{NowMS: start, Cost: 1, Counters: []engine.Counter{c, beside}}
					if client%2 == 0 { // equal calls of one run
						call.Counters = call.Counters[:1]
					}
					eng.Evaluate(context.Background(), call)
					if call.Err != nil || !call.Outcome.Allowed {
						t.Error(call.Err, call.Outcome)
						continue
					}
					mu.Lock()
					seen = append(seen, call.Outcome.Verdicts[0].Overage-call.Outcome.Verdicts[0].Remaining)
					mu.Unlock()
				}
			})
		}
		clients.Wait()
		slices.Sort(seen)
		for i, left := range seen {
			require.EqualValues(t, i+1-5, left)
		}
		v := ask(t, eng, start, 0, c).Outcome.Verdicts[0]
		require.EqualValues(t, []int64{0, 155}, []int64{v.Remaining, v.Overage})
		require.Equal(t, v.ResetMS, ask(t, eng, start, 0, c).Outcome.Verdicts[0].ResetMS)

		// The same counter without overage denies, and knows the usage.
		c.Numbers.Overage = false
		call := ask(t, eng, start, 1, c)
		require.False(t, call.Outcome.Allowed)
		require.Zero(t, call.Outcome.Verdicts[0].Overage)
		c.Numbers.Limit = 161
		require.EqualValues(t, 1, ask(t, eng, start, 0, c).Outcome.Verdicts[0].Remaining)
	}
}
