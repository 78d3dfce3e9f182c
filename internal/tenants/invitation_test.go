package tenants_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A link works once, and only for the invited person.
func TestInvitationLink(t *testing.T) {
	t.Parallel()
	d, _, _, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	c, _ := d.Tenant("tenant-c")
	made, err := s.InviteMember(ctx, c, "zoe@example.com", tenants.Editor)
	require.NoError(t, err)
	require.Len(t, made.Token, 43, "256 bits")
	require.Equal(t, now.Add(tenants.InvitationLife), made.ExpiresAt)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var leaked bool
		require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM invitations i WHERE i::text LIKE '%' || $1 || '%')", made.Token).Scan(&leaked))
		require.False(t, leaked, "the database contains the token")
	})
	read, err := s.InvitationByToken(ctx, made.Token)
	require.NoError(t, err)
	require.Equal(t, "tenant-c", read.Tenant)
	require.Equal(t, tenants.Editor, read.Role)
	require.Equal(t, made.Member, read.Member)
	require.False(t, read.HasLogin)
	require.Empty(t, read.Token)

	_, err = s.Join(ctx, made.Token, ann)
	require.ErrorIs(t, err, tenants.ErrNotFound, "it is for another person")
	for _, bad := range []string{"short", "          ", "password123", "zoe@example.com", "aaaaaaaaaaaa", "with\x00inside it"} {
		_, err = s.JoinNew(ctx, made.Token, bad)
		requireInvalid(t, err, "password")
	}
	_, err = s.EditMember(ctx, c, made.ID, tenants.Match{}, role(tenants.Viewer))
	require.NoError(t, err)
	person, err := s.JoinNew(ctx, made.Token, "zoe's own horse")
	require.NoError(t, err)
	require.Equal(t, "zoe@example.com", person.Email)
	require.Equal(t, tenants.MemberActive, person.Memberships[0].State)
	require.Equal(t, tenants.Viewer, person.Memberships[0].Role, "the role at the time of joining")
	_, err = s.VerifyPassword(ctx, "zoe@example.com", "zoe's own horse")
	require.NoError(t, err)
	trail, _, err := s.Audit(ctx, c, tenants.AuditFilter{Kind: "member", Target: "zoe@example.com"}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "member", trail[0].ActorKind, "the member is the actor")
	require.Equal(t, "zoe@example.com", trail[0].ActorName)
	require.JSONEq(t, `{"joined":true}`, string(trail[0].After))

	for _, gone := range []string{made.Token, "", "x", made.Token + "=", made.Token[:42]} {
		_, err = s.InvitationByToken(ctx, gone)
		require.ErrorIs(t, err, tenants.ErrNotFound)
		_, err = s.JoinNew(ctx, gone, "another horse of hers")
		require.ErrorIs(t, err, tenants.ErrNotFound, "it is single-use")
		_, err = s.Join(ctx, gone, person)
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}

	// A person with a login does not get a new password by a link.
	second, err := s.InviteMember(ctx, c, "ann@example.com", tenants.Admin)
	require.NoError(t, err)
	read, err = s.InvitationByToken(ctx, second.Token)
	require.NoError(t, err)
	require.True(t, read.HasLogin)
	_, err = s.JoinNew(ctx, second.Token, "taken over now")
	requireConflict(t, err, tenants.CodeMemberExists)
	person, err = s.Join(ctx, second.Token, ann)
	require.NoError(t, err)
	require.Len(t, person.Memberships, 3)
	_, err = s.VerifyPassword(ctx, "ann@example.com", "correct horse")
	require.NoError(t, err)
}

// A link is void if it was replaced or withdrawn, has expired, or its tenant is suspended.
func TestDeadInvitations(t *testing.T) {
	t.Parallel()
	d, a, b, now, _ := sessionStack(t)
	s, ctx := d.Store, t.Context()
	dead := func(token string) {
		t.Helper()
		_, err := s.InvitationByToken(ctx, token)
		require.ErrorIs(t, err, tenants.ErrNotFound)
		_, err = s.JoinNew(ctx, token, "zoe's own horse")
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}
	first, err := s.InviteMember(ctx, a, "zoe@example.com", tenants.Editor)
	require.NoError(t, err)
	_, err = s.ResendInvitation(ctx, b, first.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound, "another tenant's")
	second, err := s.ResendInvitation(ctx, a, first.ID)
	require.NoError(t, err)
	dead(first.Token)

	require.NoError(t, s.RecordInvitation(ctx, first, tenants.MailFailed))
	require.NoError(t, s.RecordInvitation(ctx, second, tenants.MailSent))
	links, err := s.Invitations(ctx, a, []uuid.UUID{first.ID})
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]tenants.Link{first.ID: {SentAt: *now, ExpiresAt: now.Add(tenants.InvitationLife), Mail: tenants.MailSent}}, links,
		"the state of a replaced mail is ignored")
	links, err = s.Invitations(ctx, b, []uuid.UUID{first.ID})
	require.NoError(t, err)
	require.Empty(t, links)

	d.Exec("UPDATE tenants SET state = 'suspended' WHERE id = $1", a.TenantID())
	dead(second.Token)
	d.Exec("UPDATE tenants SET state = 'active' WHERE id = $1", a.TenantID())
	require.NoError(t, s.RemoveMember(ctx, a, first.ID, tenants.Match{}))
	dead(second.Token)

	third, err := s.InviteMember(ctx, a, "zoe@example.com", tenants.Editor)
	require.NoError(t, err)
	*now = now.Add(tenants.InvitationLife)
	dead(third.Token)
	fourth, err := s.ResendInvitation(ctx, a, third.ID)
	require.NoError(t, err)
	_, err = s.JoinNew(ctx, fourth.Token, "zoe's own horse")
	require.NoError(t, err)
	_, err = s.ResendInvitation(ctx, a, third.ID)
	requireConflict(t, err, tenants.CodeMemberExists)
}

// Of two people who use a link at the same time, one joins.
func TestInvitationIsTakenOnce(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	made, err := d.Store.InviteMember(t.Context(), a, "zoe@example.com", tenants.Editor)
	require.NoError(t, err)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = d.Store.JoinNew(t.Context(), made.Token, "zoe's own horse") })
	}
	wg.Wait()
	joined := 0
	for _, err := range errs {
		if err == nil {
			joined++
		}
	}
	require.Equal(t, 1, joined, "%v", errs)
}

// An admin cannot create owners in any way.
func TestInvitationsByRole(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	as := func(role tenants.Role) tenants.Actor {
		email := string(role) + "@example.com"
		_, err := s.CreateMember(ctx, a, email, "correct horse", role)
		require.NoError(t, err)
		person, err := s.VerifyPassword(ctx, email, "correct horse")
		require.NoError(t, err)
		token, err := s.StartSession(ctx, person, "", "")
		require.NoError(t, err)
		session, err := s.Session(ctx, token)
		require.NoError(t, err)
		return session.Actor()
	}
	owner, admin := as(tenants.Owner), as(tenants.Admin)
	made, err := s.InviteMember(ctx, owner, "new-owner@example.com", tenants.Owner)
	require.NoError(t, err)
	require.Equal(t, "owner@example.com", made.By)
	_, err = s.InviteMember(ctx, admin, "other@example.com", tenants.Owner)
	require.ErrorIs(t, err, tenants.ErrForbidden)
	_, err = s.ResendInvitation(ctx, admin, made.ID)
	require.ErrorIs(t, err, tenants.ErrForbidden, "the result has the link of an owner")
	require.ErrorIs(t, s.RemoveMember(ctx, admin, made.ID, tenants.Match{}), tenants.ErrForbidden)
	made, err = s.InviteMember(ctx, admin, "other@example.com", tenants.Admin)
	require.NoError(t, err)
	_, err = s.EditMember(ctx, admin, made.ID, tenants.Match{}, role(tenants.Owner))
	require.ErrorIs(t, err, tenants.ErrForbidden)
	for _, low := range []tenants.Role{tenants.Editor, tenants.Support, tenants.Viewer} {
		actor := as(low)
		_, err = s.InviteMember(ctx, actor, "x@example.com", tenants.Viewer)
		require.ErrorIs(t, err, tenants.ErrForbidden)
		_, err = s.ResendInvitation(ctx, actor, made.ID)
		require.ErrorIs(t, err, tenants.ErrForbidden)
	}
}

// memberOfMany returns a person who may join one tenant more, and what invites the person to a new
// tenant.
func memberOfMany(t *testing.T) (d *tenantstest.Database, person tenants.Person, invite func(slug string) (token string)) {
	t.Helper()
	d, a, _ := two(t)
	invited, err := d.Store.InviteMember(t.Context(), a, "zoe@example.com", tenants.Editor)
	require.NoError(t, err)
	person, err = d.Store.JoinNew(t.Context(), invited.Token, "zoe's own horse")
	require.NoError(t, err)
	d.Exec(`WITH made AS (
			INSERT INTO tenants (id, slug, version, policy_version, subjects_version, keys_version)
			SELECT gen_random_uuid(), 'other-' || n, 1, 1, 1, 1 FROM generate_series(1, $2::int) n RETURNING id
		)
		INSERT INTO members (tenant_id, person_id, id, role, joined_at, version)
		SELECT id, $1, gen_random_uuid(), 'viewer', now(), 1 FROM made`, person.ID, tenants.MaxMemberships-2)
	return d, person, func(slug string) string {
		other, _ := d.Tenant(slug)
		made, err := d.Store.InviteMember(t.Context(), other, "zoe@example.com", tenants.Editor)
		require.NoError(t, err)
		return made.Token
	}
}

// requireMemberships counts the tenants that a person has joined.
func requireMemberships(t *testing.T, d *tenantstest.Database, person tenants.Person, want int) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var joined int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM members WHERE person_id = $1 AND joined_at IS NOT NULL", person.ID).Scan(&joined))
		require.Equal(t, want, joined)
	})
}

// A person joins a bounded number of tenants: each event of a login is written to all of them.
func TestMembershipsOfAPersonAreBounded(t *testing.T) {
	t.Parallel()
	d, person, invite := memberOfMany(t)
	_, err := d.Store.Join(t.Context(), invite("tenant-y"), person)
	require.NoError(t, err)
	_, err = d.Store.Join(t.Context(), invite("tenant-z"), person)
	requireConflict(t, err, tenants.CodeConflict)
	requireMemberships(t, d, person, tenants.MaxMemberships)
}

// Two invitations that are accepted at the same time count each other.
func TestJoinsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	d, person, invite := memberOfMany(t)
	tokens := []string{invite("tenant-y"), invite("tenant-z")}
	results := make(chan error, len(tokens))
	d.Conn(func(ctx context.Context, holder *pgx.Conn) {
		tx, err := holder.Begin(ctx)
		require.NoError(t, err)
		// Without a lock, both would have counted before they write.
		_, err = tx.Exec(ctx, "SELECT FROM members WHERE person_id = $1 AND joined_at IS NULL FOR UPDATE", person.ID)
		require.NoError(t, err)
		for _, token := range tokens {
			go func() {
				_, err := d.Store.Join(t.Context(), token, person)
				results <- err
			}()
		}
		d.Conn(func(ctx context.Context, other *pgx.Conn) {
			for waiting := 0; waiting < len(tokens) && len(results) < len(tokens); {
				require.NoError(t, other.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting))
			}
		})
		require.NoError(t, tx.Commit(ctx))
	})
	first, second := <-results, <-results
	if first != nil {
		first, second = second, first
	}
	require.NoError(t, first)
	requireConflict(t, second, tenants.CodeConflict)
	requireMemberships(t, d, person, tenants.MaxMemberships)
}
