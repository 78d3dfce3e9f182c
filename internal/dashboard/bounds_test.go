package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// The operator sets what a tier includes in the form of its plan. The tenant and the operator see
// what the tenant has of it, and what is above a lowered bound stays and is told.
func TestTierBounds(t *testing.T) {
	s := newStack(t)
	platform, err := s.store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.store.ProposeTiers(t.Context(), platform))
	operator := tenants.AsSystem(platform.ID, "test")
	s.member(operator, "olga@example.com", tenants.Admin)
	s.serve(s.store, testenv.RedisURL(t), func(d *Deps) { d.Platform = platform.ID })
	olga := s.as("olga@example.com")
	save := func(pairs ...string) page {
		form := url.Values{"tenant": {platform.ID.String()}, "name": {"Free"}, "fail": {"closed"}, "bounds.rules": {""}}
		for i := 0; i < len(pairs); i += 2 {
			form.Set(pairs[i], pairs[i+1])
		}
		return olga.post("/plans/free/edit", form)
	}
	form := olga.get("/plans/free/edit").body
	for _, field := range boundFields() {
		require.Contains(t, form, `name="`+field+`"`)
	}
	require.Contains(t, form, `value="31d"`)
	require.NotContains(t, s.as("ann@example.com").get("/plans/new").body, "bounds.rules", "only the operator has tiers")

	bad := save("bounds.rules", "many", "bounds.longest_window", "soon", "bounds.counters", "10")
	require.Equal(t, http.StatusUnprocessableEntity, bad.status)
	require.Contains(t, bad.body, "whole number above 0")
	require.Contains(t, bad.body, `value="soon"`)
	require.Equal(t, http.StatusUnprocessableEntity, save("bounds.counters", "10").status)
	require.Equal(t, http.StatusSeeOther, save("bounds.rules", "5", "bounds.members", "1", "bounds.longest_window", "1h", "bounds.record_bytes", "2,000,000", "bounds.retention_days", "30").status)
	free, err := s.store.PlanBySlug(t.Context(), operator, "free")
	require.NoError(t, err)
	hour, err := limit.ParseDuration("1h")
	require.NoError(t, err)
	require.Equal(t, tenants.Bounds{Rules: 5, Members: 1, LongestWindow: hour, RecordBytes: 2_000_000, RetentionDays: 30}, free.Bounds)

	ann := s.as("ann@example.com")
	require.NotContains(t, ann.get("/usage").body, "Tier ", "the default tier has no bounds")
	for i := range 4 {
		r := limit.NewRule("r" + itoa(int64(i)))
		r.Limit, r.Window = 5, limit.Window{Duration: hour}
		_, err := s.store.CreateRule(t.Context(), s.a, r)
		require.NoError(t, err)
	}
	s.member(s.a, "second@example.com", tenants.Viewer)
	members, _, err := s.store.Members(t.Context(), s.a, tenants.Page{Limit: 1000})
	require.NoError(t, err)
	_, _, err = s.store.PutSubject(t.Context(), operator, tenants.Subject{Subject: "tenant-a", Plan: "free"}, tenants.Match{})
	require.NoError(t, err)
	for _, page := range []page{ann.get("/usage"), olga.get("/tenants/tenant-a")} {
		require.Equal(t, http.StatusOK, page.status)
		for _, words := range []string{
			"Tier Free", `<strong>Rules</strong> <span class="count">4 of 5`, "80 %", "1h of 1h", "kept for 30 days",
			`<strong>Members and invitations</strong> <span class="count">` + itoa(int64(len(members))) + " of 1",
		} {
			require.Contains(t, page.body, words)
		}
	}
	require.Greater(t, len(members), 1)
	require.Contains(t, ann.get("/").body, "The tier Free includes less than this tenant has: "+itoa(int64(len(members)))+" members of 1.")
	require.NotContains(t, s.as("bob@example.com").get("/").body, "includes less than")

	// A form says what the tier does not allow, and what to do.
	long := s.ruleForm("slug", "daily", "algorithm", "fixed_window", "window_unit", "d")
	got := ann.write("/rules", long)
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "allows windows up to 1h")
	require.Contains(t, got.body, "ask the operator of the service for a higher tier")
	require.Contains(t, got.body, `value="daily"`, "the form keeps what was entered")
}
