package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// docs/algorithms.md states the maximum that each algorithm allows in one window. This traffic
// reaches it: nothing until shortly before an edge, then as many requests as possible in every
// millisecond.
func TestBoundsAreReachedAndKept(t *testing.T) {
	const window, lim = 1_000, 10
	for a, bound := range map[limit.Algorithm]int64{
		limit.FixedWindow:          2 * lim,
		limit.FixedWindowFirstHit:  2*lim - 1,
		limit.SlidingWindowLog:     lim,
		limit.SlidingWindowCounter: 2*lim - 2*lim/window,
		limit.SlidingWindowBuckets: 2 * lim,
		limit.TokenBucket:          lim + (window-1)*lim/window,
		limit.LeakyBucket:          lim + (window-1)*lim/window,
		limit.LeakyBucketQueue:     lim, // starts
	} {
		n := limit.Numbers{Algorithm: a, Limit: lim, WindowMS: window}
		if a.Bucket() {
			n.Burst = lim
		}
		if a == limit.SlidingWindowBuckets {
			n.PrecisionMS = window / 5
		}
		most := int64(0)
		for _, first := range []int64{window - 1, window/5 - 1, window / 2, 0} {
			most = max(most, mostPassed(t, n, first, false), mostPassed(t, n, first, true))
		}
		require.Equal(t, bound, most, a)
	}
}

// mostPassed returns the maximum that is allowed within one window. The traffic floods a new
// counter from the millisecond first on, for three windows. If early is true, there is a single
// request before it.
func mostPassed(t *testing.T, n limit.Numbers, first int64, early bool) (most int64) {
	const start = 1_704_672_000_000
	eng := engine.NewMemory(engine.MemoryOptions{})
	passed := make([]int64, 5*n.WindowMS) // in each millisecond; for a queue: started
	ask := func(at int64) bool {
		call := &engine.Call{NowMS: start + at, Cost: 1, Counters: []engine.Counter{{Key: "k", Numbers: n}}}
		eng.Evaluate(context.Background(), call)
		require.NoError(t, call.Err)
		if call.Outcome.Allowed {
			passed[at+call.Outcome.Verdicts[0].DelayMS]++
		}
		return call.Outcome.Allowed
	}
	if early {
		ask(0)
	}
	for at := first; at < 3*n.WindowMS; at++ {
		for ask(at) {
		}
	}
	within := int64(0)
	for at := range int64(len(passed)) {
		within += passed[at]
		if at >= n.WindowMS {
			within -= passed[at-n.WindowMS]
		}
		most = max(most, within)
	}
	return most
}
