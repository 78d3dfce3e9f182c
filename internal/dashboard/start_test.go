package dashboard

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// From an empty tenant to the first check, which the waiting page reports.
func TestFirstRun(t *testing.T) {
	s := newStack(t)
	s.staff()
	require.Contains(t, s.as("editor@example.com").get("/start").body, "An owner or an admin")
	require.Equal(t, http.StatusForbidden, s.as("editor@example.com").write("/start", url.Values{"limit": {"5"}}).status)
	b := s.as("admin@example.com")
	require.Contains(t, b.get("/start").body, "Send your first check")
	for _, wrong := range []url.Values{
		{"limit": {"x"}, "window": {"1"}, "window_unit": {"m"}}, {"limit": {"5"}, "window": {"0"}, "window_unit": {"m"}},
		{"limit": {"0"}, "window": {"1"}, "window_unit": {"m"}}, {"limit": {"5"}, "window": {"1"}, "window_unit": {"years"}},
	} {
		got := b.write("/start", wrong)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, wrong)
		require.Contains(t, got.body, `class="wrong"`, wrong)
	}
	before, _, err := s.store.Keys(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)

	got := b.write("/start", url.Values{"name": {"Requests"}, "limit": {"5"}, "window": {"2"}, "window_unit": {"h"}})
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Contains(t, got.header.Get("Cache-Control"), "no-transform")
	secret := secretPattern.FindStringSubmatch(got.body)
	require.NotNil(t, secret)
	require.Contains(t, html.UnescapeString(got.body), "curl '"+s.url+"/v1/check' \\\n  -H 'Authorization: Bearer "+secret[1]+"'")
	rule, err := s.store.RuleBySlug(t.Context(), s.a, "api-requests")
	require.NoError(t, err)
	require.Equal(t, int64(5), rule.Limit)
	require.Equal(t, "2h", rule.Window.Text)
	plan, err := s.store.PlanBySlug(t.Context(), s.a, "free")
	require.NoError(t, err)
	require.True(t, plan.Default)
	keys, _, err := s.store.Keys(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, keys, len(before)+1)
	require.Equal(t, []tenants.Scope{tenants.ScopeCheck}, keys[0].Scopes)

	again := regexp.MustCompile(`hx-get="(/start/wait[^"]*)"`).FindStringSubmatch(got.body)
	require.NotNil(t, again)
	wait := html.UnescapeString(again[1])
	require.Contains(t, b.get(wait).body, "Waiting for the first check")
	require.True(t, s.check("user_42", 1).Allowed)
	got = b.get(wait)
	require.Contains(t, got.body, "It works.")
	require.Contains(t, got.body, "user_42 sent a check for “default”. It was allowed: 4 of 5 remain under Requests.")
	require.NotContains(t, got.body, "hx-get", "it stops polling")
	require.NotContains(t, got.body, "<html")
	require.Contains(t, s.as("viewer@example.com").get(wait[:len(wait)-len("&fragment=1")]).body, "<html", "the same in a full page")
	require.NotContains(t, s.as("bob@example.com").get(wait).body, "It works.", "another tenant's check")
	require.Equal(t, http.StatusBadRequest, b.get("/start/wait?since=x").status)

	require.Contains(t, b.get("/start").body, "has rules. Your application")
	got = b.write("/start", url.Values{"only": {"key"}})
	require.NotNil(t, secretPattern.FindStringSubmatch(got.body))
}
