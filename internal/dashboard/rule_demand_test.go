package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// A tenant's subjects and resources multiply: a replay of a rule that counts by both has as many
// counters as fit into its memory, those of the busiest subjects.
func TestDemandIsBounded(t *testing.T) {
	t.Parallel()
	const minutes, subjects, resources = 180, 300, 128
	from := time.Unix(0, 0)
	d := demand{from: from, to: from.Add(minutes * time.Minute), step: time.Minute}
	rule := limit.Rule{Resource: "*", By: []string{"subject", "resource"}}
	var totals, busy tenants.UsageReport
	for i := range resources {
		totals.Items = append(totals.Items, tenants.UsageItem{Start: from, Resource: fmt.Sprint("r", i), Counts: usage.Counts{Allowed: 1000}})
	}
	for i := range subjects {
		busy.Items = append(busy.Items, tenants.UsageItem{Start: from, Subject: fmt.Sprint("s", i), Counts: usage.Counts{Allowed: int64(resources * (1 + i))}})
	}
	d.ofSubjects(busy, resourceShares(&rule, totals, &d))
	require.LessOrEqual(t, len(d.series)*minutes*8, 33<<20, "bytes of all series; those of all subjects take 53 MiB")
	require.Greater(t, len(d.series)*minutes*8, 31<<20)
	require.Equal(t, fmt.Sprint("s", subjects-1), d.series[0].subject, "the busiest first")
	require.EqualValues(t, subjects, d.series[0].total)

	// A subject whose checks are too few for a whole one of each resource counts, too.
	d = demand{from: from, to: d.to, step: time.Minute}
	for i := range busy.Items {
		busy.Items[i].Allowed = 1
	}
	shares := resourceShares(&rule, totals, &d)
	counters := 0
	for i := range 3 {
		counters += d.ofSubject(fmt.Sprint("s", i), []*tenants.UsageItem{&busy.Items[i]}, shares)
	}
	require.Equal(t, 3*resources, counters)
	require.Empty(t, d.series)
}

// What a replay needs is computed in a turn of long work, before that of the replay itself.
func TestDemandTakesATurn(t *testing.T) {
	s := newStack(t)
	s.asked(30*time.Minute, "orders:create", map[string]int64{"heavy": 50})
	s.pages.longTurns = newPageTurns(places.NewProcessors(2).Long)
	s.pages.longTurns.wait = 0
	rule := limit.Rule{Resource: "*", By: []string{"subject"}, Window: window(t, "1m")}
	leave, err := s.pages.longTurns.turns.Take(t.Context(), s.b.TenantID())
	require.NoError(t, err)
	_, err = s.pages.demand(t.Context(), s.a, &rule, s.clock.Now())
	require.ErrorIs(t, err, errBusy)
	leave()
	d, err := s.pages.demand(t.Context(), s.a, &rule, s.clock.Now())
	require.NoError(t, err)
	require.EqualValues(t, 50, d.all)
	leave, err = s.pages.longTurns.turns.Take(t.Context(), s.b.TenantID())
	require.NoError(t, err, "it has left its turn")
	leave()
}
