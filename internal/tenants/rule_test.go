package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// A rule is read as it was written, including the text of durations.
func TestRuleRoundTrip(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	r := limit.Rule{
		Slug: "orders", Name: "Orders", Description: "at most\nso many", Resource: "orders:*",
		Algorithm: limit.SlidingWindowBuckets, Limit: 1000, Window: window(t, "60s"), Precision: duration(t, "1000ms"),
		By: []string{"subject", "attributes.ip"}, Mode: limit.Shadow, OnUnavailable: limit.Deny, Penalty: duration(t, "10m"),
	}
	created := mustRule(t, d.Store, a, r)
	require.Equal(t, r, created.Rule)
	require.NotZero(t, created.Version)
	require.NotZero(t, created.CreatedAt)
	got, err := d.Store.RuleBySlug(t.Context(), a, "orders")
	require.NoError(t, err)
	require.Equal(t, created, got)
	require.Equal(t, []limit.Rule{r}, policyOf(t, d.Store, a.TenantID()).Rules)

	monthly := rule("monthly")
	monthly.Algorithm, monthly.Window, monthly.Limit, monthly.By = limit.FixedWindow, window(t, "month"), limit.MaxFixedLimit, []string{}
	require.Equal(t, monthly, mustRule(t, d.Store, a, monthly).Rule)
	bucket := rule("bucket")
	bucket.Burst, bucket.Consistency = 500, limit.Leased
	require.Equal(t, bucket, mustRule(t, d.Store, a, bucket).Rule)
}

// Every range of rule.Validate is also enforced by the database, after the store.
func TestRuleInvalid(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for name, c := range map[string]struct {
		change func(*limit.Rule)
		field  string
	}{
		"slug":     {func(r *limit.Rule) { r.Slug = "Orders" }, "slug"},
		"resource": {func(r *limit.Rule) { r.Resource = "a*b" }, "resource"},
		"limit":    {func(r *limit.Rule) { r.Limit = 0 }, "limit"},
		"window":   {func(r *limit.Rule) { r.Window = window(t, "500ms") }, "window"},
		"burst":    {func(r *limit.Rule) { r.Limit, r.Burst, r.Window = 1, limit.MaxLimit, window(t, "366d") }, "burst"},
		"by":       {func(r *limit.Rule) { r.By = []string{"attributes."} }, "by.0"},
		"penalty":  {func(r *limit.Rule) { r.Penalty = duration(t, "31d") }, "penalty"},
		"NUL":      {func(r *limit.Rule) { r.Name = "a\x00b" }, "name"},
	} {
		r := rule("r")
		c.change(&r)
		_, err := d.Store.CreateRule(t.Context(), a, r)
		requireInvalid(t, err, c.field)
		_, _, err = d.Store.PutRule(t.Context(), a, r, tenants.Match{})
		requireInvalid(t, err, c.field)
		require.NotEmpty(t, name)
	}
	rules, _, err := d.Store.Rules(t.Context(), a, tenants.RuleFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, rules)
}

func TestRulePutAndEdit(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	_, _, err := s.PutRule(ctx, a, rule("r"), existing)
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed, "If-Match: * requires an existing rule")
	first, created, err := s.PutRule(ctx, a, rule("r"), tenants.Match{})
	require.NoError(t, err)
	require.True(t, created)
	before := versionsOf(t, d, a)

	same, created, err := s.PutRule(ctx, a, rule("r"), at(first.Version))
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, first, same)
	require.Equal(t, before, versionsOf(t, d, a), "an equal write must not make every instance load again")

	changed := rule("r")
	changed.Limit = 200
	second, created, err := s.PutRule(ctx, a, changed, at(first.Version))
	require.NoError(t, err)
	require.False(t, created)
	require.Greater(t, second.Version, first.Version)
	require.Equal(t, first.ID, second.ID)
	require.Equal(t, first.CreatedAt, second.CreatedAt)
	after := versionsOf(t, d, a)
	require.Equal(t, second.Version, after.policy)
	require.Equal(t, second.Version, after.config)
	require.Equal(t, before.subjects, after.subjects)
	require.Equal(t, before.keys, after.keys)
	_, _, err = s.PutRule(ctx, a, rule("r"), at(first.Version))
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)

	third, err := s.EditRule(ctx, a, "r", at(second.Version), func(r *limit.Rule) error { r.Mode = limit.Off; return nil })
	require.NoError(t, err)
	require.Equal(t, limit.Off, third.Mode)
	require.EqualValues(t, 200, third.Limit)
	_, err = s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error { r.Slug = "other"; return nil })
	requireInvalid(t, err, "slug")
	refused := errors.New("not like this")
	_, err = s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 5; return refused })
	require.ErrorIs(t, err, refused)
	_, err = s.EditRule(ctx, a, "none", tenants.Match{}, func(*limit.Rule) error { return nil })
	require.ErrorIs(t, err, tenants.ErrNotFound)

	_, err = s.CreateRule(ctx, a, rule("r"))
	requireConflict(t, err, tenants.CodeSlugTaken)
	require.ErrorIs(t, s.DeleteRule(ctx, a, "r", at(first.Version)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.DeleteRule(ctx, a, "r", at(third.Version)))
	require.ErrorIs(t, s.DeleteRule(ctx, a, "r", tenants.Match{}), tenants.ErrNotFound)
}

// Rules of two tenants are independent, also if they have the same name.
func TestRuleOtherTenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mine := mustRule(t, s, a, rule("shared"))
	_, err := s.RuleBySlug(ctx, b, "shared")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.EditRule(ctx, b, "shared", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 1; return nil })
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.DeleteRule(ctx, b, "shared", tenants.Match{}), tenants.ErrNotFound)
	rules, next, err := s.Rules(ctx, b, tenants.RuleFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, rules)
	require.Empty(t, next)
	theirs := mustRule(t, s, b, rule("shared"))
	require.NotEqual(t, mine.ID, theirs.ID)
	require.NoError(t, s.DeleteRule(ctx, b, "shared", tenants.Match{}))
	still, err := s.RuleBySlug(ctx, a, "shared")
	require.NoError(t, err)
	require.Equal(t, mine, still)
}

// An actor that was not authenticated has no permissions.
func TestZeroActor(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRule(t, d.Store, a, rule("r"))
	_, err := d.Store.RuleBySlug(t.Context(), tenants.Actor{}, "r")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = d.Store.CreateRule(t.Context(), tenants.Actor{}, rule("r"))
	require.ErrorIs(t, err, tenants.ErrForbidden)
}

// Of concurrent edits of the same state, one succeeds and the others get an error.
func TestRuleEditConcurrently(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	first := mustRule(t, d.Store, a, rule("r"))
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			_, errs[i] = d.Store.EditRule(t.Context(), a, "r", at(first.Version), func(r *limit.Rule) error {
				r.Limit = 1000 + int64(i)
				return nil
			})
		})
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
		}
	}
	require.Equal(t, 1, won)
}

// Of concurrent creations of the same rule, one succeeds.
func TestRuleCreateConcurrently(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = d.Store.CreateRule(t.Context(), a, rule("r")) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			requireConflict(t, err, tenants.CodeSlugTaken)
		}
	}
	require.Equal(t, 1, won)
}

// A list continues after its last page, whatever is created in the meantime.
func TestRulesPages(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for i := range 7 {
		mustRule(t, d.Store, a, rule(fmt.Sprintf("r%d", i)))
	}
	var seen []string
	page := tenants.Page{Limit: 3}
	for n := 0; ; n++ {
		rules, next, err := d.Store.Rules(t.Context(), a, tenants.RuleFilter{}, page)
		require.NoError(t, err)
		for _, r := range rules {
			seen = append(seen, r.Slug)
		}
		if next == "" {
			break
		}
		page.After = next
		mustRule(t, d.Store, a, rule(fmt.Sprintf("later%d", n)))
	}
	require.Equal(t, []string{"r6", "r5", "r4", "r3", "r2", "r1", "r0"}, seen)
	_, _, err := d.Store.Rules(t.Context(), a, tenants.RuleFilter{}, tenants.Page{After: "'; --"})
	requireInvalid(t, err, "cursor")

	shadow := rule("shadow")
	shadow.Mode, shadow.Resource, shadow.Name = limit.Shadow, "x:*", "Tried % out, and _"
	mustRule(t, d.Store, a, shadow)
	for _, f := range []tenants.RuleFilter{{Mode: ptr(limit.Shadow)}, {Resource: "x:*"}, {Prefix: "shad"}, {Prefix: "Tried % out"}} {
		rules, _, err := d.Store.Rules(t.Context(), a, f, tenants.Page{})
		require.NoError(t, err)
		require.Len(t, rules, 1)
		require.Equal(t, "shadow", rules[0].Slug)
	}
	rules, _, err := d.Store.Rules(t.Context(), a, tenants.RuleFilter{Algorithm: limit.FixedWindow}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, rules)
}

// A check must stay cheap: the 33rd rule that would match it is refused, however it is created.
func TestRulesMatchingOneCheck(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	for i := range limit.MaxMatchingRules {
		mustRule(t, s, a, rule(fmt.Sprintf("all-%d", i)))
	}
	_, err := s.CreateRule(ctx, a, rule("one-more"))
	requireInvalid(t, err, "resource")
	off := rule("off")
	off.Mode = limit.Off
	mustRule(t, s, a, off)
	_, err = s.EditRule(ctx, a, "off", tenants.Match{}, func(r *limit.Rule) error { r.Mode = limit.Shadow; return nil })
	requireInvalid(t, err, "resource")
	_, err = s.EditRule(ctx, a, "all-0", tenants.Match{}, func(r *limit.Rule) error { r.Resource = "orders:*"; return nil })
	require.NoError(t, err, "a narrower resource is always possible")
}

// A tenant's policy must stay small enough to compile at once.
func TestRulesOfOneTenant(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Exec(`INSERT INTO rules (tenant_id, id, slug, resource, algorithm, limit_units, window_text, window_ms, by_values, mode, on_unavailable, version)
		SELECT $1, gen_random_uuid(), 'r' || n, 'r' || n, 'fixed_window', 1, '1m', 60000, '{}', 'enforce', 'local', 1
		FROM generate_series(1, $2) AS n`, a.TenantID(), limit.MaxRules-1)
	mustRule(t, d.Store, a, limit.Rule{Slug: "last", Resource: "x", Algorithm: limit.FixedWindow, Limit: 1, Window: window(t, "1m")})
	_, err := d.Store.CreateRule(t.Context(), a, rule("too-many"))
	requireInvalid(t, err, "slug")
	_, err = d.Store.EditRule(t.Context(), a, "r1", tenants.Match{}, func(r *limit.Rule) error { r.Resource = "y"; return nil })
	require.NoError(t, err, "the last rule can still be edited")
}

// A change of a rule must keep the limits of plans and subjects valid.
func TestRuleKeepsLimitsValid(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "pro")
	_, _, err := s.PutPlanLimit(ctx, a, "pro", "r", limit.Limit{Limit: 50_000, Burst: 60_000}, tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.PutOverride(ctx, a, "alice", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 20_000}}, tenants.Match{})
	require.NoError(t, err)
	_, err = s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error {
		r.Algorithm = limit.SlidingWindowLog
		return nil
	})
	requireInvalid(t, err, "algorithm", "algorithm", "algorithm") // the plan's limit and burst, alice's limit
	require.ErrorContains(t, err, "plan pro")
	require.ErrorContains(t, err, "subject alice")
	_, err = s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error {
		r.Window = window(t, "366d")
		return nil
	})
	requireInvalid(t, err, "window")
	_, err = s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error { r.Algorithm = limit.LeakyBucket; return nil })
	require.NoError(t, err)
}

// A rule is deleted with its limits and overrides; this changes the plans and subjects that had
// them.
func TestDeleteRuleTakesLimitsAlong(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "pro")
	plan, _, err := s.PutPlanLimit(ctx, a, "pro", "r", limit.Limit{Limit: 5}, tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.PutOverride(ctx, a, "alice", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 7}}, tenants.Match{})
	require.NoError(t, err)
	subject, err := s.SubjectByName(ctx, a, "alice")
	require.NoError(t, err)
	upTo := versionsOf(t, d, a).subjects

	require.NoError(t, s.DeleteRule(ctx, a, "r", tenants.Match{}))
	gotPlan, err := s.PlanBySlug(ctx, a, "pro")
	require.NoError(t, err)
	require.Empty(t, gotPlan.Limits)
	require.Greater(t, gotPlan.Version, plan.Version)
	gotSubject, err := s.SubjectByName(ctx, a, "alice")
	require.NoError(t, err)
	require.Empty(t, gotSubject.Overrides)
	require.Greater(t, gotSubject.Version, subject.Version)
	var changed []check.SubjectData
	_, err = s.LoadSubjects(ctx, a.TenantID(), 0, func(check.SubjectData) {})
	require.NoError(t, err)
	_, err = s.LoadSubjects(ctx, a.TenantID(), upTo, func(d check.SubjectData) { changed = append(changed, d) })
	require.NoError(t, err)
	require.Equal(t, []check.SubjectData{{Subject: "alice"}}, changed)
}

// A change is notified once, after it can be read.
func TestChangesAreNotified(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "LISTEN weir_changes")
		require.NoError(t, err)
		mustRule(t, d.Store, a, rule("r"))
		n, err := conn.WaitForNotification(ctx)
		require.NoError(t, err)
		require.Equal(t, a.TenantID().String(), n.Payload)
		require.Len(t, policyOf(t, d.Store, a.TenantID()).Rules, 1)
		// If the change were notified twice, the next notification would not be this one.
		_, err = conn.Exec(ctx, "SELECT pg_notify('weir_changes', 'end')")
		require.NoError(t, err)
		n, err = conn.WaitForNotification(ctx)
		require.NoError(t, err)
		require.Equal(t, "end", n.Payload)
	})
}

// During a rollout, servers of the previous release run with the new schema.
func TestOldServerOnNewSchema(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	r := mustRule(t, s, a, rule("r"))
	subject := mustSubject(t, s, a, tenants.Subject{Subject: "alice"})
	read := func() {
		t.Helper()
		rules, _, err := s.Rules(ctx, a, tenants.RuleFilter{}, tenants.Page{})
		require.NoError(t, err)
		require.Equal(t, []tenants.Rule{r}, rules)
		got, err := s.RuleBySlug(ctx, a, "r")
		require.NoError(t, err)
		require.Equal(t, r, got)
		subjects, _, err := s.Subjects(ctx, a, tenants.SubjectFilter{}, tenants.Page{})
		require.NoError(t, err)
		require.Equal(t, []tenants.Subject{subject}, subjects)
		require.Equal(t, []limit.Rule{r.Rule}, policyOf(t, s, a.TenantID()).Rules)
	}
	read()
	for _, table := range []string{"tenants", "api_keys", "rules", "routes", "plans", "plan_limits", "subjects", "overrides"} {
		d.Exec("ALTER TABLE " + table + " ADD COLUMN later text NOT NULL DEFAULT 'x'")
	}
	read()
	mustRule(t, s, a, rule("q"))
}
