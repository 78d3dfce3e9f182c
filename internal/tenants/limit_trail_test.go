package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// The trail of a limit has the rows of the plans that the subject had, and of each only the limit
// for the one rule.
func TestLimitTrail(t *testing.T) {
	t.Parallel()
	now := &clock{time.Now().UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s := d.Store
	from := now.now()
	step := func() { now.nowMS += 60_000 }
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("r"))
		mustRule(t, s, actor, rule("q"))
		for _, plan := range []string{"free", "pro", "other"} {
			_, err := s.CreatePlan(t.Context(), actor, tenants.Plan{Slug: plan, Limits: map[string]limit.Limit{"r": {Limit: 1}, "q": {Limit: 2}}})
			require.NoError(t, err)
		}
	}
	step()
	for _, plan := range []string{"free", "pro", "other"} {
		_, _, err := s.PutPlanLimit(t.Context(), a, plan, "r", limit.Limit{Limit: 3}, tenants.Match{})
		require.NoError(t, err)
		_, _, err = s.PutPlanLimit(t.Context(), a, plan, "q", limit.Limit{Limit: 4}, tenants.Match{})
		require.NoError(t, err)
	}
	read := func(plan string) *tenants.LimitTrail {
		t.Helper()
		out, err := s.LimitTrail(t.Context(), a, tenants.LimitTrailQuery{Subject: "ada", Rule: "r", Plan: plan, From: from, To: now.now().Add(time.Minute), Most: 50})
		require.NoError(t, err)
		return out
	}
	slugs := func(of *tenants.LimitTrail) (out []string) {
		for slug := range of.Limits {
			out = append(out, slug)
		}
		return out
	}
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "pro"})
	got := read("pro")
	require.ElementsMatch(t, []string{"pro", "free"}, slugs(got), "before it was registered, it had the default plan")
	require.Equal(t, "free", got.DefaultNow)
	require.Len(t, got.Defaults, 1)
	require.JSONEq(t, `{"plan": null}`, string(got.Defaults[0].Before))
	require.JSONEq(t, `{"plan": "free"}`, string(got.Defaults[0].After))
	require.Len(t, got.Plans, 1)
	require.JSONEq(t, `{"plan": "pro"}`, string(got.Plans[0].After))
	pro := got.Limits["pro"]
	require.Equal(t, &limit.Limit{Limit: 3}, pro.Now)
	require.Len(t, pro.Changes, 2, "those of the rule")
	require.JSONEq(t, `{"limit": 1}`, string(pro.Changes[0].Before))
	require.JSONEq(t, `{"limit": 3}`, string(pro.Changes[0].After))

	step()
	from = now.now()
	_, err := s.EditPlan(t.Context(), a, "other", tenants.Match{}, func(p *tenants.Plan) error { p.Default = true; return nil })
	require.NoError(t, err)
	got = read("pro")
	require.Equal(t, []string{"pro"}, slugs(got), "it had no other plan in this period")
	require.Empty(t, got.DefaultNow)
	step()
	require.NoError(t, s.DeleteSubject(t.Context(), a, "ada", tenants.Match{}))
	got = read("")
	require.ElementsMatch(t, []string{"pro", "free", "other"}, slugs(got))
	require.JSONEq(t, `{"plan": "free"}`, string(got.Defaults[0].Before))
	require.JSONEq(t, `{"plan": "other"}`, string(got.Defaults[0].After))
	require.JSONEq(t, `{"plan": "pro"}`, string(got.Plans[0].Before))

	got, err = s.LimitTrail(t.Context(), b, tenants.LimitTrailQuery{Subject: "ada", Rule: "r", From: from, To: now.now().Add(time.Minute), Most: 50})
	require.NoError(t, err)
	require.Empty(t, got.Plans)
	require.Equal(t, map[string]tenants.PlanLimitTrail{"free": {Now: &limit.Limit{Limit: 1}}}, got.Limits)
}
