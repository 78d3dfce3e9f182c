package tenants_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// Subjects without their own plan have the default plan, so there is exactly one if there are
// plans.
func TestDefaultPlan(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	free := mustPlan(t, s, a, "free")
	require.True(t, free.Default, "the first plan becomes the default")
	pro := mustPlan(t, s, a, "pro")
	require.False(t, pro.Default)
	require.True(t, mustPlan(t, s, b, "theirs").Default)

	pro, err := s.EditPlan(ctx, a, "pro", at(pro.Version), func(p *tenants.Plan) error { p.Default = true; return nil })
	require.NoError(t, err)
	require.True(t, pro.Default)
	was, err := s.PlanBySlug(ctx, a, "free")
	require.NoError(t, err)
	require.False(t, was.Default)
	require.Greater(t, was.Version, free.Version, "an edit of the previous default must detect the change")

	_, err = s.EditPlan(ctx, a, "pro", tenants.Match{}, func(p *tenants.Plan) error { p.Default = false; return nil })
	requireConflict(t, err, tenants.CodeDefaultPlan)
	kept, created, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "pro"}, tenants.Match{})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, pro, kept, "a PUT without default keeps it")
	best, err := s.CreatePlan(ctx, a, tenants.Plan{Slug: "best", Default: true})
	require.NoError(t, err)
	require.True(t, best.Default)

	requireConflict(t, s.DeletePlan(ctx, a, "best", tenants.Match{}), tenants.CodeDefaultPlan)
	require.NoError(t, s.DeletePlan(ctx, a, "free", tenants.Match{}))
	require.NoError(t, s.DeletePlan(ctx, a, "pro", tenants.Match{}))
	require.NoError(t, s.DeletePlan(ctx, a, "best", tenants.Match{}), "the last plan can be deleted")
	require.ErrorIs(t, s.DeletePlan(ctx, a, "best", tenants.Match{}), tenants.ErrNotFound)
	require.Empty(t, policyOf(t, s, a.TenantID()).Plans)
}

func TestPlanPutAndEdit(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	_, _, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "Free"}, tenants.Match{})
	requireInvalid(t, err, "slug")
	_, err = s.CreatePlan(ctx, a, tenants.Plan{Slug: "free", Name: "a\x00", Description: string(make([]byte, 3000))})
	requireInvalid(t, err, "name", "description")
	_, _, err = s.PutPlan(ctx, a, tenants.Plan{Slug: "free"}, at(1))
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	free, created, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "free", Name: "Free"}, tenants.Match{})
	require.NoError(t, err)
	require.True(t, created)
	before := versionsOf(t, d, a)
	same, created, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "free", Name: "Free"}, existing)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, free, same)
	require.Equal(t, before, versionsOf(t, d, a))
	_, err = s.CreatePlan(ctx, a, tenants.Plan{Slug: "free"})
	requireConflict(t, err, tenants.CodeSlugTaken)

	for _, err := range []error{
		second(s.PlanBySlug(ctx, b, "free")),
		second(s.EditPlan(ctx, b, "free", tenants.Match{}, func(p *tenants.Plan) error { p.Name = "theirs"; return nil })),
		s.DeletePlan(ctx, b, "free", tenants.Match{}),
	} {
		require.ErrorIs(t, err, tenants.ErrNotFound, "another tenant's plan")
	}
	_, err = s.EditPlan(ctx, a, "free", tenants.Match{}, func(p *tenants.Plan) error { p.Slug = "gratis"; return nil })
	requireInvalid(t, err, "slug")
	edited, err := s.EditPlan(ctx, a, "free", at(free.Version), func(p *tenants.Plan) error { p.Name = "Gratis"; return nil })
	require.NoError(t, err)
	require.Equal(t, edited.Version, versionsOf(t, d, a).policy)
	_, err = s.EditPlan(ctx, a, "free", at(free.Version), func(*tenants.Plan) error { return nil })
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	require.ErrorIs(t, s.DeletePlan(ctx, a, "free", at(free.Version)), tenants.ErrPreconditionFailed)
}

func second[T any](_ T, err error) error { return err }

func TestPlanLimits(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, a, rule("q"))
	mustRule(t, s, b, rule("theirs"))
	free := mustPlan(t, s, a, "free")

	_, _, err := s.PutPlanLimit(ctx, a, "free", "theirs", limit.Limit{Limit: 1}, tenants.Match{})
	require.ErrorIs(t, err, tenants.ErrNotFound, "another tenant's rule")
	_, _, err = s.PutPlanLimit(ctx, b, "free", "theirs", limit.Limit{Limit: 1}, tenants.Match{})
	require.ErrorIs(t, err, tenants.ErrNotFound, "another tenant's plan")
	_, _, err = s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: -1}, tenants.Match{})
	requireInvalid(t, err, "limit")
	_, _, err = s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 1, Unlimited: true}, tenants.Match{})
	requireInvalid(t, err, "unlimited")
	_, _, err = s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 1}, existing)
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)

	p, created, err := s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 10, Burst: 20}, at(free.Version))
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, map[string]limit.Limit{"r": {Limit: 10, Burst: 20}}, p.Limits)
	require.Greater(t, p.Version, free.Version)
	before := versionsOf(t, d, a)
	same, created, err := s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 10, Burst: 20}, tenants.Match{})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, p, same)
	require.Equal(t, before, versionsOf(t, d, a))

	other, _, err := s.PutPlanLimit(ctx, a, "free", "q", limit.Limit{Unlimited: true}, tenants.Match{})
	require.NoError(t, err)
	_, created, err = s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 11}, at(p.Version))
	require.NoError(t, err, "another limit of the plan has changed, this one has not")
	require.False(t, created)
	_, _, err = s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 12}, at(p.Version))
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	require.Equal(t, []check.PlanData{{Slug: "free", Default: true, Limits: map[string]limit.Limit{"r": {Limit: 11}, "q": {Unlimited: true}}, Version: 1}},
		policyOf(t, s, a.TenantID()).Plans)

	require.ErrorIs(t, s.DeletePlanLimit(ctx, a, "free", "q", at(1)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.DeletePlanLimit(ctx, a, "free", "q", at(other.Version)))
	require.ErrorIs(t, s.DeletePlanLimit(ctx, a, "free", "q", tenants.Match{}), tenants.ErrNotFound)
	require.ErrorIs(t, s.DeletePlanLimit(ctx, b, "free", "r", tenants.Match{}), tenants.ErrNotFound)
	left, err := s.PlanBySlug(ctx, a, "free")
	require.NoError(t, err)
	require.Equal(t, map[string]limit.Limit{"r": {Limit: 11}}, left.Limits)
}

// A plan can be created with its limits, and has exactly these.
func TestPlanWithLimits(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, a, rule("q"))
	mustRule(t, s, b, rule("theirs"))
	_, err := s.CreatePlan(ctx, a, tenants.Plan{Slug: "pro", Limits: map[string]limit.Limit{"r": {Limit: 0}, "theirs": {Limit: 1}, "\x00": {Limit: 1}}})
	requireInvalid(t, err, "limits.r.limit", "limits.theirs", "limits.\x00")
	limits := map[string]limit.Limit{"r": {Limit: 5}, "q": {Unlimited: true}}
	created, err := s.CreatePlan(ctx, a, tenants.Plan{Slug: "pro", Limits: limits})
	require.NoError(t, err)
	require.Equal(t, limits, created.Limits)
	got, err := s.PlanBySlug(ctx, a, "pro")
	require.NoError(t, err)
	require.Equal(t, created, got)

	kept, _, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "pro", Name: "Pro"}, tenants.Match{})
	require.NoError(t, err)
	require.Equal(t, limits, kept.Limits, "nil keeps them")
	replaced, _, err := s.PutPlan(ctx, a, tenants.Plan{Slug: "pro", Name: "Pro", Limits: map[string]limit.Limit{"r": {Limit: 6}}}, tenants.Match{})
	require.NoError(t, err)
	require.Equal(t, map[string]limit.Limit{"r": {Limit: 6}}, replaced.Limits)
	edited, err := s.EditPlan(ctx, a, "pro", tenants.Match{}, func(p *tenants.Plan) error {
		p.Limits["q"] = limit.Limit{Limit: 9}
		return nil
	})
	require.NoError(t, err)
	list, next, err := s.Plans(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []tenants.Plan{edited}, list)
}

func TestPlanInUse(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	mustSubject(t, s, a, tenants.Subject{Subject: "alice", Plan: "pro"})
	requireConflict(t, s.DeletePlan(ctx, a, "pro", tenants.Match{}), tenants.CodePlanInUse)
	mustSubject(t, s, a, tenants.Subject{Subject: "alice"})
	require.NoError(t, s.DeletePlan(ctx, a, "pro", tenants.Match{}))
}

func TestPlansPages(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for _, slug := range []string{"one", "two", "three"} {
		mustPlan(t, d.Store, a, slug)
	}
	first, next, err := d.Store.Plans(t.Context(), a, tenants.Page{Limit: 2})
	require.NoError(t, err)
	require.Len(t, first, 2)
	mustPlan(t, d.Store, a, "later")
	rest, end, err := d.Store.Plans(t.Context(), a, tenants.Page{Limit: 2, After: next})
	require.NoError(t, err)
	require.Empty(t, end)
	require.Len(t, rest, 1)
	require.Equal(t, "one", rest[0].Slug)
}

func TestPlanNames(t *testing.T) {
	t.Parallel()
	d, a, other := two(t)
	mustPlan(t, d.Store, a, "bare")
	for _, actor := range []tenants.Actor{a, other} {
		_, _, err := d.Store.PutPlan(t.Context(), actor, tenants.Plan{Slug: "pro", Name: "Pro of " + actor.TenantID().String()}, tenants.Match{})
		require.NoError(t, err)
	}
	names, err := d.Store.PlanNames(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"pro": "Pro of " + a.TenantID().String()}, names)
}

// Every instance reads all plans of a tenant, so it may have so many. A tenant at the bound can
// change what it has.
func TestPlansOfOneTenant(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	free := mustPlan(t, s, a, "free")
	d.Exec(`INSERT INTO plans (tenant_id, id, slug, name, description, is_default, version)
		SELECT $1, gen_random_uuid(), 'p' || n, '', '', false, 1 FROM generate_series(1, $2) AS n`, a.TenantID(), tenants.MaxPlans-2)
	mustPlan(t, s, a, "last")
	_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "too-many"})
	requireInvalid(t, err, "slug")
	require.ErrorContains(t, err, "1000")
	_, _, err = s.PutPlan(t.Context(), a, tenants.Plan{Slug: "too-many"}, tenants.Match{})
	requireInvalid(t, err, "slug")
	more := tenants.Document{Plans: []tenants.Plan{{Slug: "too-many"}}}
	_, err = s.ApplyDocument(t.Context(), a, more, tenants.Apply{})
	requireInvalid(t, err, "plans")
	_, _, err = s.PutPlan(t.Context(), a, tenants.Plan{Slug: "free", Name: "Free"}, tenants.Match{})
	require.NoError(t, err)

	// A tenant that has more keeps them.
	d.Exec(`INSERT INTO plans (tenant_id, id, slug, name, description, is_default, version)
		VALUES ($1, gen_random_uuid(), 'from-before', '', '', false, 1)`, a.TenantID())
	mustApply(t, s, a, tenants.Document{Plans: []tenants.Plan{{Slug: free.Slug, Name: "Changed"}}}, tenants.Apply{})
	require.NoError(t, s.DeletePlan(t.Context(), a, "from-before", tenants.Match{}))
	require.NoError(t, s.DeletePlan(t.Context(), a, "last", tenants.Match{}))
	mustApply(t, s, a, more, tenants.Apply{})
}

// The limits of all versions count together, however they are added.
func TestPlanLimitsOfOneTenant(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	for _, slug := range []string{"r0", "more"} {
		mustRule(t, s, a, rule(slug))
	}
	d.Exec(`INSERT INTO rules (tenant_id, id, slug, resource, algorithm, limit_units, window_text, window_ms, by_values, mode, on_unavailable, version)
		SELECT $1, gen_random_uuid(), 'x' || n, 'x' || n, 'fixed_window', 1, '1m', 60000, '{}', 'off', 'local', 1
		FROM generate_series(1, 499) AS n`, a.TenantID())
	plan := mustPlan(t, s, a, "pro")
	mustPlan(t, s, a, "free")
	// 499 rules in 200 older versions are 99 800 limits, and 199 of the newest version.
	d.Exec(`INSERT INTO plan_versions (tenant_id, plan_id, number, published_at)
		SELECT $1, $2, n, now() FROM generate_series(1, 200) AS n`, a.TenantID(), plan.ID)
	d.Exec(`INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units)
		SELECT $1, $2, n, r.id, 5 FROM generate_series(1, 200) AS n, rules r WHERE r.tenant_id = $1 AND r.slug LIKE 'x%'`, a.TenantID(), plan.ID)
	d.Exec(`INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, version)
		SELECT $1, $2, r.id, 5, 1 FROM rules r WHERE r.tenant_id = $1 AND r.slug LIKE 'x%' ORDER BY r.slug LIMIT 199`, a.TenantID(), plan.ID)

	last := limit.Limit{Limit: 7}
	_, _, err := s.PutPlanLimit(ctx, a, "free", "r0", last, tenants.Match{})
	require.NoError(t, err, "exactly as many as it may have")
	_, _, err = s.PutPlanLimit(ctx, a, "free", "more", last, tenants.Match{})
	requireInvalid(t, err, "limit")
	require.ErrorContains(t, err, "100001")
	require.ErrorContains(t, err, "100000")
	two := map[string]limit.Limit{"r0": last, "more": last}
	_, err = s.CreatePlan(ctx, a, tenants.Plan{Slug: "new", Limits: two})
	requireInvalid(t, err, "limits")
	_, _, err = s.PutPlan(ctx, a, tenants.Plan{Slug: "free", Limits: two}, tenants.Match{})
	requireInvalid(t, err, "limits")
	_, err = s.PublishPlan(ctx, a, "free", nil, tenants.Match{})
	requireInvalid(t, err, "limits")
	_, err = s.ApplyDocument(ctx, a, tenants.Document{Plans: []tenants.Plan{{Slug: "free", Limits: two}}}, tenants.Apply{})
	requireInvalid(t, err, "plans")
	older := []tenants.PlanVersion{{Number: 1, Limits: two}}
	_, err = s.ApplyDocument(ctx, a, tenants.Document{Plans: []tenants.Plan{{Slug: "new", NewestVersion: 2, Older: older}}}, tenants.Apply{})
	requireInvalid(t, err, "plans")

	// What the tenant has can be changed and deleted.
	_, _, err = s.PutPlanLimit(ctx, a, "free", "r0", limit.Limit{Limit: 8}, tenants.Match{})
	require.NoError(t, err)
	mustApply(t, s, a, tenants.Document{Plans: []tenants.Plan{{Slug: "free", Limits: map[string]limit.Limit{"r0": last}}}}, tenants.Apply{})
	require.NoError(t, s.DeletePlanLimit(ctx, a, "free", "r0", tenants.Match{}))
	_, _, err = s.PutPlanLimit(ctx, a, "free", "more", last, tenants.Match{})
	require.NoError(t, err)
}

// A document counts the limits of older versions, too.
func TestOlderVersionsOfALargeDocument(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	many := map[string]limit.Limit{}
	for i := range limit.MaxRules {
		many[fmt.Sprintf("rule-%03d", i)] = limit.Limit{Limit: 1}
	}
	in := tenants.Plan{Slug: "pro", NewestVersion: 52}
	for i := range 51 {
		in.Older = append(in.Older, tenants.PlanVersion{Number: i + 1, Limits: many})
	}
	_, err := d.Store.ApplyDocument(t.Context(), a, tenants.Document{Plans: []tenants.Plan{in}}, tenants.Apply{})
	requireInvalid(t, err, "")
}

// Lists of plans have the newest limits for the rules that are asked for, or none.
func TestPlansWithFewLimits(t *testing.T) {
	t.Parallel()
	d, a, other := two(t)
	s := d.Store
	for _, actor := range []tenants.Actor{a, other} {
		mustRule(t, s, actor, rule("r"))
		mustRule(t, s, actor, rule("q"))
	}
	_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "free", Name: "Free", Limits: map[string]limit.Limit{"r": {Limit: 1}, "q": {Limit: 2}}})
	require.NoError(t, err)
	mustPublish(t, s, a, "free", 3)
	_, err = s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "pro", Limits: map[string]limit.Limit{"q": {Limit: 4}}})
	require.NoError(t, err)
	mustPlan(t, s, other, "others")

	limits := func(plans []tenants.Plan, _ string, err error) (out []map[string]limit.Limit) {
		require.NoError(t, err)
		for _, p := range plans {
			require.Empty(t, p.Older)
			out = append(out, p.Limits)
		}
		return out
	}
	pro := map[string]limit.Limit{"q": {Limit: 4}}
	require.Equal(t, []map[string]limit.Limit{pro, limitsOf(3)}, limits(s.Plans(t.Context(), a, tenants.Page{})))
	require.Equal(t, []map[string]limit.Limit{{}, limitsOf(3)}, limits(s.PlansFor(t.Context(), a, []string{"r"}, tenants.Page{})))
	require.Equal(t, []map[string]limit.Limit{{}, {}}, limits(s.PlansFor(t.Context(), a, nil, tenants.Page{})))
	heads, next, err := s.PlanHeads(t.Context(), a, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, []tenants.PlanHead{{Slug: "pro"}}, heads)
	heads, next, err = s.PlanHeads(t.Context(), a, tenants.Page{Limit: 1, After: next})
	require.NoError(t, err)
	require.Equal(t, []tenants.PlanHead{{Slug: "free", Name: "Free", Default: true}}, heads)
	require.Empty(t, next)
}
