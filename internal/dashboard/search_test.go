package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The search leads to any customer, rule, plan or page, and to their actions.
func TestSearch(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	s.fill(s.b, "secret")
	b := s.as("support@example.com")
	for query, want := range map[string][]string{
		"":                {`href="/rules">Rules`, `href="/subjects">Subjects`},
		"ada":             {`href="/subjects/ada">ada`, `href="/subjects/ada%20mark">ada mark`},
		"requ":            {`href="/rules/requests">Rule mark`, "10 per minute"},
		"plan mark":       {`href="/plans#free">Plan mark`},
		"keys":            {`href="/keys">API keys`},
		"reset ada":       {`href="/subjects/ada?open=reset">Reset limits of ada<`, `href="/subjects/ada%20mark?open=reset">Reset limits of ada mark`},
		"Boost  user_42 ": {`href="/subjects/user_42?open=boost">Boost limit of user_42`},
		"sign o":          {`form="sign-out">Sign out`},
		"acc":             {`href="/account">Account`},
		"sess":            {`href="/sessions">Sessions`},
	} {
		got := b.get("/search?q=" + url.QueryEscape(query))
		require.Equal(t, http.StatusOK, got.status, query)
		for _, text := range want {
			require.Contains(t, got.body, text, "%q", query)
		}
		require.NotContains(t, got.body, "secret", "%q: another tenant's", query)
		options := b.get("/search?fragment=options&q=" + url.QueryEscape(query))
		require.NotContains(t, options.body, "<html")
		require.Contains(t, options.body, `role="option" id="option-0"`, query)
	}
	require.NotContains(t, b.get("/search?q=block+ada").body, "open=blocked", "support may not block")
	require.Contains(t, s.as("editor@example.com").get("/search?q=block+ada").body, "open=blocked")
	require.NotContains(t, b.get("/search?q=create+rule").body, `href="/rules/new"`, "support may not create rules")
	require.Contains(t, s.as("editor@example.com").get("/search?q=create+rule").body, `href="/rules/new">Create rule`)
	require.Contains(t, b.get("/subjects/ada?open=boost").body, `<details class="action" open data-drawer><summary class="button quiet" autofocus>Boost limit`)
	require.Contains(t, b.get("/search?q=%01").body, "No results for")
	require.Equal(t, http.StatusBadRequest, b.get("/search?q="+strings.Repeat("x", 257)).status)
	require.Equal(t, http.StatusSeeOther, s.browser().get("/search?fragment=options").status)
	got := b.get("/search?q=" + url.QueryEscape(`"><script>alert(1)</script>`))
	checkHeaders(t, got, "/search")
}
