package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// The first sentence of the overview is the most important one.
func TestHeadline(t *testing.T) {
	t.Parallel()
	api := []denyingRule{{Slug: "api", Name: "API requests", Denied: 75, Decided: 9000}}
	for name, c := range map[string]struct {
		allowed, denied int64
		denying         []denyingRule
		subjects        []deniedSubject
		want            headline
	}{
		"nothing asked":  {0, 0, nil, nil, headline{}},
		"nothing denied": {1234, 0, nil, nil, headline{Text: "No denials in the last hour", Note: "1,234 checks were allowed."}},
		"one subject": {900, 100, api, []deniedSubject{{Subject: "acme", Denied: 84}, {Subject: "bob", Denied: 16}}, headline{
			Subject: "acme", Text: "causes", Denied: "84\u202f% of denials", Since: "in the last hour",
			Note: "10\u202f% of 1,000 checks. API requests denied 75.",
		}},
		"no single subject": {900, 100, api, []deniedSubject{{Subject: "acme", Denied: 49}, {Subject: "bob", Denied: 40}}, headline{
			Denied: "100 checks denied", Since: "in the last hour",
			Note: "10\u202f% of 1,000 checks. API requests denied 75. No single subject stands out.",
		}},
		"one check": {0, 1, nil, nil, headline{Denied: "1 check denied", Since: "in the last hour", Note: "100\u202f% of 1 check."}},
		// Lists of subjects are approximate, and may cover a little more than the period.
		"more than all": {0, 10, nil, []deniedSubject{{Subject: "acme", Denied: 12}}, headline{
			Subject: "acme", Text: "causes", Denied: "100\u202f% of denials", Since: "in the last hour", Note: "100\u202f% of 10 checks.",
		}},
	} {
		require.Equal(t, c.want, headlineOf(&chart{Allowed: c.allowed, Denied: c.denied}, "1 hour", c.denying, c.subjects), name)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := newChart("", stretchUntil(at, usage.Minute, 60), nil)
	for i := range c.Bars { // a few denials of others all the time
		c.Bars[i].Denied = 1
	}
	var items []tenants.UsageItem
	for i := range 4 { // the running minute has none yet
		start := c.Bars[len(c.Bars)-2-i].Start
		c.Bars[len(c.Bars)-2-i].Denied = 5
		items = append(items, tenants.UsageItem{Start: start, Subject: "acme", Counts: usage.Counts{Denied: 4}})
	}
	items = append(items, tenants.UsageItem{Start: at.Add(-30 * time.Minute), Subject: "acme", Counts: usage.Counts{Denied: 60}})
	c.Denied = 76
	c.Marks = []chartMark{{At: at.Add(-40 * time.Minute), Text: "an older change"}, {At: at.Add(-5 * time.Minute), Text: "mia changed the rule API requests, Limit 120 to 100"}}
	h := headlineOf(&c, "1 hour", nil, deniedSubjects(items, stretchUntil(at, usage.Minute, 60)))
	require.Equal(t, "since 11:56 UTC", inUTC(h.Since), "the subject's denials have not stopped")
	require.Equal(t, "76\u202f% of denials", h.Denied, "16 of 21 since then")
	require.True(t, h.Boost)
	require.Contains(t, inUTC(h.Note), "In the last hour, 100\u202f% of 76 checks were denied. Before that, at 11:55 UTC: mia changed the rule API requests, Limit 120 to 100.")
	ended := deniedSubjects(items[1:], stretchUntil(at, usage.Minute, 60))
	require.Zero(t, ended[0].Since)
	h = headlineOf(&c, "1 hour", nil, ended)
	require.Equal(t, "in the last hour", h.Since)
	require.False(t, h.Boost)
	require.Equal(t, "in the last 7 days", (func() string { h := headlineOf(&chart{Denied: 1}, "7 days", nil, nil); return h.Since })())
}

// The operator sees the health of the service, not the first steps.
func TestServiceHealth(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]serviceView{
		"The service is healthy":                     {Instances: 3, Postgres: "1 ms"},
		"1 instance cannot reach Redis":              {Instances: 3, Degraded: 1, Outdated: 1, Silent: 1},
		"This instance cannot reach Postgres":        {Instances: 3},
		"2 instances have an outdated configuration": {Instances: 3, Outdated: 2, Silent: 1, Postgres: "1 ms"},
		"1 instance did not answer":                  {Instances: 2, Silent: 1, Postgres: "1 ms"},
	} {
		require.Equal(t, want, s.Lead())
		require.Equal(t, want == "The service is healthy", s.Healthy())
	}
}
