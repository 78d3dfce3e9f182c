package dashboard

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// decided writes usage of tenant a for a time in the past.
func (s *stack) decided(a tenants.Actor, grain usage.Grain, ago time.Duration, rule string, allowed, denied int64) {
	s.t.Helper()
	start := s.clock.Now().Add(-ago).UTC().Truncate(grain.Duration())
	columns, values := "", ""
	if grain == usage.Minute {
		columns, values = "slot, ", fmt.Sprintf("%d, ", start.Unix()/86400%5)
	}
	s.db.Exec(fmt.Sprintf(`INSERT INTO usage_%ss (%stenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
		VALUES (%s$1, $2, $3, 'free', 'orders', $4, $5, 0, 0, $4, $5)`, grain, columns, values), a.TenantID(), start, rule, allowed, denied)
}

// ask sends checks one after the other.
func (s *stack) ask(a tenants.Actor, subject string, times int) {
	s.t.Helper()
	policy, err := s.policies.Get(s.t.Context(), a.TenantID())
	require.NoError(s.t, err)
	defer s.clock.catchUp()
	for range times {
		_, err := s.checker.Check(s.t.Context(), policy, []check.Request{{Subject: subject, Resource: "orders", Cost: 1}})
		require.NoError(s.t, err)
	}
}

// The chart and its table have the numbers of the usage in the chosen period.
func TestOverviewCounts(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	for _, rule := range []string{"", "requests"} {
		s.decided(s.a, usage.Hour, 0, rule, 1200, 34)
		s.decided(s.a, usage.Hour, 24*time.Hour, rule, 700, 8)
	}
	b := s.as("ann@example.com")
	got := b.get("/?period=24h")
	require.Contains(t, got.body, "1,200")
	require.Contains(t, got.body, "34</b> denied (2.8\u202f%)")
	require.Contains(t, got.body, "previous period: 700 allowed, 8 denied")
	require.Contains(t, got.body, `<a class="cut" href="/rules/requests">Rule mark</a>`)
	require.Contains(t, got.body, `<td class="num changed is-denied">+325`+"\u202f%</td>", "34 denials, and 8 the day before")
	require.Contains(t, b.get("/rules").body, `<td class="num changed is-denied">+325`+"\u202f%</td>")
	require.Contains(t, got.body, `sse-connect="/live/overview?period=24h"`)
	require.Contains(t, b.get("/").body, "No checks in this period", "there are no minutes")
	require.NotContains(t, s.as("bob@example.com").get("/?period=24h").body, "1,200", "another tenant's usage")
	require.Equal(t, http.StatusBadRequest, b.get("/?period=2h").status)
}

// The overview is compared with yesterday.
func TestOverviewYesterday(t *testing.T) {
	s := newStack(t)
	s.clock.to(time.Now().UTC().Truncate(time.Minute).Add(-10 * time.Second)) // five sixths of a minute
	s.decided(s.a, usage.Minute, 0, "", 10, 30)
	s.decided(s.a, usage.Minute, 20*time.Minute, "", 999, 999)
	s.decided(s.a, usage.Minute, 24*time.Hour, "", 60, 12) // of which 50 and 10 are in the elapsed part
	s.decided(s.a, usage.Minute, 24*time.Hour+time.Minute, "", 0, 10)
	got := s.as("ann@example.com").get("/")
	require.Contains(t, got.body, `<dd class="bad">30</dd><dd class="note">Yesterday at this time: 20 (+50`+"\u202f%)</dd>")
	require.Contains(t, got.body, "<dd>10</dd><dd class=\"note\">Yesterday at this time: 50 (\u221280\u202f%)</dd>")
}

// Subjects near a limit are on the first page.
func TestNearestTheirLimit(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.ask(s.a, "calm", 3)
	s.ask(s.a, "busy <b>", 19)
	got := s.as("ann@example.com").get("/")
	require.Contains(t, got.body, `<a class="cut" href="/subjects/busy%20%3Cb%3E">busy &lt;b&gt;</a>`)
	require.Contains(t, got.body, "19 / 20", "the same as the bar and the subject's page")
	require.NotContains(t, got.body, "calm")
	require.NotContains(t, s.as("bob@example.com").get("/").body, "busy")

	s.ask(s.a, "busy <b>", 1)
	got = s.as("ann@example.com").get("/")
	require.Contains(t, got.body, "20 / 20")
	require.NotContains(t, got.body, `class="over denied"`, "a full limit that denies nothing is not red")
	s.ask(s.a, "busy <b>", 1)
	require.Contains(t, s.as("ann@example.com").get("/").body, `class="over denied"`)
}

// The overview reads sums of rules, and the grains only of those that it shows. Before, it answered
// 400 for a tenant with 417 rules that have checks in each minute.
func TestOverviewOfManyRules(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	last := s.clock.Now().UTC().Truncate(time.Minute)
	s.db.Exec(`INSERT INTO usage_minutes (slot, tenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
		SELECT extract(epoch FROM start)::bigint / 86400 % 5, $1, start, 'r' || n, '', '', 1, n, 0, 0, 1, n
		FROM generate_series(1, 420) AS n, generate_series($2::timestamptz - interval '119 minutes', $2, '1 minute') AS start`, s.a.TenantID(), last)
	s.decided(s.a, usage.Minute, 0, "", 420, 100)
	s.decided(s.a, usage.Minute, 0, "requests", 1, 1_000_000)
	got := s.as("ann@example.com").get("/")
	require.Equal(t, http.StatusOK, got.status)
	require.Regexp(t, `(?s)href="/rules/requests">Rule mark</a>.*1,000,000.*href="/rules/r420">.*25,200.*href="/rules/r417">`, got.body, "most denials first: 60 minutes of 420")
	require.NotContains(t, got.body, "/rules/r416", "five rules")
	require.Contains(t, got.body, ">0\u202f%</td>", "as many as in the hour before")
}
