package tenants_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A link to the new address changes the email once. Links in the mailbox of the old address become
// void, and sessions continue.
func TestEmailLink(t *testing.T) {
	t.Parallel()
	d, a, _, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	session, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	for _, bad := range []string{"", "nonsense", "Ann@Example.com"} {
		_, _, err := s.NewEmailLink(ctx, ann, bad)
		requireInvalid(t, err, "email")
	}
	first, _, err := s.NewEmailLink(ctx, ann, "ann@new.example")
	require.NoError(t, err)
	second, change, err := s.NewEmailLink(ctx, ann, "Ann@new.example")
	require.NoError(t, err)
	want := tenants.EmailChange{PersonID: ann.ID, Old: "ann@example.com", New: "ann@new.example"}
	require.Equal(t, want, change)
	_, err = s.EmailLink(ctx, first)
	require.ErrorIs(t, err, tenants.ErrNotFound, "a newer link replaces it")
	_, err = s.PasswordLink(ctx, second)
	require.ErrorIs(t, err, tenants.ErrNotFound, "it is only for an email")
	forgotten, err := s.NewPasswordLink(ctx, ann)
	require.NoError(t, err)
	_, err = s.EmailLink(ctx, forgotten)
	require.ErrorIs(t, err, tenants.ErrNotFound, "it is only for a password")

	change, err = s.UseEmailLink(ctx, second)
	require.NoError(t, err)
	require.Equal(t, want, change)
	_, err = s.UseEmailLink(ctx, second)
	require.ErrorIs(t, err, tenants.ErrNotFound, "it is single-use")
	_, err = s.PasswordLink(ctx, forgotten)
	require.ErrorIs(t, err, tenants.ErrNotFound, "the old mailbox sets no password")
	_, err = s.VerifyPassword(ctx, "ann@example.com", "correct horse")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)
	ann, err = s.VerifyPassword(ctx, "ann@new.example", "correct horse")
	require.NoError(t, err)
	open, err := s.Session(ctx, session)
	require.NoError(t, err, "sessions continue")
	require.Equal(t, "ann@new.example", open.Email)
	events, _, err := s.SecurityEvents(ctx, a, tenants.EventFilter{Kind: tenants.EventEmailChanged}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.JSONEq(t, `{"before": "ann@example.com", "after": "ann@new.example"}`, string(events[0].Details))

	// The address of another person, or of an invitation, is refused, and the link stays valid.
	_, err = s.InviteMember(ctx, a, "taken@example.com", tenants.Viewer)
	require.NoError(t, err)
	taken, _, err := s.NewEmailLink(ctx, ann, "taken@example.com")
	require.NoError(t, err, "only the reader of that mailbox learns that the address is taken")
	for range 2 {
		_, err = s.UseEmailLink(ctx, taken)
		requireConflict(t, err, tenants.CodeMemberExists)
	}

	// A new password voids a link that somebody else requested, and time does.
	require.NoError(t, s.ChangePassword(ctx, &ann, "a better horse"))
	_, err = s.EmailLink(ctx, taken)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	late, _, err := s.NewEmailLink(ctx, ann, "late@example.com")
	require.NoError(t, err)
	*now = now.Add(tenants.EmailLinkLife)
	_, err = s.UseEmailLink(ctx, late)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var leaked bool
		require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM account_links l WHERE l::text LIKE '%' || $1 || '%')", late).Scan(&leaked))
		require.False(t, leaked)
	})
}

// A session begins in the tenant that the person used last.
func TestLastTenant(t *testing.T) {
	t.Parallel()
	d, a, b, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	start := func() tenants.Session {
		t.Helper()
		token, err := s.StartSession(ctx, ann, "", "")
		require.NoError(t, err)
		session, err := s.Session(ctx, token)
		require.NoError(t, err)
		return session
	}
	first := start()
	require.Equal(t, a.TenantID(), first.Current.TenantID, "the first by slug")
	require.NoError(t, s.ChooseTenant(ctx, first, b.TenantID()))
	require.Equal(t, b.TenantID(), start().Current.TenantID)

	// A session that is still open in the other tenant counts as its use.
	token, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	require.NoError(t, s.ChooseTenant(ctx, start(), a.TenantID()))
	*now = now.Add(10 * 60e9)
	_, err = s.Session(ctx, token)
	require.NoError(t, err)
	require.Equal(t, b.TenantID(), start().Current.TenantID)

	in, joined := first.In(b.TenantID())
	require.True(t, joined)
	require.NoError(t, s.DeleteTenant(ctx, tenants.AsOperator("test"), "tenant-b", tenants.Match{}))
	ann, err = s.VerifyPassword(ctx, "ann@example.com", "correct horse")
	require.NoError(t, err)
	require.Equal(t, a.TenantID(), start().Current.TenantID, "the last one no longer exists")
	require.ErrorIs(t, s.Leave(ctx, in.Actor()), tenants.ErrNotFound)
}

// Every role may leave a tenant, except its last owner. Sessions continue in other tenants.
func TestLeave(t *testing.T) {
	t.Parallel()
	d, a, b, _, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	token, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	session, err := s.Session(ctx, token)
	require.NoError(t, err)
	requireConflict(t, s.Leave(ctx, session.Actor()), tenants.CodeLastOwner)
	require.ErrorIs(t, s.Leave(ctx, a), tenants.ErrForbidden, "only a member leaves")
	for _, role := range tenants.Roles {
		email := string(role) + "@example.com"
		_, err := s.CreateMember(ctx, a, email, "correct horse", role)
		require.NoError(t, err)
		person, err := s.VerifyPassword(ctx, email, "correct horse")
		require.NoError(t, err)
		own, err := s.StartSession(ctx, person, "", "")
		require.NoError(t, err)
		member, err := s.Session(ctx, own)
		require.NoError(t, err)
		if role != tenants.Owner {
			require.NoError(t, s.Leave(ctx, member.Actor()), role)
		}
	}
	require.NoError(t, s.Leave(ctx, session.Actor()), "another owner stays")
	after, err := s.Session(ctx, token)
	require.NoError(t, err)
	require.Equal(t, b.TenantID(), after.Current.TenantID)
	_, joined := after.In(a.TenantID())
	require.False(t, joined)
	entries, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "member", Target: "ann@example.com", Action: "delete"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "ann@example.com", entries[0].ActorName)
}
