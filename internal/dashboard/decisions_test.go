package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

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
	require.Contains(t, got.body, `<a href="/subjects/user_1">user_1</a>`)
	require.Contains(t, got.body, `<a href="/rules/requests">Rule mark</a>`)
	require.Contains(t, got.body, "20 of 20 used (plan Plan mark).")
	require.Regexp(t, `in (1 min|\d+ s)`, got.body)
	require.NotContains(t, got.body, ">Allowed</span>")
	require.Contains(t, b.get("/subjects/user_1?tab=denials").body, "20 of 20 used (plan Plan mark).", "also on the subject's page")
	require.Contains(t, b.get("/subjects/user_2?tab=denials").body, "No recent denials on this instance.")
	require.Contains(t, b.get("/decisions?show=all").body, ">Allowed</span>")
	for query, found := range map[string]bool{
		"subject=user": true, "subject=user_2": false, "rule=requests": true, "rule=by-ip": false, "resource=orders&subject=user_1": true, "resource=order": false,
	} {
		require.Equal(t, found, strings.Contains(b.get("/decisions?"+query).body, `href="/subjects/user_1"`), query)
	}
	require.Contains(t, b.get("/decisions?subject=nobody").body, "No recent decisions match")
	require.NotContains(t, s.as("bob@example.com").get("/decisions?show=all").body, "user_1", "another tenant's")
	for query, says := range map[string]string{
		"show=some": "Must be one of the listed options.", "subject=" + strings.Repeat("x", 257): "Must be at most 256 bytes.", "rule=" + strings.Repeat("x", 257): "Must be at most 256 bytes.",
	} {
		got := b.get("/decisions?" + query)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, query)
		require.Contains(t, got.body, says, query)
		require.Equal(t, http.StatusBadRequest, b.get("/live/decisions?"+query).status, query)
	}
	require.Equal(t, http.StatusOK, b.get("/decisions?subject=%ff%00"+url.QueryEscape("<script>")).status)
	require.NotContains(t, b.get("/decisions?subject="+url.QueryEscape(`"><script>`)).body, "<script>")
}

// Equal denials that follow each other within seconds are one row with their number and time.
func TestRepeatsAreFolded(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	denied := func(after time.Duration, subject string, repeats int64) recent.Decision {
		return recent.Decision{At: at.Add(after), Subject: subject, Rule: "api", Code: check.RateLimitExceeded, Quota: 5, Repeats: repeats}
	}
	allowed := recent.Decision{At: at, Subject: "a", Rule: "api", Allowed: true}
	rows := decisionRows([]recent.Decision{ // newest first
		denied(20*time.Second, "a", 0), denied(3*time.Second, "a", 9), denied(2500*time.Millisecond, "b", 0), denied(1500*time.Millisecond, "a", 9),
		denied(0, "a", 6), allowed, allowed,
	}, ruleNames{"api": "API"}, nil)
	var got []string
	for i := range rows {
		got = append(got, rows[i].Subject+" "+rows[i].Repeats)
	}
	require.Equal(t, []string{"a ", "a 27 times in 4 s", "b ", "a ", "a "}, got)
}

// The address of a row stays valid while later equal denials are added to it, and names no other
// row.
func TestPickOfARow(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	denied := func(after time.Duration, subject string) recent.Decision {
		return recent.Decision{At: at.Add(after), Subject: subject, Rule: "api", Code: check.RateLimitExceeded, Quota: 5, RetryAfterMS: int64(20_000 - after.Milliseconds())}
	}
	before := decisionRows([]recent.Decision{denied(time.Second, "a"), denied(time.Second, "b"), denied(0, "a")}, nil, nil)
	require.Len(t, before, 2)
	view := decisionsView{Filter: decisionFilter{Pick: before[0].Pick()}}
	view.Rows = decisionRows([]recent.Decision{denied(4*time.Second, "a"), denied(time.Second, "a"), denied(time.Second, "b"), denied(0, "a")}, nil, nil)
	row := view.picked()
	require.NotNil(t, row)
	require.True(t, row.Picked)
	require.False(t, view.Rows[1].Picked)
	require.Equal(t, "3 denials in 4 s", row.Title())
	require.Equal(t, "Each request was told to wait 16 s to 20 s.", row.Told())
	for _, pick := range []string{"", "x", "-", before[0].Pick() + "0", "zzz-" + keyOf(&row.decision).sum()} {
		view.Filter.Pick = pick
		require.Nil(t, view.picked(), "%q", pick)
	}
}

// The sentence must be the real reason, because support forwards it to customers.
func TestDecisionReasons(t *testing.T) {
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
		"With other checks of the same request, the cost exceeds the limit of 100. never": denied(check.CostExceedsLimit, func(d *recent.Decision) {
			d.Cost, d.RetryAfterMS = 60, limit.NeverMS
		}),
		"With other checks of the same request, the cost was more than the 5 of 100 that remained. in 2 s": denied(check.RateLimitExceeded, func(d *recent.Decision) {
			d.Cost, d.Remaining = 5, 5
		}),
		"Redis was unavailable, and the rule denies in that case. in 2 s":            denied(check.CountersUnavailable, nil),
		"Penalty after an earlier denial. in 2 s":                                    denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Penalized = true }),
		"100 of 100 used (override). in 2 s":                                         denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Source = "override" }),
		"The cost was 5, and 2 of 100 remained. in 2 s":                              denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Cost, d.Remaining = 5, 2 }),
		"1 of 1 used. in 2 s":                                                        denied(check.RateLimitExceeded, func(d *recent.Decision) { d.Quota = 1 }),
		"No rule with a limit matched. ":                                             {Allowed: true},
		"Redis was unavailable, and no rule denied. ":                                {Allowed: true, Degraded: true},
		"3 of 9 remaining (plan Pro). ":                                              {Allowed: true, Rule: "api", Source: "plan:pro", Remaining: 3, Quota: 9},
		"Within the limit, counted by this instance because Redis was unavailable. ": {Allowed: true, Rule: "api", Source: "rule", Degraded: true},
	} {
		require.Equal(t, want, reasonText(d, planNames{"pro": "Pro"})+" "+retryText(d))
	}
}

// A bar of a chart leads to the decisions of its time, and the page says if nobody remembers them.
func TestDecisionsOfATime(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	_, err := s.store.CreateRule(t.Context(), s.a, limit.Rule{Slug: "zoo", Name: "Apples", Resource: "*", Algorithm: limit.FixedWindow, Limit: 1000, Window: window(t, "1h"), By: []string{"subject"}})
	require.NoError(t, err)
	require.True(t, s.check("user_1", 1).Allowed)
	b := s.as("ann@example.com")
	now := time.Now().UTC()
	at := func(by time.Duration) string { return now.Add(by).Format(minuteForm) }
	got := b.get("/decisions?show=all&from=" + at(-time.Minute) + "&to=" + at(2*time.Minute)).body
	require.Contains(t, got, `href="/subjects/user_1"`)
	require.Contains(t, got, `value="`+at(-time.Minute)+`" id="f-from"`, "other filters keep it")
	require.Contains(t, got, ">Any time</a>")
	for _, query := range []string{"&from=" + at(-time.Hour) + "&to=" + at(-time.Minute), "&from=" + at(time.Hour)} {
		got = b.get("/decisions?show=all" + query).body
		require.NotContains(t, got, `href="/subjects/user_1"`, query)
		require.Contains(t, got, "Decisions of this time are not kept any more.", query)
		require.Equal(t, strings.Contains(query, "&to="), strings.Contains(got, "View usage of this period"), query)
	}
	require.Contains(t, b.get("/decisions?show=all&period=5m").body, `href="/subjects/user_1"`)
	s.clock.move(6 * time.Minute)
	require.NotContains(t, b.get("/decisions?show=all&period=5m").body, `href="/subjects/user_1"`, "the period ends now")
	require.Contains(t, b.get("/decisions?show=all&period=15m").body, `aria-current="true">Last 15 minutes`)
	for query, says := range map[string]string{
		"from=yesterday": "Must be a time such as", "period=30d": "Must be one of the listed options.", "from=2026-01-02T00:00&to=2026-01-01T00:00": "Must be after from.",
	} {
		got := b.get("/decisions?" + query)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, query)
		require.Contains(t, got.body, "Filters not applied. Fix the highlighted fields.", query)
		require.Contains(t, got.body, says, query)
		require.NotContains(t, got.body, "sse-connect", query)
	}
	require.Contains(t, b.get("/decisions?show=all&period=15m").body, `<datalist id="resource-names"><option value="default">`, "which a check named, and no rule")
	require.Contains(t, b.get("/decisions").body, `<datalist id="rule-names"><option value="zoo" label="Apples"></option><option value="by-ip" label="Rule mark">`, "by the name that is shown")
	require.Contains(t, b.get("/tester/subjects?subject=ser_").body, `<option value="user_1">`, "also a subject that is not registered")
}
