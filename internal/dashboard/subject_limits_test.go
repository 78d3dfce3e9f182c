package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/places"
)

// With hundreds of rules, the limits with the least left are shown first.
func TestSubjectShowsTheLimitsWithTheLeastLeft(t *testing.T) {
	view := subjectView{Path: "/subjects/x"}
	for n := range mostLimits {
		view.Limits = append(view.Limits, limitView{Rule: fmt.Sprintf("rule-%d", n), Left: 1000})
	}
	shown, more := view.Shown()
	require.Equal(t, view.Limits, shown, "a few limits are in the order of the rules")
	require.Zero(t, more)

	view.Limits = append(view.Limits, limitView{Rule: "free", Unlimited: true}, limitView{Rule: "half", Left: 500},
		limitView{Rule: "empty", Denies: true}, limitView{Rule: "shadow-empty"})
	shown, more = view.Shown()
	require.Len(t, shown, mostLimits)
	require.Equal(t, 4, more)
	for n, rule := range []string{"empty", "shadow-empty", "half", "rule-0"} {
		require.Equal(t, rule, shown[n].Rule)
	}
	require.NotContains(t, shown, view.Limits[mostLimits], "unlimited comes last")
	view.All = true
	shown, more = view.Shown()
	require.Equal(t, view.Limits, shown)
	require.Zero(t, more)
	require.Equal(t, "/subjects/x?show=all&fragment=limits", view.Live())
}

// The page says how many limits are omitted, and links to all of them.
func TestSubjectWithManyRules(t *testing.T) {
	s := newStack(t)
	window, err := limit.ParseWindow("1m")
	require.NoError(t, err)
	for n := range fewRows + 1 {
		_, err := s.store.CreateRule(t.Context(), s.a, limit.Rule{
			Slug: fmt.Sprintf("rule-%d", n), Resource: fmt.Sprintf("r%d", n), Algorithm: limit.SlidingWindowCounter,
			Limit: 10, Window: window, By: []string{"subject"},
		})
		require.NoError(t, err)
	}
	ann := s.as("ann@example.com")
	got := ann.get("/subjects/user_7")
	require.Equal(t, http.StatusOK, got.status)
	const last = `href="/rules/rule-99"` // by name, like the rules
	require.Contains(t, got.body, "100 of 251 limits, least remaining first.")
	require.False(t, strings.Contains(got.body, last))
	require.Contains(t, got.body, `<a href="/subjects/user_7?show=all">Show all</a>`)
	got = ann.get("/subjects/user_7?show=all")
	require.True(t, strings.Contains(got.body, last))
	require.False(t, strings.Contains(got.body, "Show all"))

	// Such a page is long work. Before, it kept short work waiting: the large checks of others.
	s.pages.longTurns = newPageTurns(places.NewProcessors(2).Long)
	s.pages.longTurns.wait = 0
	leave, err := s.pages.longTurns.turns.Take(t.Context(), s.b.TenantID())
	require.NoError(t, err)
	for _, path := range []string{"/subjects/user_7", "/subjects/user_7?show=all&fragment=limits"} {
		require.Equal(t, http.StatusServiceUnavailable, ann.get(path).status, path)
	}
	require.Equal(t, http.StatusOK, ann.get("/rules").status, "other pages are short")
	leave()
	require.Equal(t, http.StatusOK, ann.get("/subjects/user_7?show=all").status)
}
