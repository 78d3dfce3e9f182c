package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// A recent denial is listed with its reason, for every role.
func TestRecentDecisions(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.member(s.a, "support@example.com", tenants.Support)
	b := s.as("support@example.com")
	require.Contains(t, b.get("/decisions").body, "No recent denials")
	require.Contains(t, b.get("/decisions?show=all").body, "No recent checks")
	s.ask(s.a, "user_1", 25)
	got := b.get("/decisions")
	require.Contains(t, got.body, `<a class="mono" href="/subjects/user_1">user_1</a>`)
	require.Contains(t, got.body, `<a href="/rules/requests">Rule mark</a>`)
	require.Contains(t, got.body, "20 of 20 used (limit from plan free).")
	require.Contains(t, got.body, "0 of 20")
	require.Regexp(t, `in (1 min|\d+ s)`, got.body)
	require.NotContains(t, got.body, ">allowed<")
	require.Contains(t, b.get("/subjects/user_1").body, "20 of 20 used (limit from plan free).", "also on the subject's page")
	require.Contains(t, b.get("/subjects/user_2").body, "No recent denials on this instance.")
	require.Contains(t, b.get("/decisions?show=all").body, ">allowed<")
	for query, found := range map[string]bool{
		"subject=user": true, "subject=user_2": false, "rule=requests": true, "rule=by-ip": false, "resource=orders&subject=user_1": true, "resource=order": false,
	} {
		require.Equal(t, found, strings.Contains(b.get("/decisions?"+query).body, `href="/subjects/user_1"`), query)
	}
	require.Contains(t, b.get("/decisions?subject=nobody").body, "No recent decisions match")
	require.NotContains(t, s.as("bob@example.com").get("/decisions?show=all").body, "user_1", "another tenant's")
	require.Equal(t, http.StatusBadRequest, b.get("/decisions?show=some").status)
	require.Equal(t, http.StatusBadRequest, b.get("/decisions?subject="+strings.Repeat("x", 257)).status)
	require.Equal(t, http.StatusOK, b.get("/decisions?subject=%ff%00"+url.QueryEscape("<script>")).status)
	require.NotContains(t, b.get("/decisions?subject="+url.QueryEscape(`"><script>`)).body, "<script>")
}

// The sentence must be the real reason, because support forwards it to customers.
func TestWhyThen(t *testing.T) {
	denied := func(code check.Code, more func(*recent.Decision)) *recent.Decision {
		d := &recent.Decision{Code: code, Rule: "api", Source: "rule", Quota: 100, Cost: 1, WindowMS: 60_000, RetryAfterMS: 1500}
		if more != nil {
			more(d)
		}
		return d
	}
	for want, d := range map[string]*recent.Decision{
		"The subject is blocked. when unblocked": {Code: check.SubjectBlocked},
		"The cost of 200 exceeds the limit of 100. never": denied(check.CostExceedsLimit, func(d *recent.Decision) {
			d.Cost, d.RetryAfterMS = 200, limit.NeverMS
		}),
		"Redis was unavailable, and the rule denies in that case. in 2 s": denied(check.CountersUnavailable, nil),
		"A penalty for an earlier denial was active. in 2 s":              denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Penalized = true }),
		"100 of 100 used (limit from an override). in 2 s":                denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Source = "override" }),
		"The cost was 5, and 2 of 100 remained. in 2 s":                   denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Cost, d.Remaining = 5, 2 }),
		"1 of 1 used. in 2 s":                                                        denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Quota = 1 }),
		"No rule with a limit matched. ":                                             {Allowed: true},
		"Redis was unavailable, and no rule denied. ":                                {Allowed: true, Degraded: true},
		"Within the limit (limit from plan pro). ":                                   {Allowed: true, Rule: "api", Source: "plan:pro"},
		"Within the limit, counted by this instance because Redis was unavailable. ": {Allowed: true, Rule: "api", Source: "rule", Degraded: true},
	} {
		require.Equal(t, want, reasonText(d)+" "+retryText(d))
	}
}
