package dashboard

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// Empty fields of filters do not stand in the address: the server redirects a browser without
// scripts to the address without them.
func TestAddressesHaveNoEmptyFilters(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for asked, clean := range map[string]string{
		"/decisions?subject=&rule=&show=all&since=": "/decisions?show=all",
		"/subjects?q=&plan=&state=&label=":          "/subjects",
		"/usage?rule=a%26b&plan=":                   "/usage?rule=a%26b",
	} {
		got := b.get(asked)
		require.Equal(t, http.StatusSeeOther, got.status, asked)
		require.Equal(t, clean, got.header.Get("Location"))
	}
	require.Equal(t, http.StatusOK, b.get("/decisions?show=all").status)
}

// The capacity of a queue is called so, as in the rule editor.
func TestQueuesHaveNoBurst(t *testing.T) {
	t.Parallel()
	require.Equal(t, "Queue", burstLabel(limit.LeakyBucketQueue))
	require.Equal(t, "Burst", burstLabel(limit.TokenBucket))
	rule := limit.Rule{Slug: "mail", Resource: "mail", Limit: 5, Window: limit.Window{Duration: limit.Duration{MS: 60_000, Text: "1m"}}, Algorithm: limit.LeakyBucketQueue, Burst: 7}
	for _, f := range ruleFacts(&rule) {
		require.NotEqual(t, "Burst", f.Name)
	}
}

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

// The browser gets the messages of the server for what it can check itself.
func TestFormsHaveTheMessagesOfTheServer(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	form := b.get("/rules/new").body
	require.NotContains(t, form, "novalidate>")
	require.Contains(t, form, `data-pattern="`+sentence(limit.InvalidSlug.Message)+`"`)
	require.Contains(t, form, `data-limit-range="`+sentence(limit.FixedWindow.OutsideLimit().Message)+`"`)
	require.Contains(t, form, `data-missing="Enter the limit."`)
	got := b.post("/rules", s.planForm("slug", "x y", "limit", "0", "algorithm", "fixed_window", "window", "1", "window_unit", "m", "mode", "enforce", "resource", "*"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, sentence(limit.InvalidSlug.Message))
	require.Contains(t, got.body, sentence(limit.FixedWindow.OutsideLimit().Message))
	require.Contains(t, b.get("/routes/new").body, `data-pattern="`)
}
