package tenants_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

var operator = tenants.AsOperator("test")

func TestCreateTenant(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s, ctx := d.Store, t.Context()
	tenant, first, key, err := s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "acme", Name: "Acme"})
	require.NoError(t, err)
	require.Equal(t, tenants.TenantActive, tenant.State)
	require.Equal(t, tenants.AllScopes, first.Scopes)
	require.Equal(t, key.Last4(), first.Last4)
	actor := d.Actor(key)
	require.Equal(t, tenant.ID, actor.TenantID())
	require.Equal(t, first.ID, actor.KeyID())
	require.False(t, actor.Operator(), "a tenant's key must never be an operator key")
	plans, _, err := s.Plans(ctx, actor, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, plans)
	own, err := s.Tenant(ctx, actor)
	require.NoError(t, err)
	require.Equal(t, tenant, own)

	_, _, _, err = s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "acme"})
	requireConflict(t, err, tenants.CodeSlugTaken)
	_, _, _, err = s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "platform"})
	requireInvalid(t, err, "slug")
	_, _, _, err = s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "Bad Slug", Name: "\x00"})
	requireInvalid(t, err, "slug", "name")
}

// Operations of the operator are refused for a tenant's owner, with any key.
func TestOperatorOnly(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	_, _, _, err := s.CreateTenant(ctx, a, tenants.NewTenant{Slug: "x"})
	require.ErrorIs(t, err, tenants.ErrNotOperator)
	_, _, err = s.ListTenants(ctx, a, tenants.TenantFilter{}, tenants.Page{})
	require.ErrorIs(t, err, tenants.ErrNotOperator)
	_, err = s.TenantBySlugOrID(ctx, a, "tenant-b")
	require.ErrorIs(t, err, tenants.ErrNotOperator)
	_, err = s.EditTenantByRef(ctx, a, b.TenantID().String(), tenants.Match{}, func(*tenants.Tenant) error { return nil })
	require.ErrorIs(t, err, tenants.ErrNotOperator)
	require.ErrorIs(t, s.DeleteTenant(ctx, a, "tenant-b", tenants.Match{}), tenants.ErrNotOperator)
	_, _, err = s.CreateKey(ctx, a, tenants.NewAPIKey{Kind: tenants.OperatorKey, Scopes: tenants.AllScopes})
	requireInvalid(t, err, "kind")
}

func TestEditTenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	before := versionsOf(t, d, a)
	named, err := s.EditTenant(ctx, a, at(before.itself), func(in *tenants.Tenant) error { in.Name = "New"; return nil })
	require.NoError(t, err)
	require.Equal(t, "New", named.Name)
	after := versionsOf(t, d, a)
	require.Equal(t, named.Version, after.itself)
	require.Equal(t, before.policy, after.policy)
	same, err := s.EditTenant(ctx, a, existing, func(*tenants.Tenant) error { return nil })
	require.NoError(t, err)
	require.Equal(t, named, same)
	_, err = s.EditTenant(ctx, a, at(before.itself), func(*tenants.Tenant) error { return nil })
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	for field, change := range map[string]func(*tenants.Tenant){
		"state": func(in *tenants.Tenant) { in.State = tenants.TenantSuspended },
		"slug":  func(in *tenants.Tenant) { in.Slug = "other" },
		"name":  func(in *tenants.Tenant) { in.Name = "\x00" },
	} {
		_, err = s.EditTenant(ctx, a, tenants.Match{}, func(in *tenants.Tenant) error { change(in); return nil })
		requireInvalid(t, err, field)
	}
	_, err = s.EditTenantByRef(ctx, operator, "tenant-b", tenants.Match{}, func(in *tenants.Tenant) error { in.State = "gone"; return nil })
	requireInvalid(t, err, "state")
	other, err := s.Tenant(ctx, b)
	require.NoError(t, err)
	require.Empty(t, other.Name)
}

// A suspended tenant is unknown to every instance, and works again when it is active again.
func TestSuspendTenant(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	before := versionsOf(t, d, a)
	set := func(state string) {
		t.Helper()
		_, err := s.EditTenantByRef(ctx, operator, "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error { in.State = state; return nil })
		require.NoError(t, err)
	}
	set(tenants.TenantSuspended)
	after := versionsOf(t, d, a)
	require.Greater(t, after.policy, before.policy)
	require.Greater(t, after.keys, before.keys)
	_, err := s.LoadPolicy(ctx, a.TenantID())
	require.ErrorIs(t, err, check.ErrUnknownTenant)
	_, err = s.LoadSubjects(ctx, a.TenantID(), 0, func(check.SubjectData) {})
	require.ErrorIs(t, err, check.ErrUnknownTenant)
	set(tenants.TenantActive)
	require.Len(t, policyOf(t, s, a.TenantID()).Rules, 1)
	_, err = s.LoadPolicy(ctx, uuid.New())
	require.ErrorIs(t, err, check.ErrUnknownTenant)
}

func TestDeleteTenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "free")
	mustSubject(t, s, a, tenants.Subject{Subject: "alice", Plan: "free"})
	_, _, err := s.PutOverride(ctx, a, "alice", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 1}}, tenants.Match{})
	require.NoError(t, err)
	require.ErrorIs(t, s.DeleteTenant(ctx, operator, "tenant-a", at(1)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.DeleteTenant(ctx, operator, a.TenantID().String(), tenants.Match{}))
	require.ErrorIs(t, s.DeleteTenant(ctx, operator, "tenant-a", tenants.Match{}), tenants.ErrNotFound)
	_, err = s.Tenant(ctx, a)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.CreateRule(ctx, a, rule("again"))
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.LoadPolicy(ctx, a.TenantID())
	require.ErrorIs(t, err, check.ErrUnknownTenant)
	_, err = s.Tenant(ctx, b)
	require.NoError(t, err)

	platform, err := s.EnsurePlatform(ctx)
	require.NoError(t, err)
	requireConflict(t, s.DeleteTenant(ctx, operator, "platform", tenants.Match{}), tenants.CodePlatform)
	_, err = s.EditTenantByRef(ctx, operator, platform.ID.String(), tenants.Match{}, func(in *tenants.Tenant) error {
		in.State = tenants.TenantSuspended
		return nil
	})
	requireConflict(t, err, tenants.CodePlatform)
}

func TestListTenants(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	first, next, err := s.ListTenants(ctx, operator, tenants.TenantFilter{}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, b.TenantID(), first[0].ID)
	rest, end, err := s.ListTenants(ctx, operator, tenants.TenantFilter{}, tenants.Page{Limit: 1, After: next})
	require.NoError(t, err)
	require.Equal(t, a.TenantID(), rest[0].ID)
	require.Empty(t, end)
	for _, ref := range []string{"tenant-a", a.TenantID().String()} {
		got, err := s.TenantBySlugOrID(ctx, operator, ref)
		require.NoError(t, err)
		require.Equal(t, a.TenantID(), got.ID)
	}
	for _, ref := range []string{"none", uuid.NewString(), "", "a\x00"} {
		_, err := s.TenantBySlugOrID(ctx, operator, ref)
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}
}

// The operator finds a tenant by a part of its name, and sees its settings. Other tenants cannot.
func TestServed(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	platform, err := s.EnsurePlatform(ctx)
	require.NoError(t, err)
	_, err = s.EditTenantByRef(ctx, operator, "tenant-b", tenants.Match{}, func(in *tenants.Tenant) error {
		in.Name, in.State = "Zürich 100%", tenants.TenantSuspended
		return nil
	})
	require.NoError(t, err)
	for _, c := range []struct {
		filter tenants.TenantFilter
		want   []string
	}{
		{tenants.TenantFilter{}, []string{"platform", "tenant-b", "tenant-a"}},
		{tenants.TenantFilter{Search: "ENANT-"}, []string{"tenant-b", "tenant-a"}},
		{tenants.TenantFilter{Search: "zürich"}, []string{"tenant-b"}},
		{tenants.TenantFilter{Search: "%"}, []string{"tenant-b"}},
		{tenants.TenantFilter{Search: "_"}, nil},
		{tenants.TenantFilter{State: tenants.TenantSuspended}, []string{"tenant-b"}},
		{tenants.TenantFilter{Search: "tenant", State: tenants.TenantActive}, []string{"tenant-a"}},
	} {
		list, _, err := s.ListTenants(ctx, operator, c.filter, tenants.Page{})
		require.NoError(t, err)
		var slugs []string
		for _, tenant := range list {
			slugs = append(slugs, tenant.Slug)
		}
		require.Equal(t, c.want, slugs, "%+v", c.filter)
	}
	for _, f := range []tenants.TenantFilter{{Search: "a\x00"}, {State: "gone"}} {
		_, _, err := s.ListTenants(ctx, operator, f, tenants.Page{})
		var invalid *tenants.InvalidError
		require.ErrorAs(t, err, &invalid)
	}

	own := tenants.AsSystem(platform.ID, "test")
	_, err = s.CreatePlan(ctx, own, tenants.Plan{Slug: "gold"})
	require.NoError(t, err)
	_, _, err = s.PutSubject(ctx, own, tenants.Subject{Subject: "tenant-a", Plan: "gold", State: check.Exempt}, tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.PutSubject(ctx, a, tenants.Subject{Subject: "tenant-b", State: check.Blocked}, tenants.Match{}) // not that of the operator
	require.NoError(t, err)
	now := time.Now()
	counts := func(allowed, denied int64) usage.Counts {
		return usage.Counts{Allowed: allowed, Denied: denied}
	}
	require.NoError(t, s.WriteUsage(ctx, usageBatch(uuid.New(),
		usageRow(a, now.Truncate(time.Hour), "", "", "r", counts(2, 1)), usageRow(a, now.Truncate(time.Hour), "", "", "s", counts(1, 0)),
		usageRow(a, now.Truncate(time.Hour), "rule", "", "r", counts(100, 100)),
		usageRow(b, now.Truncate(time.Hour), "", "", "r", counts(5, 0)), usageRow(b, now.Add(-26*time.Hour), "", "", "r", counts(7, 0)),
	)))
	served, err := s.Served(ctx, operator, []uuid.UUID{a.TenantID(), b.TenantID()}, now.Add(-24*time.Hour))
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]tenants.Served{
		a.TenantID(): {Tier: "gold", State: check.Exempt, Allowed: 3, Denied: 1}, b.TenantID(): {Allowed: 5},
	}, served)
	_, err = s.Served(ctx, a, []uuid.UUID{a.TenantID()}, now)
	require.ErrorIs(t, err, tenants.ErrNotOperator)
}

// Servers that start at the same time create one platform tenant.
func TestEnsurePlatform(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	ids := make([]uuid.UUID, 4)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			tenant, err := d.Store.EnsurePlatform(t.Context())
			if err == nil {
				ids[i] = tenant.ID
			}
		})
	}
	all.Wait()
	require.NotEqual(t, uuid.Nil, ids[0])
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	_, key, err := d.Store.CreateOperatorKey(t.Context(), "ops")
	require.NoError(t, err)
	actor := d.Actor(key)
	require.True(t, actor.Operator())
	require.Equal(t, ids[0], actor.TenantID())
	_, _, err = d.Store.ListTenants(t.Context(), actor, tenants.TenantFilter{}, tenants.Page{})
	require.NoError(t, err)
}

// Counters and cursors must be the same on all servers of a deployment.
func TestSecrets(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	one, err := d.Store.Secrets(t.Context())
	require.NoError(t, err)
	again, err := d.Open(tenants.Config{}).Secrets(t.Context())
	require.NoError(t, err)
	require.Equal(t, one, again)
	require.NotZero(t, one.CounterKey)
	require.NotZero(t, one.CursorKey)
	require.NotEqual(t, one.CounterKey[:], one.CursorKey[:16])
}

// Two operators create a tenant with the same slug at the same time: one succeeds, the other gets
// an error.
func TestCreateTenantConcurrently(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			_, _, _, errs[i] = d.Store.CreateTenant(t.Context(), operator, tenants.NewTenant{Slug: "acme"})
		})
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

// Keys that replace each other, and subjects with plans, must not prevent the deletion of a tenant.
func TestDeleteTenantWithRotatedKeys(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	list, _, err := d.Store.Keys(t.Context(), a, tenants.Page{})
	require.NoError(t, err)
	_, _, err = d.Store.RotateKey(t.Context(), a, list[0].ID, 0)
	require.NoError(t, err)
	require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
}
