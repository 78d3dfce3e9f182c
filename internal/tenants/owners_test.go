package tenants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// An admin can create a key, but the key cannot make the admin an owner or remove the real one. The
// person who sets up a tenant has only a key, and must be able to invite its first owner.
func TestKeysAndOwners(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	s, ctx := d.Store, t.Context()
	fresh, secret := d.Tenant("fresh")
	key := d.Actor(secret)

	mistyped, err := s.InviteMember(ctx, key, "olg@example.com", tenants.Owner)
	require.NoError(t, err)
	other, err := s.InviteMember(ctx, key, "max@example.com", tenants.Owner)
	require.NoError(t, err)
	_, err = s.EditMember(ctx, key, other.ID, tenants.Match{}, role(tenants.Admin))
	require.NoError(t, err)
	_, err = s.EditMember(ctx, key, other.ID, tenants.Match{}, role(tenants.Owner))
	require.NoError(t, err)
	require.NoError(t, s.RemoveMember(ctx, key, other.ID, tenants.Match{}))
	require.NoError(t, s.RemoveMember(ctx, key, mistyped.ID, tenants.Match{}), "also the only one")
	invited, err := s.InviteMember(ctx, key, "olga@example.com", tenants.Owner)
	require.NoError(t, err)
	invited, err = s.ResendInvitation(ctx, key, invited.ID)
	require.NoError(t, err)
	_, secret, err = s.CreateKey(ctx, key, tenants.NewAPIKey{Name: "r", Scopes: []tenants.Scope{tenants.ScopeRead}})
	require.NoError(t, err)
	require.ErrorIs(t, second(s.InviteMember(ctx, d.Actor(secret), "eve@example.com", tenants.Owner)), tenants.ErrForbidden)

	person, err := s.JoinNew(ctx, invited.Token, "olga's own horse")
	require.NoError(t, err)
	admin, err := s.CreateMember(ctx, fresh, "admin@example.com", "correct horse", tenants.Admin)
	require.NoError(t, err)
	waiting, err := s.InviteMember(ctx, fresh, "second@example.com", tenants.Owner)
	require.NoError(t, err)
	before := versionsOf(t, d, key)
	for what, err := range map[string]error{
		"inviting an owner":          second(s.InviteMember(ctx, key, "eve@example.com", tenants.Owner)),
		"making an owner":            second(s.EditMember(ctx, key, admin.ID, tenants.Match{}, role(tenants.Owner))),
		"demoting an owner":          second(s.EditMember(ctx, key, invited.ID, tenants.Match{}, role(tenants.Viewer))),
		"removing the owner":         s.RemoveMember(ctx, key, invited.ID, tenants.Match{}),
		"withdrawing an invitation":  second(s.WithdrawInvitation(ctx, key, waiting.ID)),
		"the link of a second owner": second(s.ResendInvitation(ctx, key, waiting.ID)),
		"a member made an owner":     second(s.CreateMember(ctx, key, "admin@example.com", "correct horse", tenants.Owner)),
	} {
		require.ErrorIs(t, err, tenants.ErrOwnersOnly, what)
	}
	require.Equal(t, before, versionsOf(t, d, key), "nothing has changed")
	require.NoError(t, second(s.EditMember(ctx, key, admin.ID, tenants.Match{}, role(tenants.Editor))), "what an admin may, it may")
	require.Equal(t, tenants.Owner, person.Memberships[0].Role)
}

// A tenant is named by its slug or its id, so the two must not be confused.
func TestSlugsCannotBeIDs(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx, operator := d.Store, t.Context(), tenants.AsOperator("test")
	for _, slug := range []string{a.TenantID().String(), "0190b4b0-9df5-7000-8000-000000000000", "0190b4b09df570008000000000000000"} {
		_, _, _, err := s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: slug})
		requireInvalid(t, err, "slug")
	}
	for _, slug := range []string{"0190b4b0", "-a", "a-", "0190b4b0-9df5-7000-8000-00000000000g"} {
		made, _, _, err := s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: slug})
		require.NoError(t, err, slug)
		require.Equal(t, slug, made.Slug)
	}
}
