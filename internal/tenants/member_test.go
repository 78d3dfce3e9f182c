package tenants_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
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
	require.Equal(t, made.PersonID, person.ID)
	require.Equal(t, "ann@example.com", person.Email)
	require.Equal(t, []tenants.Membership{{MemberID: made.ID, TenantID: a.TenantID(), Slug: "tenant-a", Role: tenants.Owner, State: tenants.MemberActive}}, person.Memberships)
	for _, c := range [][2]string{
		{"ann@example.com", "wrong horse"}, {"ann@example.com", ""}, {"nobody@example.com", "correct horse"},
		{"not an address", "correct horse"}, {"ann@example.com", strings.Repeat("x", 1025)}, {"a\x00@example.com", "correct horse"},
	} {
		_, err := s.VerifyPassword(ctx, c[0], c[1])
		require.ErrorIs(t, err, tenants.ErrWrongPassword, "%q", c)
	}

	again, err := s.CreateMember(ctx, b, "ann@example.com", "new password", tenants.Viewer)
	require.NoError(t, err)
	require.Equal(t, made.PersonID, again.PersonID, "one person in two tenants")
	person, err = s.VerifyPassword(ctx, "ann@example.com", "new password")
	require.NoError(t, err, "the server itself may set a new password")
	require.Len(t, person.Memberships, 2)

	bob := asMember(t, d, a, "bob@example.com", tenants.Owner)
	_, err = s.CreateMember(ctx, bob, "ann@example.com", "taken over!", tenants.Admin)
	require.NoError(t, err)
	_, err = s.VerifyPassword(ctx, "ann@example.com", "taken over!")
	require.ErrorIs(t, err, tenants.ErrWrongPassword, "a tenant must not take over a person of another tenant")
	person, err = s.VerifyPassword(ctx, "ann@example.com", "new password")
	require.NoError(t, err)
	require.Equal(t, tenants.Admin, person.Memberships[0].Role)
}

// A store hashes passwords with the cost that OWASP recommends, unless it is configured otherwise.
// A stored hash with another cost is an internal error, not a wrong password.
func TestPasswordCost(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	ctx := t.Context()
	s, err := tenants.Open(ctx, tenants.Config{DatabaseURL: d.URL, MaxConns: 2})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.CreateMember(ctx, a, "ann@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var hash string
		require.NoError(t, conn.QueryRow(ctx, "SELECT password_hash FROM people").Scan(&hash))
		require.Regexp(t, `^\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$`, hash)
	})
	_, err = s.VerifyPassword(ctx, "ann@example.com", "correct horse")
	require.NoError(t, err)
	_, err = s.VerifyPassword(ctx, "ann@example.com", "wrong horse")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)

	_, err = d.Store.VerifyPassword(ctx, "ann@example.com", "correct horse")
	require.ErrorContains(t, err, "unknown parameters")
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

// An invited person gets no information and has no rights before they accept.
func TestInvitations(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Open(tenants.Config{DatabaseURL: loginURL(t, d)}), t.Context()
	m, err := s.InviteMember(ctx, a, "Ann@Example.com", tenants.Owner)
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", m.Email)
	require.Equal(t, tenants.MemberInvited, m.State)
	read, err := s.MemberByID(ctx, a, m.ID)
	require.NoError(t, err)
	require.Equal(t, m.Member, read)
	for _, password := range []string{"", "anything at all"} {
		_, err = s.VerifyPassword(ctx, "ann@example.com", password)
		require.ErrorIs(t, err, tenants.ErrWrongPassword, "a person without a password cannot log in")
	}
	_, err = s.InviteMember(ctx, a, "ANN@example.com", tenants.Viewer)
	requireConflict(t, err, tenants.CodeMemberExists)

	// The same person in another tenant, with a login: the answer must not reveal the login.
	_, err = s.CreateMember(ctx, b, "zoe@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	known, err := s.InviteMember(ctx, a, "zoe@example.com", tenants.Viewer)
	require.NoError(t, err)
	require.Equal(t, tenants.MemberInvited, known.State)
	person, err := s.VerifyPassword(ctx, "zoe@example.com", "correct horse")
	require.NoError(t, err)
	require.Equal(t, tenants.MemberInvited, person.Memberships[0].State)
	require.Equal(t, tenants.MemberActive, person.Memberships[1].State)

	for _, id := range []uuid.UUID{m.ID, known.ID} {
		_, err = s.MemberByID(ctx, b, id)
		require.ErrorIs(t, err, tenants.ErrNotFound)
		_, err = s.EditMember(ctx, b, id, tenants.Match{}, role(tenants.Viewer))
		require.ErrorIs(t, err, tenants.ErrNotFound)
		require.ErrorIs(t, s.RemoveMember(ctx, b, id, tenants.Match{}), tenants.ErrNotFound)
	}
	list, next, err := s.Members(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []tenants.Member{known.Member, m.Member}, list, "newest first")
	asRole(t, d, "weir_app", func(ctx context.Context, tx pgx.Tx) {
		emails := func() (out []string) {
			rows, err := tx.Query(ctx, "SELECT email FROM people ORDER BY email")
			require.NoError(t, err)
			out, err = pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			return out
		}
		require.Empty(t, emails(), "people without a tenant")
		_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", b.TenantID().String())
		require.NoError(t, err)
		require.Equal(t, []string{"zoe@example.com"}, emails(), "people of another tenant")
	})
}

func role(r tenants.Role) func(*tenants.Member) { return func(m *tenants.Member) { m.Role = r } }

// Without an owner, no member could be invited.
func TestTheLastOwnerStays(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	ann, err := s.InviteMember(ctx, a, "ann@example.com", tenants.Owner)
	require.NoError(t, err)
	lastOwner := func(id uuid.UUID) {
		t.Helper()
		_, err := s.EditMember(ctx, a, id, tenants.Match{}, role(tenants.Admin))
		requireConflict(t, err, tenants.CodeLastOwner)
		requireConflict(t, s.RemoveMember(ctx, a, id, tenants.Match{}), tenants.CodeLastOwner)
	}
	bob, err := s.CreateMember(ctx, a, "bob@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	lastOwner(bob.ID) // Ann may never accept

	before := versionsOf(t, d, a)
	_, err = s.EditMember(ctx, a, ann.ID, at(ann.Version+1), role(tenants.Admin))
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	same, err := s.EditMember(ctx, a, ann.ID, at(ann.Version), role(tenants.Owner))
	require.NoError(t, err)
	require.Equal(t, ann.Member, same)
	require.Equal(t, before, versionsOf(t, d, a), "nothing changed")
	edited, err := s.EditMember(ctx, a, ann.ID, at(ann.Version), role(tenants.Admin))
	require.NoError(t, err)
	require.Equal(t, tenants.Admin, edited.Role)
	require.Greater(t, edited.Version, ann.Version)
	require.ErrorIs(t, s.RemoveMember(ctx, a, ann.ID, at(ann.Version)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.RemoveMember(ctx, a, ann.ID, at(edited.Version)))
	_, err = s.EditMember(ctx, a, ann.ID, tenants.Match{}, role(tenants.Owner))
	require.ErrorIs(t, err, tenants.ErrNotFound)
	lastOwner(bob.ID)

	// Two owners who remove each other at the same time leave one.
	zoe, err := s.CreateMember(ctx, a, "zoe@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, id := range []uuid.UUID{bob.ID, zoe.ID} {
		wg.Go(func() { errs[i] = s.RemoveMember(ctx, a, id, tenants.Match{}) })
	}
	wg.Wait()
	if errs[0] != nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	require.NoError(t, errs[0])
	requireConflict(t, errs[1], tenants.CodeLastOwner)

	left, _, err := s.Members(ctx, a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, left, 1)
	_, err = s.EditMember(ctx, a, left[0].ID, tenants.Match{}, role("root"))
	requireInvalid(t, err, "role")
	_, err = s.InviteMember(ctx, a, "a@b@example.com", "root")
	requireInvalid(t, err, "email", "role")
}

// Notices go to a bounded number of people. An owner who joined last is one of them.
func TestManagersAreOwnersFirst(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	join := func(email string, role tenants.Role) {
		_, err := d.Store.CreateMember(t.Context(), a, email, "correct horse", role)
		require.NoError(t, err)
	}
	for n := range 25 {
		join(fmt.Sprintf("admin-%02d@example.com", n), tenants.Admin)
	}
	join("viewer@example.com", tenants.Viewer)
	join("owner@example.com", tenants.Owner)
	to, err := d.Store.Managers(t.Context(), a.TenantID())
	require.NoError(t, err)
	require.Len(t, to, 20)
	require.Equal(t, "owner@example.com", to[0])
	require.Equal(t, "admin-00@example.com", to[1])
	require.Equal(t, "admin-18@example.com", to[19])
}
