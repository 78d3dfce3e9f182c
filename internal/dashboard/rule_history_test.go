package dashboard

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Changes are described in words, and every earlier state can be restored.
func TestRuleHistory(t *testing.T) {
	s := newStack(t)
	s.members()
	s.fill(s.b, "other")
	ann, editor := s.as("ann@example.com"), s.as("editor@example.com")
	made := func(got page) {
		t.Helper()
		require.Equal(t, http.StatusSeeOther, got.status, got.body)
	}
	made(ann.post("/rules", s.ruleForm("slug", "requests", "limit", "10", "penalty", "5")))
	made(editor.post("/rules/requests/edit", s.ruleForm("limit", "2000", "consistency", "leased", "attributes", "ip", "algorithm", "token_bucket", "burst", "3000")))
	made(ann.post("/rules/requests/mode", s.ruleForm("mode", "shadow")))

	got := s.as("viewer@example.com").get("/rules/requests/history")
	require.Equal(t, http.StatusOK, got.status)
	checkHeaders(t, got, "history")
	for _, words := range []string{
		"by ann@example.com", "by editor@example.com", "current", "<del>enforce</del> → <ins>shadow</ins>", "<del>10</del> → <ins>2,000</ins>",
		"<del>none</del> → <ins>3,000</ins>", "<del>5m</del> → <ins>none</ins>", "<del>strict</del> → <ins>leased</ins>", "<del>subject</del> → <ins>subject, attributes.ip</ins>",
		"Each subject can use 10 units in any minute on all resources. Requests over the limit are denied, and each denial blocks for 5 minutes.",
		"Each combination of subject and ip can use 3,000 units at once, refilled at 2,000 per minute, on all resources. Requests over the limit are denied.",
	} {
		require.Contains(t, got.body, words)
	}
	require.NotContains(t, got.body, "Restore this version", "a viewer cannot restore")
	sequences := regexp.MustCompile(`name="sequence" value="(\d+)"`).FindAllStringSubmatch(ann.get("/rules/requests/history").body, -1)
	require.Len(t, sequences, 2, "the current state cannot be restored")

	first := s.ruleForm("sequence", sequences[1][1], "version", s.ruleVersion("requests"))
	require.Equal(t, http.StatusForbidden, s.as("support@example.com").post("/rules/requests/restore", first).status)
	require.Equal(t, http.StatusConflict, s.as("bob@example.com").post("/rules/requests/restore", first).status)
	require.Equal(t, http.StatusNotFound, s.as("bob@example.com").post("/rules/requests/restore", s.ruleForm("tenant", s.b.TenantID().String(), "sequence", sequences[1][1])).status)
	made(editor.post("/rules/requests/restore", first))
	rule, err := s.store.RuleBySlug(t.Context(), s.a, "requests")
	require.NoError(t, err)
	require.Equal(t, limit.Rule{
		Slug: "requests", Name: "API requests", Resource: "*", Algorithm: limit.SlidingWindowCounter, Limit: 10, Window: window(t, "1m"),
		By: []string{"subject"}, Penalty: limit.Duration{Text: "5m", MS: 300_000},
	}, rule.Rule)

	got = ann.post("/rules/requests/restore", first)
	require.Equal(t, http.StatusPreconditionFailed, got.status, "the page was older than the last change")
	require.Contains(t, got.body, "Somebody else changed this rule")
	require.Equal(t, http.StatusNotFound, ann.post("/rules/requests/restore", s.ruleForm("sequence", "999")).status)
	require.Equal(t, http.StatusBadRequest, ann.post("/rules/requests/restore", s.ruleForm("sequence", "x")).status)
	require.Equal(t, http.StatusBadRequest, ann.get("/rules/requests/history?after=x").status)
	require.Equal(t, http.StatusNotFound, ann.get("/rules/none/history").status)

	// A rule that was deleted and created again has the history of both.
	made(ann.post("/rules/requests/delete", s.ruleForm()))
	made(ann.post("/rules", s.ruleForm("slug", "requests", "limit", "77")))
	got = ann.get("/rules/requests/history")
	require.Contains(t, got.body, "Deleted")
	require.Equal(t, 4, strings.Count(got.body, `name="sequence"`), "created, changed twice, restored; not the deletion, not the current state")
}

// A long history has pages, and each row has the state of the rule at that time.
func TestRuleHistoryPages(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.post("/rules", s.ruleForm("slug", "requests", "limit", "1")).status)
	for i := range int64(historyPage + 5) {
		_, err := s.store.EditRule(t.Context(), s.a, "requests", tenants.Match{}, func(r *limit.Rule) error { r.Limit = i + 2; return nil })
		require.NoError(t, err)
	}
	got := b.get("/rules/requests/history")
	require.Contains(t, got.body, "can use 56 units")
	require.NotContains(t, got.body, "can use 6 units")
	next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(got.body)
	require.NotNil(t, next)
	got = b.get(strings.ReplaceAll(next[1], "&amp;", "&"))
	require.Contains(t, got.body, "can use 6 units")
	require.Contains(t, got.body, "can use 1 unit ")
	require.NotContains(t, got.body, "can use 56 units")
	require.NotContains(t, got.body, `rel="next"`)
}
