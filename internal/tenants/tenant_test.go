package tenants_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
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
	require.False(t, actor.Operator(), "a tenant's key must never be the operator's")
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

// What only the operator may do, a tenant's owner may not, with whatever key.
func TestOperatorOnly(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	_, _, _, err := s.CreateTenant(ctx, a, tenants.NewTenant{Slug: "x"})
	require.ErrorIs(t, err, tenants.ErrNotOperator)
	_, _, err = s.ListTenants(ctx, a, tenants.Page{})
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

// A suspended tenant is as good as unknown to every server, and whole again when it is back.
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
	_, _, err := s.PutOverride(ctx, a, "alice", tenants.Override{Rule: "r", Limit: check.Limit{Limit: 1}}, tenants.Match{})
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
	first, next, err := s.ListTenants(ctx, operator, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, b.TenantID(), first[0].ID)
	rest, end, err := s.ListTenants(ctx, operator, tenants.Page{Limit: 1, After: next})
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

// Servers that start at once make one platform tenant among them.
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
	_, _, err = d.Store.ListTenants(t.Context(), actor, tenants.Page{})
	require.NoError(t, err)
}

// Counters and cursors must mean the same to all servers of a deployment.
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

// Two operators who take one slug at the same moment: one gets it, the other one is told.
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

// Keys that replace each other, and subjects on plans, must not keep a tenant from going.
func TestDeleteTenantWithRotatedKeys(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	list, _, err := d.Store.Keys(t.Context(), a, tenants.Page{})
	require.NoError(t, err)
	_, _, err = d.Store.RotateKey(t.Context(), a, list[0].ID, 0)
	require.NoError(t, err)
	require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
}
