package dashboard

import (
	"testing"

	"github.com/stretchr/testify/require"
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
		"one subject": {900, 100, api, []deniedSubject{{"acme", 84}, {"bob", 16}}, headline{
			Subject: "acme", Text: "causes", Denied: "84\u202f% of denials", Since: "in the last hour",
			Note: "10\u202f% of 1,000 checks. API requests denied 75.",
		}},
		"no single subject": {900, 100, api, []deniedSubject{{"acme", 49}, {"bob", 40}}, headline{
			Denied: "100 checks denied", Since: "in the last hour",
			Note: "10\u202f% of 1,000 checks. API requests denied 75. No single subject stands out.",
		}},
		"one check": {0, 1, nil, nil, headline{Denied: "1 check denied", Since: "in the last hour", Note: "100\u202f% of 1 check."}},
		// Lists of subjects are approximate, and may cover a little more than the period.
		"more than all": {0, 10, nil, []deniedSubject{{"acme", 12}}, headline{
			Subject: "acme", Text: "causes", Denied: "100\u202f% of denials", Since: "in the last hour", Note: "100\u202f% of 10 checks.",
		}},
	} {
		require.Equal(t, c.want, headlineOf(&chart{Allowed: c.allowed, Denied: c.denied}, "1 hour", c.denying, c.subjects), name)
	}
	require.Equal(t, "in the last 7 days", (func() string { h := headlineOf(&chart{Denied: 1}, "7 days", nil, nil); return h.Since })())
}

// The operator sees the health of the service, not the first steps.
func TestServiceHealth(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]serviceView{
		"The service is healthy":                     {Instances: 3},
		"1 instance cannot reach Redis":              {Instances: 3, Degraded: 1, Outdated: 1, Silent: 1},
		"2 instances have an outdated configuration": {Instances: 3, Outdated: 2, Silent: 1},
		"1 instance did not answer":                  {Instances: 2, Silent: 1},
	} {
		require.Equal(t, want, s.Lead())
		require.Equal(t, s.Silent+s.Degraded+s.Outdated == 0, s.Healthy())
	}
}
