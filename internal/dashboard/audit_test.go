package dashboard

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

func TestAuditPage(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	_, err := s.store.EditRule(t.Context(), s.a, "requests", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 1500; return nil })
	require.NoError(t, err)
	s.member(s.a, "viewer@example.com", tenants.Viewer)
	b := s.as("viewer@example.com")
	got := b.get("/audit")
	require.Contains(t, got.body, `<a href="/rules/requests">Rule mark</a>`)
	require.Contains(t, got.body, "<dt>Limit</dt><dd><del><span class=\"hidden\">before: </span>10</del> <ins><span class=\"hidden\">after: </span>1,500</ins></dd>")
	require.Contains(t, got.body, "“Because mark”")
	require.Contains(t, got.body, "Limit of the override for Rule mark")
	require.Contains(t, got.body, "Key mark", "a key is shown by its name")

	count := func(query string) int { return strings.Count(b.get("/audit?"+query).body, `<li id="row-`) }
	require.Equal(t, 3, count("kind=rule"))
	require.Equal(t, 1, count("kind=rule&action=update"))
	require.Equal(t, 2, count("target="+url.QueryEscape("ada mark")))
	require.Zero(t, count("actor=nobody"))
	future := s.clock.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04")
	require.Zero(t, count("from="+future))
	require.Equal(t, 3, count("kind=rule&to="+future))
	require.Contains(t, b.get("/audit?actor=nobody").body, "No entries match")
	other := s.as("bob@example.com").get("/audit").body
	require.NotContains(t, other, "mark")
	require.NotContains(t, other, "ann@example.com")

	for query, want := range map[string]string{
		"kind=people": "Must be one of the listed options.", "action=eat": "Must be one of the listed options.", "from=soon": "Must be a time such as",
		"target=" + strings.Repeat("x", 600): "Must be at most 512 bytes", "after=x": "Filters not applied",
	} {
		got := b.get("/audit?" + query)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, query)
		require.Regexp(t, "(?i)"+want, got.body, query)
	}
}

// Pages are consecutive, and keep the filter.
func TestAuditPages(t *testing.T) {
	s := newStack(t)
	for range auditPage {
		_, _, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "k", Scopes: tenants.AllScopes})
		require.NoError(t, err)
	}
	b := s.as("ann@example.com")
	first := b.get("/audit?kind=key")
	require.Equal(t, auditPage, strings.Count(first.body, `<li id="row-`))
	_, next, _ := strings.Cut(first.body, `rel="next" href="`)
	next, _, _ = strings.Cut(next, `"`)
	next = strings.ReplaceAll(next, "&amp;", "&")
	require.Contains(t, next, "kind=key")
	second := b.get(next)
	require.NotZero(t, strings.Count(second.body, `<li id="row-`))
	require.Contains(t, second.body, "First page")
	require.NotContains(t, second.body, `rel="next"`)
}

func TestAuditExport(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "=mark")
	b := s.as("ann@example.com")
	got := b.get("/audit?kind=rule&format=csv")
	require.Equal(t, "text/csv; charset=utf-8", got.header.Get("Content-Type"))
	require.Equal(t, `attachment; filename="audit.csv"`, got.header.Get("Content-Disposition"))
	rows, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, "sequence", rows[0][0])
	got = b.get("/audit?format=jsonl&kind=subject")
	require.Equal(t, "application/jsonl", got.header.Get("Content-Type"))
	for line := range strings.Lines(got.body) {
		var row struct {
			Kind  string
			Actor struct{ Name string }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &row))
		require.Equal(t, "subject", row.Kind)
	}
	require.NotContains(t, s.as("bob@example.com").get("/audit?format=jsonl").body, "mark")
	require.Equal(t, http.StatusUnprocessableEntity, b.get("/audit?format=csv&kind=people").status)
}

// A trail that was manipulated in the database is reported as broken, with the position.
func TestAuditVerifyPage(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	verified := b.get("/audit?verify=1").body
	require.Contains(t, verified, "The audit trail is intact.")
	require.Contains(t, verified, "starting with the first.")
	report, err := s.store.VerifyAudit(t.Context(), s.a, tenants.AuditVerification{Rows: 2})
	require.NoError(t, err)
	require.Contains(t, b.get("/audit?verify=1&verified="+report.Head.String()).body, "starting with row 3; earlier rows were verified before.")
	var html strings.Builder
	require.NoError(t, auditVerdict(&auditView{Verified: &report, Continue: "/audit?verify=1&verified=" + report.Head.String()}).Render(t.Context(), &html))
	require.Contains(t, html.String(), "The audit trail is intact up to row 2.")
	require.Contains(t, html.String(), "Verify next rows")
	require.NotContains(t, html.String(), "whole")

	_, err = s.store.PurgeAudit(t.Context(), s.clock.Now().Add(time.Second))
	require.NoError(t, err)
	_, err = s.store.EditRule(t.Context(), s.a, "requests", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 1500; return nil })
	require.NoError(t, err)
	left, err := s.store.VerifyAudit(t.Context(), s.a, tenants.AuditVerification{})
	require.NoError(t, err)
	require.EqualValues(t, 1, left.Rows)
	last := itoa(left.Head.Sequence)
	require.Contains(t, b.get("/audit?verify=1").body, "starting with row "+last+", the oldest that is kept")
	s.db.Exec(`UPDATE audit SET actor_name = 'somebody else' WHERE tenant_id = $1`, s.a.TenantID())
	require.Contains(t, b.get("/audit?verify=1").body, "The audit trail is broken at row "+last+":")
	require.Contains(t, s.as("bob@example.com").get("/audit?verify=1").body, "The audit trail is intact.")
}

func TestFieldChanges(t *testing.T) {
	got := fieldChanges(json.RawMessage(`{"limits": {"free": {"limit": 100, "unlimited": null}}, "by": ["subject"], "name": "a", "mode": "shadow"}`),
		json.RawMessage(`{"limits": {"free": {"limit": 2000, "unlimited": true}}, "by": [], "name": "a", "labels": {"a.b": "c"}, "expires_at": "2026-03-01T10:00:00Z"}`))
	require.Equal(t, []fieldChange{
		{"by", "Counted per", "subject", "none"}, {"expires_at", "Expires", "", "1 Mar 2026, 10:00 UTC"}, {"labels\x00a.b", "Label a.b", "", "c"},
		{"limits\x00free\x00limit", "Limit for free", "100", "2,000"}, {"limits\x00free\x00unlimited", "Unlimited for free", "", "yes"}, {"mode", "Mode", "shadow", ""},
	}, got)
	require.Equal(t, []fieldChange{{"limit", "Limit", "", "5"}}, fieldChanges(nil, json.RawMessage(`{"limit": 5}`)))
	require.Empty(t, fieldChanges(nil, nil))
	long := json.RawMessage(`{"limits": {` + strings.Repeat(`"a": {"limit": 1}, `, maxCompared/18) + `"b": {"limit": 2}}}`)
	require.Len(t, fieldChanges(long, nil), 1, "a page of such rows would take gigabytes")
	named := fieldChanges(json.RawMessage(`{"plan": "free", "overrides": {"api": {"limit": 1}}}`), json.RawMessage(`{"plan": "pro", "overrides": {"api": {"limit": 2}}}`))
	nameFields(named, ruleNames{"api": "API requests"}, planNames{"free": "Free"})
	require.Equal(t, []fieldChange{{"overrides\x00api\x00limit", "Limit of the override for API requests", "1", "2"}, {"plan", "Plan", "Free", "pro"}}, named)
	versions := fieldChanges(json.RawMessage(`{"older_versions": {"1": {"limits": 600, "sha256": "ab"}, "2": {"api": {"limit": 5}}}, "older_plan_limits": {"limits": 700}}`), nil)
	nameFields(versions, ruleNames{"api": "API requests"}, nil)
	require.Equal(t, []fieldChange{
		{"older_plan_limits\x00limits", "Number of limits in older versions of plans", "700", ""},
		{"older_versions\x001\x00limits", "Number of limits of version 1", "600", ""}, {"older_versions\x001\x00sha256", "SHA-256 of the limits of version 1", "ab", ""},
		{"older_versions\x002\x00api\x00limit", "Limit for API requests in version 2", "5", ""},
	}, versions)
}

// A row about an API key has its name, also if the change did not touch the name, and so has the
// page about security.
func TestAuditNamesKeys(t *testing.T) {
	s := newStack(t)
	key, _, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "checkout", Scopes: tenants.AllScopes})
	require.NoError(t, err)
	err = s.store.RevokeKey(t.Context(), s.a, key.ID, tenants.Match{})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	for _, path := range []string{"/audit?action=revoke", "/settings/security?kind=key.revoked"} {
		got := b.get(path).body
		require.Contains(t, got, ">checkout</a>", path)
		require.NotContains(t, got, ">"+key.ID.String()+"</a>", path)
	}
}
