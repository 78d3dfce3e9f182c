package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// One check is counted by the second and by the month of a plan: both are in the answer and in the
// headers, and a denial by one of them uses nothing of the other.
func TestSecondsAndMonthsOfOnePlan(t *testing.T) {
	s := newCheckStack(t)
	burst := hourly("message-bursts", "messages:send", 1, "subject")
	burst.Algorithm, burst.Window = limit.SlidingWindowCounter, limit.Window{Duration: limit.Duration{Text: "1s", MS: 1_000}}
	month := hourly("messages", "messages:*", 1, "subject")
	var err error
	month.Algorithm = limit.FixedWindow
	month.Window, err = limit.ParseWindow("month")
	require.NoError(t, err)
	for _, r := range []limit.Rule{burst, month} {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, r)
		require.NoError(t, err)
	}
	_, err = s.db.Store.CreatePlan(t.Context(), s.actor, tenants.Plan{Slug: "messenger", Limits: map[string]limit.Limit{
		"message-bursts": {Limit: 10}, "messages": {Limit: 10_000},
	}})
	require.NoError(t, err)
	_, _, err = s.db.Store.PutSubject(t.Context(), s.actor, tenants.Subject{Subject: "ada", Plan: "messenger"}, tenants.Match{})
	require.NoError(t, err)

	a := s.check(`{"subject":"ada","resource":"messages:send","cost":3}`)
	d := a.decision(200)
	require.Len(t, d.Rules, 2)
	left := map[string]int64{}
	for _, r := range d.Rules {
		require.True(t, r.Allowed, r.Rule)
		require.Equal(t, "plan:messenger", r.Source, r.Rule)
		left[r.Rule] = *r.Remaining
	}
	require.Equal(t, map[string]int64{"message-bursts": 7, "messages": 9_997}, left)
	policies, states := parseList(t, a.header.Values("RateLimit-Policy")), parseList(t, a.header.Values("RateLimit"))
	require.Len(t, policies, 2)
	require.Equal(t, map[string]int64{"q": 10, "w": 1}, policies["message-bursts"])
	require.Equal(t, int64(10_000), policies["messages"]["q"])
	require.Contains(t, []int64{28, 29, 30, 31}, policies["messages"]["w"]/86_400)
	require.Len(t, states, 2)
	require.Equal(t, int64(7), states["message-bursts"]["r"])
	require.Equal(t, int64(9_997), states["messages"]["r"])

	// Too much at once for the second; the month has room, and is not charged.
	d = s.check(`{"subject":"ada","resource":"messages:send","cost":11}`).decision(429)
	require.Equal(t, "message-bursts", *d.Rule)
	require.Equal(t, int64(9_997), s.remaining("ada", "messages:bulk"))

	// The month is used up by other work. The second has room, and the month denies.
	s.check(`{"subject":"ada","resource":"messages:bulk","cost":9997}`).decision(200)
	a = s.check(`{"subject":"ada","resource":"messages:send"}`)
	d = a.decision(429)
	require.Equal(t, "messages", *d.Rule)
	require.Equal(t, int64(0), parseList(t, a.header.Values("RateLimit"))["messages"]["r"])
	require.Len(t, parseList(t, a.header.Values("RateLimit-Policy")), 2)
}
