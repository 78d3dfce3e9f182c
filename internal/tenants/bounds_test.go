package tenants_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// tier gives tenant-a a tier with these bounds, or changes them.
func tier(t *testing.T, s *tenants.Store, bounds tenants.Bounds) {
	t.Helper()
	platform, err := s.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	if _, err := s.PlanBySlug(t.Context(), operator, "custom"); err != nil {
		mustPlan(t, s, operator, "custom") // the default
	}
	_, _, err = s.PutPlan(t.Context(), operator, tenants.Plan{Slug: "small", Bounds: bounds}, tenants.Match{})
	require.NoError(t, err)
	mustSubject(t, s, operator, tenants.Subject{Subject: "tenant-a", Plan: "small"})
}

// requireTier requires the refusal of one field by the tier, with words of its message.
func requireTier(t *testing.T, err error, field string, words ...string) {
	t.Helper()
	requireInvalid(t, err, field)
	var invalid *tenants.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.True(t, invalid.Tier)
	for _, w := range append(words, `the tier "small"`) {
		require.Contains(t, invalid.Fields[0].Message, w)
	}
	require.Contains(t, invalid.Fields[0].Fix, "ask the operator of the service for a higher tier")
}

func resource(slug, resource string) limit.Rule {
	r := rule(slug)
	r.Resource = resource
	return r
}

// Every way to add a rule respects the number of rules of the tier. Other tenants have their own.
func TestTierRules(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for i := range 3 {
		mustRule(t, s, a, resource(fmt.Sprint("r", i), fmt.Sprint("r", i)))
		mustRule(t, s, b, resource(fmt.Sprint("r", i), fmt.Sprint("r", i)))
	}
	tier(t, s, tenants.Bounds{Rules: 3})
	words := []string{"would give the tenant 4 rules", "allows 3", "there are 3"}
	_, err := s.CreateRule(t.Context(), a, resource("r3", "r3"))
	requireTier(t, err, "slug", words...)
	_, _, err = s.PutRule(t.Context(), a, resource("r3", "r3"), tenants.Match{})
	requireTier(t, err, "slug", words...)
	add := tenants.Document{Rules: []limit.Rule{resource("r3", "r3")}}
	for _, dry := range []bool{true, false} {
		_, err = s.ApplyDocument(t.Context(), a, add, tenants.Apply{DryRun: dry})
		requireTier(t, err, "rules", words...)
	}
	_, err = s.ApplyDocument(t.Context(), a, add, tenants.Apply{Prune: true})
	require.NoError(t, err, "it replaces the others")
	mustRule(t, s, b, resource("r3", "r3"))

	for i := range 2 {
		mustRule(t, s, a, resource(fmt.Sprint("r", i), fmt.Sprint("r", i)))
	}
	tier(t, s, tenants.Bounds{Rules: 1})
	edited := resource("r3", "other")
	_, _, err = s.PutRule(t.Context(), a, edited, tenants.Match{})
	require.NoError(t, err, "what exists can be changed")
	same, _, err := s.Document(t.Context(), a, false)
	require.NoError(t, err)
	same.Rules[0].Name = "New name"
	_, err = s.ApplyDocument(t.Context(), a, same, tenants.Apply{Prune: true})
	require.NoError(t, err, "a document may keep what exists")
	use, err := s.TierUse(t.Context(), a.TenantID())
	require.NoError(t, err)
	require.Equal(t, []int{3, 1}, []int{use.Rules, use.Bounds.Rules}, "nothing is deleted")
	require.NoError(t, s.DeleteRule(t.Context(), a, "r0", tenants.Match{}))
	_, err = s.CreateRule(t.Context(), a, resource("r0", "r0"))
	requireTier(t, err, "slug", "there are 2", "allows 1")
}

// The platform's own rules are not bounded, although its subjects may include it.
func TestTierOfPlatform(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	tier(t, d.Store, tenants.Bounds{Rules: 1})
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	mustSubject(t, d.Store, operator, tenants.Subject{Subject: tenants.PlatformSlug, Plan: "small"})
	for _, slug := range []string{"a", "b"} {
		mustRule(t, d.Store, operator, rule(slug))
	}
}

// A tenant without a tier of its own has the bounds of the default plan.
func TestTierByDefault(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	_, err = d.Store.CreatePlan(t.Context(), operator, tenants.Plan{Slug: "small", Bounds: tenants.Bounds{Rules: 1}})
	require.NoError(t, err)
	mustRule(t, d.Store, a, rule("a"))
	_, err = d.Store.CreateRule(t.Context(), a, rule("b"))
	requireTier(t, err, "slug")
}

// Every way to let more rules match one check respects the tier: a new rule, a wider resource, a
// rule that is turned on, and a document.
func TestTierMatchingRules(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustRule(t, s, a, resource("all", "*"))
	mustRule(t, s, a, resource("orders", "orders:*"))
	off := resource("off", "orders:*")
	off.Mode = limit.Off
	mustRule(t, s, a, off)
	mustRule(t, s, a, resource("bulk", "bulk"))
	tier(t, s, tenants.Bounds{MatchingRules: 2})
	words := []string{"would let 3 rules match one check", "allows 2"}
	_, err := s.CreateRule(t.Context(), a, resource("more", "orders:create"))
	requireTier(t, err, "resource", words...)
	_, err = s.EditRule(t.Context(), a, "bulk", tenants.Match{}, func(r *limit.Rule) error { r.Resource = "orders:*"; return nil })
	requireTier(t, err, "resource", words...)
	_, err = s.EditRule(t.Context(), a, "off", tenants.Match{}, func(r *limit.Rule) error { r.Mode = limit.Enforce; return nil })
	requireTier(t, err, "resource", words...)
	_, err = s.ApplyDocument(t.Context(), a, tenants.Document{Rules: []limit.Rule{resource("more", "orders:create")}}, tenants.Apply{})
	requireTier(t, err, "rules.0.resource", words...)
	mustRule(t, s, a, resource("apart", "apart"))

	tier(t, s, tenants.Bounds{MatchingRules: 1})
	_, err = s.EditRule(t.Context(), a, "orders", tenants.Match{}, func(r *limit.Rule) error { r.Resource = "orders:create"; return nil })
	require.NoError(t, err, "as many match as before")
	use, err := s.TierUse(t.Context(), a.TenantID())
	require.NoError(t, err)
	require.Equal(t, 2, use.MatchingRules)
}

// Every way to make a window longer respects the tier.
func TestTierLongestWindow(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	old := rule("old")
	old.Algorithm, old.Window = limit.FixedWindow, window(t, "60d")
	mustRule(t, s, a, old)
	mustRule(t, s, a, rule("short"))
	tier(t, s, tenants.Bounds{LongestWindow: duration(t, "30d")})
	for text, allowed := range map[string]bool{"1h": true, "30d": true, "31d": false, "week": true, "month": false, "year": false} {
		r := rule("w" + text)
		r.Algorithm, r.Window = limit.FixedWindow, window(t, text)
		_, err := s.CreateRule(t.Context(), a, r)
		if allowed {
			require.NoError(t, err, text)
			continue
		}
		requireTier(t, err, "window", "is "+text, "windows up to 30d")
		_, err = s.EditRule(t.Context(), a, "short", tenants.Match{}, func(in *limit.Rule) error {
			in.Algorithm, in.Window = r.Algorithm, r.Window
			return nil
		})
		requireTier(t, err, "window", "is "+text)
		_, err = s.ApplyDocument(t.Context(), a, tenants.Document{Rules: []limit.Rule{rule("short"), r}}, tenants.Apply{})
		requireTier(t, err, "rules.1.window", "is "+text)
	}
	longer := func(text string) error {
		_, err := s.EditRule(t.Context(), a, "old", tenants.Match{}, func(r *limit.Rule) error { r.Window = window(t, text); return nil })
		return err
	}
	require.NoError(t, longer("59d"), "a rule from before the bound may become shorter")
	requireTier(t, longer("60d"), "window")
	use, err := s.TierUse(t.Context(), a.TenantID())
	require.NoError(t, err)
	require.Equal(t, "59d", use.LongestWindow.Written())
}

// Invited people count as members, and every way to add one respects the tier. Joining and
// inviting again add nobody.
func TestTierMembers(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	tier(t, s, tenants.Bounds{Members: 2})
	member := func(actor tenants.Actor, email string, role tenants.Role) error {
		_, err := s.CreateMember(t.Context(), actor, email, "correct horse battery", role)
		return err
	}
	require.NoError(t, member(a, "ann@example.com", tenants.Owner))
	invited, err := s.InviteMember(t.Context(), a, "ben@example.com", tenants.Viewer)
	require.NoError(t, err)
	_, err = s.InviteMember(t.Context(), a, "cat@example.com", tenants.Viewer)
	requireTier(t, err, "email", "would be member 3", "allows 2", "there are 2")
	requireTier(t, member(a, "cat@example.com", tenants.Admin), "email", "would be member 3")
	require.NoError(t, member(a, "ann@example.com", tenants.Owner), "a member already")
	for _, email := range []string{"ann@example.com", "ben@example.com", "cat@example.com"} {
		require.NoError(t, member(b, email, tenants.Owner), "another tenant")
	}
	_, err = s.ResendInvitation(t.Context(), a, invited.ID)
	require.NoError(t, err)
	require.NoError(t, s.RemoveMember(t.Context(), a, invited.ID, tenants.Match{}))
	require.NoError(t, member(a, "cat@example.com", tenants.Admin))
}

// The bounds of a plan can be changed, are in documents and in the audit trail, and their ranges
// are checked.
func TestPlanBounds(t *testing.T) {
	t.Parallel()
	d, other, b := two(t)
	s := d.Store
	platform, err := s.EnsurePlatform(t.Context())
	require.NoError(t, err)
	a := tenants.AsSystem(platform.ID, "test")
	all := tenants.Bounds{Rules: 10, MatchingRules: 4, LongestWindow: duration(t, "31d"), Members: 3, Counters: 20_000, RecordBytes: 1 << 20, RetentionDays: 30}
	made, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "free", Bounds: all})
	require.NoError(t, err)
	require.Equal(t, all, made.Bounds)
	require.EqualValues(t, 20_000, policyOf(t, s, a.TenantID()).Plans[0].Counters)
	require.EqualValues(t, 1<<20, policyOf(t, s, a.TenantID()).Plans[0].RecordBytes)
	rows := trailOf(t, s, a, 0)
	const trail = `{"rules":10,"members":3,"counters":20000,"record_bytes":1048576,"longest_window":"31d","matching_rules":4,"retention_days":30}`
	require.Contains(t, string(rows[len(rows)-1].After), trail)
	doc, _, err := s.Document(t.Context(), a, false)
	require.NoError(t, err)
	_, err = s.ApplyDocument(t.Context(), b, doc, tenants.Apply{})
	requireInvalid(t, err, "plans.0.bounds")
	doc.Plans[0].Bounds.Rules = 20
	applied, err := s.ApplyDocument(t.Context(), a, doc, tenants.Apply{DryRun: true})
	require.NoError(t, err)
	require.Len(t, applied.Changes, 1)
	require.Contains(t, applied.Changes[0].Text, "bounds")

	changed, err := s.EditPlan(t.Context(), a, "free", tenants.Match{}, func(p *tenants.Plan) error {
		p.Bounds = tenants.Bounds{Members: 5}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, tenants.Bounds{Members: 5}, changed.Bounds)
	for field, bounds := range map[string]tenants.Bounds{
		"rules": {Rules: 1001}, "matching_rules": {MatchingRules: 33}, "longest_window": {LongestWindow: duration(t, "367d")},
		"members": {Members: 1001}, "counters": {Counters: 999}, "record_bytes": {RecordBytes: 1000}, "retention_days": {RetentionDays: 1},
	} {
		_, err = s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "x", Bounds: bounds})
		requireInvalid(t, err, "bounds."+field)
	}

	// Elsewhere they would have no effect.
	_, err = s.CreatePlan(t.Context(), other, tenants.Plan{Slug: "free", Bounds: all})
	requireInvalid(t, err, "bounds")
	_, err = s.CreatePlan(t.Context(), other, tenants.Plan{Slug: "free", Fail: tenants.FailOpen})
	requireInvalid(t, err, "fail")
	_, err = s.ApplyDocument(t.Context(), other, tenants.Document{Plans: []tenants.Plan{{Slug: "free", Fail: tenants.FailOpen}}}, tenants.Apply{})
	requireInvalid(t, err, "plans.0.fail")
	_, _, err = s.PutPlan(t.Context(), other, tenants.Plan{Slug: "free", Bounds: all}, tenants.Match{})
	requireInvalid(t, err, "bounds")
	mustPlan(t, s, other, "free")
	_, err = s.EditPlan(t.Context(), other, "free", tenants.Match{}, func(p *tenants.Plan) error {
		p.Bounds.Members = 5
		return nil
	})
	requireInvalid(t, err, "bounds")
	_, err = s.EditPlan(t.Context(), other, "free", tenants.Match{}, func(p *tenants.Plan) error {
		p.Fail = tenants.FailOpen
		return nil
	})
	requireInvalid(t, err, "fail")
}

// Usage and audit rows are deleted when they exceed the retention of the tenant's tier. Others
// keep theirs, and the rest of the trail can be verified.
func TestTierRetention(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Now().UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s, ctx := d.Store, t.Context()
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("first"))
	}
	const day = 24 * time.Hour
	now.nowMS += 20 * day.Milliseconds()
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("second"))
		for _, table := range []string{"hours", "days"} {
			for _, age := range []time.Duration{5 * day, 15 * day} {
				d.Exec(`INSERT INTO usage_`+table+` (tenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
					VALUES ($1, $2, '', '', 'r', 1, 0, 0, 0, 0, 0)`, actor.TenantID(), now.now().Add(-age).Truncate(day))
				d.Exec("INSERT INTO usage_subjects VALUES ($1, $2, $3, '{}')", actor.TenantID(), table[:len(table)-1], now.now().Add(-age).Truncate(day))
			}
		}
	}
	tier(t, s, tenants.Bounds{RetentionDays: 10})
	removed, err := s.PurgeTiers(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, removed, "the tenant, its key and the first rule")
	require.Len(t, trailOf(t, s, a, 0), 1)
	require.Len(t, trailOf(t, s, b, 0), 4)
	report := trailIsIntact(t, s, a)
	require.True(t, report.Valid, report.Problem)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for actor, want := range map[tenants.Actor]int{a: 1, b: 2} {
			for table, grains := range map[string]int{"usage_hours": 1, "usage_days": 1, "usage_subjects": 2} {
				var n int
				require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM "+table+" WHERE tenant_id = $1", actor.TenantID()).Scan(&n))
				require.Equal(t, want*grains, n, table)
			}
		}
	})
	removed, err = s.PurgeTiers(ctx)
	require.NoError(t, err)
	require.Zero(t, removed)
}

// What a tenant has of its tier is read with its own share of the connections.
func TestConnectionsOfTierUse(t *testing.T) {
	t.Parallel()
	d := tenantstest.NewWith(t, tenants.Config{MaxConns: 4})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	type held struct{}
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 3)
	require.NoError(t, tenants.TraceStatements(t.Context(), d.Store, func(ctx context.Context, sql string) {
		if ctx.Value(held{}) != nil && strings.HasPrefix(sql, "-- name: TierRules ") {
			begun <- struct{}{}
			<-end
		}
	}))
	use := func(ctx context.Context) {
		_, err := d.Store.TierUse(context.WithValue(ctx, held{}, true), a.TenantID())
		ended <- err
	}
	for range 2 {
		go use(t.Context())
		<-begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	go use(ctx)
	select {
	case <-begun:
		require.Fail(t, "the tenant uses more than half of the connections")
	case err := <-ended:
		require.ErrorIs(t, err, tenants.ErrUnavailable)
	}
	_, err := d.Store.TierUse(t.Context(), b.TenantID())
	require.NoError(t, err)
	close(end)
	for range 2 {
		require.NoError(t, <-ended)
	}
}
