package tenants_test

import (
	"testing"

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

	_, err = d.Open(tenants.Config{SignupTier: "gold"}).SignUpUnproved(ctx, "new@example.com", tenants.NewSignup{Tenant: "New", Password: "correct horse"})
	require.ErrorContains(t, err, "WEIR_SIGNUP_TIER")
	var invalid *tenants.InvalidError
	require.NotErrorAs(t, err, &invalid, "it is nothing that the person can change")
}
