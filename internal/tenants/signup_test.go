package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A person who signs up chooses a name, and gets nothing with it that the operator's tenant keeps
// under a slug: neither what a deleted tenant had, nor what the operator prepares for a tenant.
func TestSignUpInheritsNothing(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s, ctx := d.Store, t.Context()
	platform, err := s.EnsurePlatform(ctx)
	require.NoError(t, err)
	require.NoError(t, s.ProposeTiers(ctx, platform))
	a := tenants.AsSystem(platform.ID, "test")
	for _, slug := range []string{"acme", "plain"} {
		_, _, _, err := s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: slug, Name: slug})
		require.NoError(t, err)
	}
	for _, slug := range []string{"acme", "prepared", "ready"} {
		mustSubject(t, s, a, tenants.Subject{Subject: slug, Plan: "scale"})
	}
	for _, slug := range []string{"acme", "plain"} { // plain has no registration, but counters
		require.NoError(t, s.DeleteTenant(ctx, operator, slug, tenants.Match{}))
		require.NoError(t, second(s.DeleteTenantRows(ctx)))
	}
	for name, want := range map[string]string{
		"Acme": `^acme-[a-z0-9]{6}$`, "Plain": `^plain-[a-z0-9]{6}$`, "Prepared": `^prepared-[a-z0-9]{6}$`, "Fresh": `^fresh$`,
	} {
		person, err := s.SignUpUnproved(ctx, name+"@example.com", tenants.NewSignup{Tenant: name, Password: "correct horse"})
		require.NoError(t, err)
		m := person.Memberships[0]
		use, err := s.TierUse(ctx, m.TenantID)
		require.NoError(t, err)
		require.Equal(t, "custom", use.Tier.Plan, name)
		require.Regexp(t, want, m.Slug)
	}
	// The operator gets what was prepared, and what an earlier tenant had.
	for _, slug := range []string{"acme", "ready"} {
		made, _, _, err := s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: slug, Name: slug})
		require.NoError(t, err)
		use, err := s.TierUse(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, "scale", use.Tier.Plan)
	}
}

// With a tier of sign-ups, a new tenant has it from the start, also if its name was used before. A
// sign-up that fails leaves nothing. Without such a plan, nobody can sign up.
func TestSignUpTier(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	ctx := t.Context()
	platform, err := d.Store.EnsurePlatform(ctx)
	require.NoError(t, err)
	require.NoError(t, d.Store.ProposeTiers(ctx, platform))
	s := d.Open(tenants.Config{SignupTier: "free"})
	slugs := map[string]bool{}
	for _, email := range []string{"ada@example.com", "eve@example.com"} {
		person, err := s.SignUpUnproved(ctx, email, tenants.NewSignup{Tenant: "Acme", Password: "correct horse"})
		require.NoError(t, err)
		m := person.Memberships[0]
		slugs[m.Slug] = true
		use, err := s.TierUse(ctx, m.TenantID)
		require.NoError(t, err)
		require.Equal(t, "free", use.Tier.Plan)
	}
	require.Len(t, slugs, 2)
	require.True(t, slugs["acme"])

	_, err = s.SignUpUnproved(ctx, "ada@example.com", tenants.NewSignup{Tenant: "Other", Password: "correct horse"})
	var conflict *tenants.ConflictError
	require.ErrorAs(t, err, &conflict)
	_, err = s.SubjectByName(ctx, tenants.AsSystem(platform.ID, "test"), "other")
	require.ErrorIs(t, err, tenants.ErrNotFound)

	require.True(t, trailIsIntact(t, s, tenants.AsSystem(platform.ID, "test")).Valid, "of the tiers and the tenants")

	_, err = d.Open(tenants.Config{SignupTier: "gold"}).SignUpUnproved(ctx, "new@example.com", tenants.NewSignup{Tenant: "New", Password: "correct horse"})
	require.ErrorContains(t, err, "WEIR_SIGNUP_TIER")
	var invalid *tenants.InvalidError
	require.NotErrorAs(t, err, &invalid, "it is nothing that the person can change")
}

// A sign-up that its client leaves in the middle writes nothing. Before, the operator's tenant kept
// a subject with the tier, and the operator's next tenant of that slug would have had it.
func TestLeftSignUpWritesNothing(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, d.Store.ProposeTiers(t.Context(), platform))
	s := d.Open(tenants.Config{SignupTier: "free"})
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	d.Conn(func(owner context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(owner)
		require.NoError(t, err)
		_, err = tx.Exec(owner, "LOCK TABLE people")
		require.NoError(t, err)
		go func() {
			done <- second(s.SignUpUnproved(ctx, "ada@example.com", tenants.NewSignup{Tenant: "Fresh", Password: "correct horse"}))
		}()
		d.Conn(func(owner context.Context, other *pgx.Conn) {
			require.Eventually(t, func() (waits bool) {
				err := other.QueryRow(owner, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits)
				return err == nil && waits
			}, time.Minute, time.Millisecond)
		})
		leave()
		require.NoError(t, tx.Rollback(owner))
	})
	require.ErrorIs(t, <-done, context.Canceled)
	_, err = s.SubjectByName(t.Context(), tenants.AsSystem(platform.ID, "test"), "fresh")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	made, _, _, err := s.CreateTenant(t.Context(), operator, tenants.NewTenant{Slug: "fresh", Name: "Fresh"})
	require.NoError(t, err)
	use, err := s.TierUse(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, "custom", use.Tier.Plan)
}
