package dashboard

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// Fields for a resource suggest what rules name and what was checked, of the tenant alone.
func TestResourcesAreSuggested(t *testing.T) {
	s := newStack(t)
	rule := limit.NewRule("mail")
	rule.Resource, rule.Limit, rule.Window = "mail:send", 5, limit.Window{Duration: limit.Duration{MS: 60_000, Text: "1m"}}
	_, err := s.store.CreateRule(t.Context(), s.a, rule)
	require.NoError(t, err)
	b := s.as("ann@example.com")
	got := b.get("/tester/resources?q=MAIL")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, `<option value="mail:send">`)
	require.Empty(t, b.get("/tester/resources?q=nothing-like-it").body)
	require.NotContains(t, s.as("bob@example.com").get("/tester/resources?q=").body, "mail")
	for _, path := range []string{"/rules", "/rules/new", "/routes/new", "/tester", "/usage", "/decisions"} {
		require.Contains(t, b.get(path).body, `data-options="/tester/resources"`, path)
	}
}
