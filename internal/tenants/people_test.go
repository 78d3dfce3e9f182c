package tenants_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// peopleIn lists the stored addresses.
func peopleIn(t *testing.T, d *tenantstest.Database) (emails []string) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, "SELECT email FROM people ORDER BY email")
		require.NoError(t, err)
		emails, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
	})
	return emails
}

// A person who never accepted an invitation, or has left the last tenant, is deleted: address and
// login are not kept without a reason.
func TestPurgePeople(t *testing.T) {
	t.Parallel()
	d, a, b, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	purge := func(invitations, people int64) {
		t.Helper()
		purged, err := s.PurgePeople(ctx)
		require.NoError(t, err)
		require.Equal(t, tenants.PurgedPeople{Invitations: invitations, People: people}, purged)
	}
	left, err := s.CreateMember(ctx, a, "left@example.com", "correct horse", tenants.Viewer)
	require.NoError(t, err)
	back, err := s.CreateMember(ctx, a, "back@example.com", "correct horse", tenants.Viewer)
	require.NoError(t, err)
	_, err = s.InviteMember(ctx, a, "never@example.com", tenants.Viewer)
	require.NoError(t, err)
	again, err := s.InviteMember(ctx, a, "again@example.com", tenants.Viewer)
	require.NoError(t, err)
	_, err = s.InviteMember(ctx, a, "elsewhere@example.com", tenants.Viewer)
	require.NoError(t, err)
	_, err = s.CreateMember(ctx, b, "elsewhere@example.com", "correct horse", tenants.Viewer)
	require.NoError(t, err)
	c, _ := d.Tenant("tenant-c")
	_, err = s.InviteMember(ctx, c, "only-owner@example.com", tenants.Owner)
	require.NoError(t, err)
	require.NoError(t, s.RemoveMember(ctx, a, left.ID, tenants.Match{}))
	require.NoError(t, s.RemoveMember(ctx, a, back.ID, tenants.Match{}))
	everybody := []string{"again@example.com", "ann@example.com", "back@example.com", "elsewhere@example.com", "left@example.com", "never@example.com", "only-owner@example.com"}
	person, err := s.VerifyPassword(ctx, "left@example.com", "correct horse")
	require.NoError(t, err)
	require.NoError(t, second(s.StartSession(ctx, person, "", "")))

	purge(0, 0) // from now on both have no tenant
	*now = now.Add(tenants.PeopleRetention)
	_, err = s.CreateMember(ctx, a, "back@example.com", "correct horse", tenants.Viewer)
	require.NoError(t, err)
	_, err = s.ResendInvitation(ctx, a, again.ID)
	require.NoError(t, err)
	purge(0, 0) // not earlier
	require.Equal(t, everybody, peopleIn(t, d))
	*now = now.Add(time.Millisecond)
	purge(0, 1) // left
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var sessions int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM sessions").Scan(&sessions))
		require.Zero(t, sessions, "sessions are deleted with the login")
	})

	*now = now.Add(tenants.InvitationLife)
	purge(2, 0) // never and elsewhere: their links have expired
	trail, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "member", Target: "never@example.com"}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "delete", trail[0].Action)
	require.Equal(t, "system", trail[0].ActorKind)
	require.Equal(t, "the invitation was not followed", trail[0].Reason)
	require.True(t, trailIsIntact(t, s, a).Valid)
	*now = now.Add(tenants.PeopleRetention + time.Millisecond)
	purge(1, 1) // again's second link has expired; never is deleted
	*now = now.Add(tenants.PeopleRetention + time.Millisecond)
	purge(0, 1)
	require.Equal(t, []string{"ann@example.com", "back@example.com", "elsewhere@example.com", "only-owner@example.com"}, peopleIn(t, d),
		"elsewhere has another tenant, and the only owner of a tenant stays invited")
	require.NoError(t, second(s.VerifyPassword(ctx, "ann@example.com", "correct horse")))
	require.NotEmpty(t, ann.ID)
}

// A person who becomes a member while they are being deleted is a member afterwards, in either
// order.
func TestPurgePeopleWhileInviting(t *testing.T) {
	t.Parallel()
	d, a, _, now, _ := sessionStack(t)
	s, ctx := d.Store, t.Context()
	for range 20 {
		made, err := s.CreateMember(ctx, a, "zoe@example.com", "correct horse", tenants.Viewer)
		require.NoError(t, err)
		require.NoError(t, s.RemoveMember(ctx, a, made.ID, tenants.Match{}))
		require.NoError(t, second(s.PurgePeople(ctx)))
		*now = now.Add(tenants.PeopleRetention + time.Millisecond)
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := s.PurgePeople(ctx); err != nil {
				t.Error(err)
			}
		})
		var invited tenants.Invitation
		both.Go(func() {
			var err error
			if invited, err = s.InviteMember(ctx, a, "zoe@example.com", tenants.Viewer); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		got, err := s.MemberByID(ctx, a, invited.ID)
		require.NoError(t, err)
		require.Equal(t, "zoe@example.com", got.Email)
		_, err = s.WithdrawInvitation(ctx, a, invited.ID)
		require.NoError(t, err)
	}
}
