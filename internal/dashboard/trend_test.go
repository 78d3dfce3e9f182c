package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// A row has the course of a period in a bounded number of columns, and compares its denials with
// the previous period.
func TestTrend(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	item := func(back time.Duration, allowed, denied int64) tenants.UsageItem {
		return tenants.UsageItem{Start: at.Truncate(time.Hour).Add(-back), Counts: usage.Counts{Allowed: allowed, Denied: denied}}
	}
	s := stretchUntil(at, usage.Hour, 24)
	got := newTrend([]tenants.UsageItem{item(0, 5, 3), item(2*time.Hour, 0, 9), item(30*time.Hour, 7, 4)}, s)
	require.Len(t, got.Denied, 24)
	require.Equal(t, int64(3), got.Denied[23])
	require.Equal(t, int64(9), got.Denied[21])
	require.Equal(t, int64(12), got.Sum())
	require.Equal(t, int64(4), got.Before)
	require.Equal(t, "+200\u202f%", got.Change())
	require.True(t, got.Steep())
	require.Equal(t, 1, strings.Count(got.AllowedPath(), "M"), "one column has allowed checks")
	require.Equal(t, 2, strings.Count(got.DeniedPath(), "M"))

	week := newTrend([]tenants.UsageItem{item(0, 0, 1), item(time.Hour, 0, 1)}, stretchUntil(at, usage.Hour, 7*24))
	require.Len(t, week.Denied, 28, "six hours a column")
	require.Equal(t, int64(2), week.Denied[27])
	require.False(t, week.Steep(), "a few denials are not many")

	s.Before = false
	unknown := newTrend([]tenants.UsageItem{item(0, 0, 50)}, s)
	require.Empty(t, unknown.Change(), "nothing to compare with")
	require.False(t, unknown.Steep())

	for want, c := range map[string][2]int64{"": {0, 0}, "0\u202f%": {4, 4}, "new": {4, 0}, "\u2212100\u202f%": {0, 4}, "\u221250\u202f%": {2, 4}, "12x": {48, 4}} {
		require.Equal(t, want, shortChange(c[0], c[1]))
	}
}

// The line of a limit that is far above the bars would hide them: the legend says where it is.
func TestLimitFarAbove(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	s := stretchUntil(at, usage.Minute, 60)
	chartOf := func(allowed, limit int64) *chart {
		c := newChart("", s, []tenants.UsageItem{{Start: s.From, Counts: usage.Counts{Allowed: allowed}}})
		c.Limit = &limitLine{Text: "API requests: " + grouped(limit), Parts: []limitPart{{s.From, s.To, limit}}}
		return &c
	}
	for name, c := range map[string]struct {
		allowed, limit, most int64
		line                 bool
	}{"near": {90, 100, 200, true}, "some times": {10, 100, 200, true}, "far above": {7, 5000, 10, false}, "no checks": {0, 5000, 6000, true}} {
		got := chartOf(c.allowed, c.limit)
		require.Equal(t, c.most, got.MostAllowed(), name)
		require.Equal(t, c.line, len(got.LimitSegments()) > 0, name)
		require.Equal(t, !c.line, strings.HasSuffix(got.LimitText(), ", beyond this scale"), name)
	}
	logarithmic := chartOf(7, 5000)
	logarithmic.Log = true
	require.NotEmpty(t, logarithmic.LimitSegments(), "a logarithmic scale has space for both")
}

// The number of a limit stands alone, and what else it sets below it.
func TestSplitLimit(t *testing.T) {
	for text, want := range map[string][2]string{
		"unlimited":                                              {"unlimited", ""},
		"2 per second, burst 10":                                 {"2 per second, burst 10", ""},
		"1 per second, queue 20":                                 {"1 per second, queue 20", ""},
		"unlimited, not metered":                                 {"unlimited", "not metered"},
		"5 per month, warning at 80 %, overage allowed":          {"5 per month", "warning at 80 %, overage allowed"},
		"2 per second, burst 9, warning at 80 %, overage denied": {"2 per second, burst 9", "warning at 80 %, overage denied"},
	} {
		number, more := splitLimit(text)
		require.Equal(t, want, [2]string{number, more}, text)
	}
}
