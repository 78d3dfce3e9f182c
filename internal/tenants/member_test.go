package tenants_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func TestMembers(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	made, err := s.CreateMember(ctx, a, "Ann@Example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", made.Email)
	person, err := s.VerifyPassword(ctx, "ann@example.COM", "correct horse")
	require.NoError(t, err)
	require.Equal(t, tenants.Person{
		ID: made.PersonID, Email: "ann@example.com",
		Memberships: []tenants.Membership{{TenantID: a.TenantID(), Slug: "tenant-a", Role: tenants.Owner}},
	}, person)
	for _, c := range [][2]string{
		{"ann@example.com", "wrong horse"}, {"ann@example.com", ""}, {"nobody@example.com", "correct horse"},
		{"not an address", "correct horse"}, {"ann@example.com", strings.Repeat("x", 1025)}, {"a\x00@example.com", "correct horse"},
	} {
		_, err := s.VerifyPassword(ctx, c[0], c[1])
		require.ErrorIs(t, err, tenants.ErrWrongPassword, "%q", c)
	}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var hash string
		require.NoError(t, conn.QueryRow(ctx, "SELECT password_hash FROM people").Scan(&hash))
		require.Regexp(t, `^\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$`, hash)
	})

	again, err := s.CreateMember(ctx, b, "ann@example.com", "new password", tenants.Viewer)
	require.NoError(t, err)
	require.Equal(t, made.PersonID, again.PersonID, "one person in two tenants")
	person, err = s.VerifyPassword(ctx, "ann@example.com", "new password")
	require.NoError(t, err, "the server itself may give a new password")
	require.Len(t, person.Memberships, 2)

	_, key, err := s.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	_, err = s.CreateMember(ctx, d.Actor(key), "ann@example.com", "taken over!", tenants.Admin)
	require.NoError(t, err)
	_, err = s.VerifyPassword(ctx, "ann@example.com", "taken over!")
	require.ErrorIs(t, err, tenants.ErrWrongPassword, "a tenant must not take over a person of another tenant")
	person, err = s.VerifyPassword(ctx, "ann@example.com", "new password")
	require.NoError(t, err)
	require.Equal(t, tenants.Admin, person.Memberships[0].Role)
}

func TestMemberInvalid(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for _, c := range []struct{ email, password, role, field string }{
		{"ann", "long enough", "owner", "email"},
		{"Ann <ann@example.com>", "long enough", "owner", "email"},
		{"ann@example.com\r\nBcc: x@example.com", "long enough", "owner", "email"},
		{strings.Repeat("a", 255) + "@example.com", "long enough", "owner", "email"},
		{"ann@example.com", "short", "owner", "password"},
		{"ann@example.com", strings.Repeat("x", 1025), "owner", "password"},
		{"ann@example.com", "long enough", "root", "role"},
	} {
		_, err := d.Store.CreateMember(t.Context(), a, c.email, c.password, tenants.Role(c.role))
		requireInvalid(t, err, c.field)
	}
}
