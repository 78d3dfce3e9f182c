package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The goal is about one tenant of that size, so the run loads that tenant.
func TestPagesLoadOneTenant(t *testing.T) {
	o := pagesOptions{rules: 1000, subjects: 1_000_000}.load()
	rules, subjects := o.share(0)
	require.Equal(t, 1000, rules)
	require.Equal(t, 1_000_000, subjects)
	rules, subjects = o.share(1)
	require.Equal(t, 1, rules)
	require.Equal(t, smallTenant, subjects)
}

func TestPagesReportMarksMissedGoals(t *testing.T) {
	at := func(name string, p99 time.Duration) view {
		return view{timing{lookup: lookup{name: name}, p50: time.Millisecond, p99: p99, most: time.Second}, 2048}
	}
	report := pagesReport(facts{"when", "what", "where", "rounds"}, pagesOptions{rules: 4, subjects: 20, requests: 100},
		[]view{at("quick", 49*time.Millisecond), at("slow", 50*time.Millisecond)})
	require.Contains(t, report, "| quick | 2.0 | 1.00 | 49.00 | 1000.00 | yes |")
	require.Contains(t, report, "| slow | 2.0 | 1.00 | 50.00 | 1000.00 | no |")
}
