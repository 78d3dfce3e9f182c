package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// membersActor returns a member with a role, and the member as the actor of a request.
func membersActor(t *testing.T, d *tenantstest.Database, a tenants.Actor, email string, role tenants.Role) (tenants.Member, tenants.Actor) {
	t.Helper()
	const password = "a long password of a member"
	m, err := d.Store.CreateMember(t.Context(), a, email, password, role)
	require.NoError(t, err)
	person, err := d.Store.VerifyPassword(t.Context(), email, password)
	require.NoError(t, err)
	token, err := d.Store.StartSession(t.Context(), person, "192.0.2.1", "test")
	require.NoError(t, err)
	session, err := d.Store.Session(t.Context(), token)
	require.NoError(t, err)
	return m, session.Actor()
}

// The actor of a request is known before its body arrives and before its change waits for others.
// Rights that ended since then count.
func TestRightsEndDuringARequest(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s := d.Store
	a, _ := d.Tenant("tenant-a")
	newKey := func(n tenants.NewAPIKey) (tenants.APIKey, tenants.Actor) {
		key, secret, err := s.CreateKey(t.Context(), a, n)
		require.NoError(t, err)
		return key, d.Actor(secret)
	}
	edit := func(key tenants.APIKey, edit func(*tenants.APIKey)) {
		_, err := s.EditKey(t.Context(), a, key.ID, tenants.Match{}, func(k *tenants.APIKey) error { edit(k); return nil })
		require.NoError(t, err)
	}
	refused := func(actor tenants.Actor, want error, why string) {
		t.Helper()
		_, _, err := s.CreateKey(t.Context(), actor, tenants.NewAPIKey{Name: "after", Scopes: tenants.AllScopes})
		require.ErrorIs(t, err, want, why)
		_, err = s.CreateRule(t.Context(), actor, rule("after"))
		require.ErrorIs(t, err, want, why)
		_, err = s.ImportSubjects(t.Context(), actor, []tenants.SubjectLine{{Subject: "mallory"}}, tenants.ImportMode{})
		require.ErrorIs(t, err, want, why)
		err = s.RecordReset(t.Context(), actor, tenants.Reset{Subject: "mallory"}, func(context.Context) ([]string, error) {
			t.Error("reset: " + why)
			return nil, nil
		})
		require.ErrorIs(t, err, want, why)
	}

	revoked, ofRevoked := newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, s.RevokeKey(t.Context(), ofRevoked, revoked.ID, tenants.Match{}), "by itself")
	refused(ofRevoked, tenants.ErrKeyRevoked, "a revoked key")

	rotated, ofRotated := newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes})
	_, _, err := s.RotateKey(t.Context(), ofRotated, rotated.ID, 0)
	require.NoError(t, err, "by itself")
	refused(ofRotated, tenants.ErrKeyRotated, "a rotated key")

	end := now.now().Add(time.Hour)
	_, ofExpired := newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes, ExpiresAt: &end})
	now.nowMS += time.Hour.Milliseconds()
	refused(ofExpired, tenants.ErrKeyExpired, "an expired key")

	narrow, ofNarrow := newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes})
	edit(narrow, func(k *tenants.APIKey) { k.Scopes = []tenants.Scope{tenants.ScopeRead} })
	refused(ofNarrow, tenants.ErrForbidden, "a key that lost its scopes")
	edit(narrow, func(k *tenants.APIKey) { k.Scopes = []tenants.Scope{tenants.ScopeManage} })
	_, _, err = s.CreateKey(t.Context(), ofNarrow, tenants.NewAPIKey{Name: "after", Scopes: tenants.AllScopes})
	require.ErrorIs(t, err, tenants.ErrNotPermitted, "it gives the scopes that it has now")

	bound, ofBound := newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes})
	edit(bound, func(k *tenants.APIKey) { k.Bounds.Addresses = []string{"192.0.2.0/24"} })
	_, err = s.CreateRule(tenants.WithOrigin(t.Context(), tenants.Origin{Address: "198.51.100.1"}), ofBound, rule("after"))
	require.ErrorIs(t, err, tenants.ErrWrongAddress)
	_, err = s.CreateRule(tenants.WithOrigin(t.Context(), tenants.Origin{Address: "192.0.2.1"}), ofBound, rule("bound"))
	require.NoError(t, err)

	demoted, ofDemoted := membersActor(t, d, a, "eve@example.com", tenants.Admin)
	_, err = s.EditMember(t.Context(), a, demoted.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Viewer })
	require.NoError(t, err)
	refused(ofDemoted, tenants.ErrForbidden, "a demoted member")

	removed, ofRemoved := membersActor(t, d, a, "mallory@example.com", tenants.Admin)
	require.NoError(t, s.RemoveMember(t.Context(), ofRemoved, removed.ID, tenants.Match{}), "by itself")
	refused(ofRemoved, tenants.ErrForbidden, "a removed member")
	require.ErrorIs(t, s.Leave(t.Context(), ofRemoved), tenants.ErrForbidden)

	_, ofKey := newKey(tenants.NewAPIKey{Scopes: tenants.AllScopes})
	_, ofMember := membersActor(t, d, a, "ann@example.com", tenants.Admin)
	_, err = s.EditTenantByRef(t.Context(), tenants.AsOperator("test"), "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error {
		in.State = tenants.TenantSuspended
		return nil
	})
	require.NoError(t, err)
	refused(ofKey, tenants.ErrTenantSuspended, "a key of a suspended tenant")
	refused(ofMember, tenants.ErrForbidden, "a member of a suspended tenant")
}

// What ends while a change waits for the tenant counts, too.
func TestRightsEndWhileAChangeWaits(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	m, mallory := membersActor(t, d, a, "mallory@example.com", tenants.Admin)
	created := make(chan error, 1)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "SELECT FROM tenants WHERE id = $1 FOR NO KEY UPDATE", a.TenantID()) // as RemoveMember
		require.NoError(t, err)
		go func() {
			_, _, err := d.Store.CreateKey(ctx, mallory, tenants.NewAPIKey{Name: "after", Scopes: tenants.AllScopes})
			created <- err
		}()
		require.Eventually(t, func() bool {
			var waits bool
			require.NoError(t, tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))").Scan(&waits))
			return waits
		}, time.Minute, time.Millisecond)
		_, err = tx.Exec(ctx, "DELETE FROM members WHERE id = $1", m.ID)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(ctx))
		require.ErrorIs(t, <-created, tenants.ErrForbidden)
	})
}

// Operators whose rights have ended change no other tenant.
func TestOperatorsRightsEndDuringARequest(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	s := d.Store
	key, secret, err := s.CreateOperatorKey(t.Context(), "operator")
	require.NoError(t, err)
	ofKey := d.Actor(secret)
	platform := tenants.AsSystem(ofKey.TenantID(), "test")
	m, ofMember := membersActor(t, d, platform, "op@example.com", tenants.Admin)
	require.True(t, ofMember.Operator())
	require.NoError(t, s.RevokeKey(t.Context(), ofKey, key.ID, tenants.Match{}), "by itself")
	_, err = s.EditMember(t.Context(), platform, m.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Viewer })
	require.NoError(t, err)
	for actor, want := range map[tenants.Actor]error{ofKey: tenants.ErrKeyRevoked, ofMember: tenants.ErrNotOperator} {
		_, _, _, err = s.CreateTenant(t.Context(), actor, tenants.NewTenant{Slug: "after"})
		require.ErrorIs(t, err, want)
		_, err = s.EditTenantByRef(t.Context(), actor, "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error {
			in.State = tenants.TenantSuspended
			return nil
		})
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, s.DeleteTenant(t.Context(), actor, "tenant-a", tenants.Match{}), want)
	}
	left, err := s.TenantBySlugOrID(t.Context(), tenants.AsOperator("test"), "tenant-a")
	require.NoError(t, err)
	require.Equal(t, tenants.TenantActive, left.State)
	_, err = s.TenantBySlugOrID(t.Context(), tenants.AsOperator("test"), "after")
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// A customer whose link was deleted while the request was on its way sends no request.
func TestVisitsEndDuringARequest(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRule(t, d.Store, a, rule("api"))
	link, token, err := d.Store.CreatePortalLink(t.Context(), a, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(t, err)
	id, secret, err := d.Store.FollowPortalLink(t.Context(), token)
	require.NoError(t, err)
	visit, err := d.Store.PortalVisit(t.Context(), id, secret, nil)
	require.NoError(t, err)
	require.NoError(t, d.Store.DeletePortalLink(t.Context(), a, "ada", link.ID, tenants.Match{}))
	_, _, err = d.Store.RequestLimit(t.Context(), &visit, tenants.NewLimitRequest{Rule: "api", Had: limit.Limit{Limit: 100}, Asked: 200})
	require.ErrorIs(t, err, tenants.ErrNotFound)
}
