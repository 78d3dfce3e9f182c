package redis_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// The counters of a subject with credits are within the tenant's bound, too: a rule that counts by
// the resource as well has one for each. Before, each further one was created, and none was listed.
func TestCensusBoundsCountersWithCredits(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	const bound = 1000
	flood := func(tenant limit.TenantID, from, n int, sole bool) {
		prefix := s.keys.Prefix(tenant)
		credits := &engine.Credits{Key: prefix + "c1", Outbox: prefix + "o", Grants: []limit.Grant{{ID: grantID(0), Units: 1_000_000}}}
		var calls []*engine.Call
		for j := range n {
			c := s.counter(tenant, uint64(from+j), aYear)
			c.ID, c.Credits, c.Sole = "", credits, sole
			calls = append(calls, s.call(tenant, 1, c))
		}
		i.Evaluate(t.Context(), calls...)
		for _, call := range calls {
			require.NoError(t, call.Err)
		}
	}
	tenant := s.tenant(bound)
	keys := 0
	for first := 0; keys <= bound/2; first += 500 { // the bound can be used, once the census has looked
		flood(tenant, first, 500, false)
		i.census.Look(t.Context())
		keys, _ = s.keysOf(tenant)
	}
	for round := range 8 {
		flood(tenant, 100_000+500*round, 500, false)
		i.census.Look(t.Context())
	}
	keys, _ = s.keysOf(tenant)
	require.LessOrEqual(t, keys, bound+5, "with the credits, their outbox, the list and the counter that they share")

	// The only counter of a subject is its own, and counts.
	other := s.tenant(bound)
	for round := range 8 {
		flood(other, 500*round, 500, true)
		i.census.Look(t.Context())
	}
	alive, err := i.census.Alive(t.Context(), other, bound)
	require.NoError(t, err)
	require.Greater(t, alive, int64(2*bound))
}
