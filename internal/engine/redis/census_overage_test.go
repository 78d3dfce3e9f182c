package redis_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// A new counter whose first charge exceeds its limit counts as created, also if it hides the others
// of its group. Before, one connection could create any number of them until the next look.
func TestCensusCountsExceededCounters(t *testing.T) {
	exceeded := aYear
	exceeded.Limit, exceeded.Overage = 1, true
	for name, grouped := range map[string]bool{"alone": false, "group": true} {
		t.Run(name, func(t *testing.T) {
			s := newCensusStack(t)
			i := s.instance()
			const bound = 1000
			tenant := s.tenant(bound)
			for subject := range uint64(2 * bound) {
				call := s.call(tenant, 2, s.counter(tenant, subject, exceeded))
				if grouped {
					first := &call.Counters[0]
					first.Grouped = true
					call.Counters = append(call.Counters, engine.Counter{Key: first.Key, ID: "0009-rule", Grouped: true, Numbers: aYear})
				}
				i.admits(t, call) // or it shares a counter with others, and may be denied
			}
			keys, _ := s.keysOf(tenant)
			require.LessOrEqual(t, keys, bound)
		})
	}
}

// Units that credits pay are not in the counter, so they do not make it look new.
func TestCensusCountsPaidChargesOnce(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(1000)
	counter := s.counter(tenant, 1, aYear)
	call := s.call(tenant, 5, counter)
	charge := func(v limit.Verdict) (created int64) {
		call.Outcome = engine.Outcome{NowMS: beginMS, Allowed: true, Verdicts: []limit.Verdict{v}}
		before := i.census.Left(tenant)
		i.census.Count()(call)
		return before - i.census.Left(tenant)
	}
	require.EqualValues(t, 1, charge(limit.Verdict{Allowed: true, Remaining: 5, ResetMS: beginMS + 1000}))
	require.Zero(t, charge(limit.Verdict{Allowed: true, Remaining: 4, ResetMS: beginMS + 1000}))
	call.Cost = 20
	require.EqualValues(t, 1, charge(limit.Verdict{Allowed: true, CreditsSpent: 10, ResetMS: beginMS + 1000}))
	require.Zero(t, charge(limit.Verdict{Allowed: true, CreditsSpent: 19, ResetMS: beginMS + 1000}))
	call.Cost = 12
	require.EqualValues(t, 1, charge(limit.Verdict{Allowed: true, Overage: 2, ResetMS: beginMS + 1000}))
	require.Zero(t, charge(limit.Verdict{Allowed: true, Overage: 3, ResetMS: beginMS + 1000}))
}
