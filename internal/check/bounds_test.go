package check_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
)

// What docs/algorithms.md promises to be the most that passes in one window, by traffic made to
// reach it: silence until shortly before an edge, then as much as there is, every millisecond.
func TestBoundsAreReachedAndKept(t *testing.T) {
	const window, limit = 1_000, 10
	for a, bound := range map[check.Algorithm]int64{
		check.FixedWindow:          2 * limit,
		check.FixedWindowFirstHit:  2*limit - 1,
		check.SlidingWindowLog:     limit,
		check.SlidingWindowCounter: 2*limit - 2*limit/window,
		check.SlidingWindowBuckets: 2 * limit,
		check.TokenBucket:          limit + (window-1)*limit/window,
		check.LeakyBucket:          limit + (window-1)*limit/window,
		check.LeakyBucketQueue:     limit, // starts
	} {
		n := check.Numbers{Algorithm: a, Limit: limit, WindowMS: window}
		if a.Bucket() {
			n.Burst = limit
		}
		if a == check.SlidingWindowBuckets {
			n.PrecisionMS = window / 5
		}
		most := int64(0)
		for _, first := range []int64{window - 1, window/5 - 1, window / 2, 0} {
			most = max(most, mostPassed(t, n, first, false), mostPassed(t, n, first, true))
		}
		require.Equal(t, bound, most, a)
	}
}

// mostPassed returns the most that passes within one window of traffic that floods a new
// counter from the millisecond first on, for three windows, early with a lone request before.
func mostPassed(t *testing.T, n check.Numbers, first int64, early bool) (most int64) {
	const start = 1_704_672_000_000
	engine := check.NewMemoryEngine(check.MemoryOptions{})
	passed := make([]int64, 5*n.WindowMS) // at each millisecond; of a queue: started
	ask := func(at int64) bool {
		call := &check.Call{NowMS: start + at, Cost: 1, Counters: []check.Counter{{Key: "k", Numbers: n}}}
		engine.Evaluate(context.Background(), call)
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
