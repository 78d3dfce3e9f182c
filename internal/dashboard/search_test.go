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
		"ada mark":        {`href="/subjects/ada%20mark">ada mark`, `href="/subjects/ada%20mark?open=boost">Boost limit of ada mark`},
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
	require.Contains(t, b.get("/subjects/ada?open=boost").body, `<details class="action" open data-drawer><summary class="button quiet" autofocus><svg class="i" aria-hidden="true"><use href="#i-trending-up"></use></svg>Boost limit`)
	require.Contains(t, b.get("/search?q=%01").body, "No results for")
	require.Equal(t, http.StatusBadRequest, b.get("/search?q="+strings.Repeat("x", 257)).status)
	require.Equal(t, http.StatusSeeOther, s.browser().get("/search?fragment=options").status)
	got := b.get("/search?q=" + url.QueryEscape(`"><script>alert(1)</script>`))
	checkHeaders(t, got, "/search")
}

// The palette offers what the buttons of all pages do, and only to those who may do it.
func TestSearchRunsActions(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	owner, viewer := s.as("ann@example.com"), s.as("viewer@example.com")
	for query, want := range map[string]string{
		"shadow requests":      `href="/rules/requests?mode=shadow">Switch to shadow: Rule mark`,
		"delete requests":      `href="/rules/requests?open=delete-rule">Delete rule Rule mark`,
		"edit free":            `href="/plans/free/edit">Edit plan Plan mark`,
		"publish free":         `href="/plans/free/versions?open=publish-version">`,
		"edit edge":            `href="/routes/edge/edit">`,
		"revoke key mark":      `?open=revoke-key">Revoke key Key mark`,
		"invite x@example.com": `href="/members?open=invite-member&amp;email=x%40example.com">Invite x@example.com`,
		"role viewer@":         `>Change role of viewer@example.com`,
		"create key":           ``,
		"create api key":       `href="/keys?open=create-api-key">Create API key`,
		"dark":                 `form="theme-switch" name="theme" value="dark">Theme: Dark`,
		"by-ip":                `href="/rules/by-ip?mode=enforce">Enforce`,
		"delete ada":           `href="/subjects/ada?open=delete">Delete registration of ada`,
		"grant ada":            `href="/subjects/ada?open=grant">Grant credits to ada`,
		"remove ada mark":      `href="/subjects/ada%20mark?open=remove-requests">Remove override of ada mark`,
		"map price":            `href="/billing?open=map-price">Map price to a plan`,
		"create notif":         `href="/settings/notifications?open=create-endpoint">`,
	} {
		got := owner.get("/search?q=" + url.QueryEscape(query)).body
		require.Contains(t, got, want, query)
		if want != "" && query != "dark" {
			require.NotContains(t, viewer.get("/search?q="+url.QueryEscape(query)).body, want, query)
		}
	}
	require.NotContains(t, owner.get("/search?q=suspend+tenant-b").body, "Suspend tenant", "for operators only")

	page := owner.get("/rules/requests?open=delete-rule").body
	require.Contains(t, page, `<details class="action" open data-drawer><summary class="button danger" autofocus><svg class="i" aria-hidden="true"><use href="#i-trash-2"></use></svg>Delete rule`)
	require.Contains(t, owner.get("/members?open=invite-member&email=x%40example.com").body, `value="x@example.com"`)
	require.NotContains(t, owner.get("/rules/requests?open=other").body, `<details class="action" open`)
}

// Actions are found by the words that people use for them, and an email of a member before a
// subject with that name.
func TestSearchInOtherWords(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	for query, want := range map[string]string{
		"new rule": `href="/rules/new">Create rule`, "create key": `href="/keys?open=create-api-key">Create API key`, "export config": `href="/settings">Export configuration`,
		"csv": "Download usage as CSV", "log scale": "Show usage with a log scale", "change plan ada": `href="/subjects/ada%20mark?open=plan">Change plan of ada mark`,
		"move ada mark to pro":    `href="/subjects/ada%20mark?open=plan">Change plan of ada mark</a>`, // there is no such plan
		"move ada mark to free":   `href="/subjects/ada%20mark?open=plan&amp;plan=free">Change plan of ada mark to Plan mark</a>`,
		"plan ada mark to plan m": `href="/subjects/ada%20mark?open=plan&amp;plan=free">Change plan of ada mark to Plan mark</a>`,
		"change plan of ada mark": `href="/subjects/ada%20mark?open=plan">Change plan of ada mark</a>`,
		"move to ada mark to":     `href="/subjects/to%20ada%20mark?open=plan">Change plan of to ada mark</a>`,
	} {
		require.Contains(t, b.get("/search?q="+url.QueryEscape(query)).body, want, query)
	}
	got := b.get("/search?q=viewer@example.com").body
	member, subject := strings.Index(got, ">viewer@example.com</a>"), strings.Index(got, `href="/subjects/viewer@example.com"`)
	require.Positive(t, member)
	require.Less(t, member, subject, "the member is first")
	require.Equal(t, 1, strings.Count(got, "?open=edit-"), "once")
}
