package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The loaded data is what the report says.
func TestAdminSharesAddUp(t *testing.T) {
	for _, o := range []adminOptions{
		{tenants: 1000, rules: 100_000, subjects: 1_000_000}, {tenants: 2, rules: 3, subjects: 21}, {tenants: 7, rules: 5000, subjects: 101},
	} {
		rules, subjects := 0, 0
		for i := range o.tenants {
			r, s := o.share(i)
			require.Positive(t, r)
			require.LessOrEqual(t, r, 1000)
			rules, subjects = rules+r, subjects+s
		}
		require.Equal(t, o.rules, rules)
		require.Equal(t, o.subjects, subjects)
	}
}

// Lists are newest first, by id, so rows that are loaded later must sort later.
func TestRowIDsAscend(t *testing.T) {
	last := rowID(rowSubject, 3, 0)
	for _, n := range []int{1, 2, 255, 256, 99_999} {
		id := rowID(rowSubject, 3, n)
		require.Negative(t, compareIDs(last, id))
		last = id
	}
	require.NotEqual(t, rowID(rowRule, 1, 2), rowID(rowRule, 2, 1))
}

func compareIDs(a, b [16]byte) int {
	for i := range a {
		if a[i] != b[i] {
			return int(a[i]) - int(b[i])
		}
	}
	return 0
}

func TestAdminReportMarksMissedGoals(t *testing.T) {
	report := adminReport(facts{"when", "what", "where", "rounds"}, adminOptions{tenants: 2, rules: 4, subjects: 20, requests: 100}, []timing{
		{lookup: lookup{name: "quick"}, p50: time.Millisecond, p99: 19 * time.Millisecond, most: time.Second},
		{lookup: lookup{name: "slow"}, p50: time.Millisecond, p99: 20 * time.Millisecond, most: time.Second},
	})
	require.Contains(t, report, "| quick | 1.00 | 19.00 | 1000.00 | yes |")
	require.Contains(t, report, "| slow | 1.00 | 20.00 | 1000.00 | no |")
	require.NotContains(t, report, "rounds")
}
