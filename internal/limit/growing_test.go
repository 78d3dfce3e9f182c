package limit_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A coarse counter needs memory for a few entries only, never allows more than its limit in a
// window, and frees a unit at most a twentieth of the window too late. With few entries it is
// exact.
func TestCoarseCounters(t *testing.T) {
	for _, n := range []limit.Numbers{
		{Algorithm: limit.SlidingWindowLog, Limit: 10_000, WindowMS: 100_000},
		{Algorithm: limit.SlidingWindowLog, Limit: limit.ExactEntries, WindowMS: 100_000},
		{Algorithm: limit.SlidingWindowBuckets, Limit: 1_000_000, WindowMS: 120_000, PrecisionMS: 1_000},
	} {
		r := rand.New(rand.NewPCG(1, uint64(n.Limit)))
		s, exact := limit.NewState(n.Algorithm).(limit.Growing), limit.NewState(n.Algorithm)
		s.Coarsen(true)
		type charge struct{ at, cost int64 }
		var all []charge
		now, most, denied := int64(1_704_672_000_000), int64(0), 0
		for range 50_000 {
			now += r.Int64N(40)
			cost := 1 + r.Int64N(3)
			if n.Limit == limit.ExactEntries {
				now += r.Int64N(20_000)
				require.Equal(t, exact.Remaining(&n, now), s.Remaining(&n, now))
			}
			if s.Remaining(&n, now) < cost {
				denied++
				continue
			}
			s.Charge(&n, cost, now)
			exact.Charge(&n, cost, now)
			all = append(all, charge{now, cost})
			require.LessOrEqual(t, s.Remaining(&n, now), exact.Remaining(&n, now), "never more than is left")
			most = max(most, s.Entries())
		}
		require.Positive(t, len(all))
		require.LessOrEqual(t, most, int64(4*(limit.ExactEntries+22)))
		if n.Limit == 10_000 {
			require.Positive(t, denied)
			used := int64(0)
			for _, c := range all {
				if c.at > now-n.WindowMS-n.CoarseMS() {
					used += c.cost
				}
			}
			require.GreaterOrEqual(t, s.Remaining(&n, now), max(0, n.Limit-used), "a twentieth of the window at most")
		}
	}
}
