package dashboard

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// A user publishes a version, sees the subjects that keep the old one and those that a migration
// would deny immediately, and migrates.
func TestPlanVersionsPage(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark") // free: 20
	for _, name := range []string{"heavy", "light"} {
		_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: name, Plan: "free"}, tenants.Match{})
		require.NoError(t, err)
	}
	b := s.as("ann@example.com")
	require.Contains(t, b.get("/plans/free/edit").body, `href="/plans/free/versions"`)
	page := b.get("/plans/free/versions").body
	require.Contains(t, page, "Version 1")
	require.NotContains(t, page, "Delete version")
	require.Contains(t, b.get("/plans").body, `href="/plans/free/versions"`, "the page of versions is where the next one is published")

	got := b.post("/plans/free/versions", s.planForm("version", s.planVersion("free")))
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Contains(t, b.get("/plans").body, `<a class="versions" href="/plans/free/versions">Version 2</a>`)
	require.Regexp(t, `subjects? uses? its newest version`, b.get("/plans/free/edit").body, "those with version 1 are not counted")
	_, _, err := s.store.PutPlanLimit(t.Context(), s.a, "free", "requests", limit.Limit{Limit: 5}, tenants.Match{})
	require.NoError(t, err)
	page = b.get("/plans/free/versions").body
	for _, want := range []string{"Version 2", "Version 1", "2 subjects", "0 subjects", "5 per minute", "20 per minute"} {
		require.Contains(t, page, want)
	}

	s.serve(s.store, testenv.RedisURL(t)) // with the current configuration
	b = s.as("ann@example.com")
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	_, err = s.checker.Check(t.Context(), policy, []check.Request{{Subject: "heavy", Resource: "default", Cost: 12}})
	require.NoError(t, err)
	got = b.post("/plans/free/migrations/preview", s.planForm("from_version", "1", "to", "free", "at", "now"))
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Contains(t, got.body, "2 subjects get version 2 now.")
	require.Contains(t, got.body, "Of the 2 compared subjects, 1 would be over a limit immediately.")
	require.Contains(t, got.body, `<a href="/subjects/heavy">heavy</a>`)
	require.Contains(t, got.body, `<td class="num">12</td>`)
	require.NotContains(t, got.body, "/subjects/light")

	end, err := s.checker.BeginPreview(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	got = b.post("/plans/free/migrations/preview", s.planForm("from_version", "1", "to", "free", "at", "now"))
	require.Equal(t, http.StatusServiceUnavailable, got.status, got.body)
	require.Contains(t, got.body, "Too many previews")
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, b.get("/plans").status, "without what scheduled changes would do")
	end()

	at := time.Now().Add(time.Hour)
	_, _, err = s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "heavy", Plan: "free", NextPlan: "free", NextPlanAt: &at}, tenants.Match{})
	require.NoError(t, err)
	require.Contains(t, b.get("/plans").body, "Rule mark: 12 used, 20 → 5", "a scheduled change shows the same")

	got = b.post("/plans/free/migrations", s.planForm("from_version", "1", "to", "free", "at", "now"))
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	page = b.get("/plans/free/versions").body
	require.Contains(t, page, "0 of 2 moved")
	require.Contains(t, page, "Cancel migration")
	require.NotContains(t, page, "Preview migration", "one at a time")
	const follows = `hx-select="#migrating"`
	require.Contains(t, page, follows, "the page follows the progress")
	got = b.post("/plans/free/migrations", s.planForm("from_version", "1"))
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.body, "has not ended")
	for more := true; more; {
		_, more, err = s.store.RunPlanMigrations(t.Context())
		require.NoError(t, err)
	}
	page = b.get("/plans/free/versions").body
	require.Contains(t, page, "2 of 2 moved")
	require.NotContains(t, page, follows)
	require.NotContains(t, page, "Cancel migration")
	require.Contains(t, page, "Delete version 1")
	got = b.post("/plans/free/versions/1/delete", s.planForm("version", s.planVersion("free")))
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.NotContains(t, b.get("/plans/free/versions").body, `<th scope="col">Version 1`)

	for words, pairs := range map[string][]string{
		"Must be the number of a version":    {"from_version", "one"},
		"Names no plan of this tenant":       {"to", "none"},
		"Names no version of this plan":      {"from_version", "9"},
		"Is the newest version of this plan": {"from_version", "2"},
	} {
		got = b.post("/plans/free/migrations/preview", s.planForm(pairs...))
		require.Equal(t, http.StatusUnprocessableEntity, got.status, words)
		require.Contains(t, got.body, words)
	}
}

// The page names some of those over a limit, counts all, and says how many subjects were compared
// if these are not all.
func TestForeseenView(t *testing.T) {
	f := check.Foresight{Compared: 100, Over: make([]check.Over, check.MaxOver), MoreOver: 3, OverSubjects: 17, Truncated: true}
	view := foreseenOf(f, 200, ruleNames{})
	require.Len(t, view.Over, maxNamedOver)
	require.Equal(t, check.MaxOver+3-maxNamedOver, view.More)
	require.Equal(t, "Of the 100 compared subjects, 17 would be over a limit immediately.", view.Sentence)
	require.True(t, view.Truncated)
}

// Too many limits of plans are no field of a form, and are said above it.
func TestTooManyPlanLimits(t *testing.T) {
	f := &form{}
	err := &tenants.InvalidError{Fields: []limit.FieldError{limit.FieldProblem("limits", limit.Wrong("Delete versions.", "would give the tenant %d limits", 7))}}
	require.Equal(t, http.StatusUnprocessableEntity, f.refuse(err))
	require.Equal(t, "Nothing saved. This would give the tenant 7 limits. Delete versions.", f.problem)
}
