package tenants_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// sessionStack returns a database with two tenants, a clock, and a person who can log in to both.
func sessionStack(t *testing.T) (d *tenantstest.Database, a, b tenants.Actor, now *time.Time, person tenants.Person) {
	t.Helper()
	at := time.Now().UTC().Truncate(time.Microsecond)
	d = tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return at }})
	a, _ = d.Tenant("tenant-a")
	b, _ = d.Tenant("tenant-b")
	for _, actor := range []tenants.Actor{a, b} {
		_, err := d.Store.CreateMember(t.Context(), actor, "ann@example.com", "correct horse", tenants.Owner)
		require.NoError(t, err)
	}
	person, err := d.Store.VerifyPassword(t.Context(), "ann@example.com", "correct horse")
	require.NoError(t, err)
	return d, a, b, &at, person
}

func TestSessions(t *testing.T) {
	t.Parallel()
	d, a, b, now, person := sessionStack(t)
	s, ctx := d.Store, t.Context()
	token, err := s.StartSession(ctx, person, "192.0.2.1", "Browser\x00 of "+strings.Repeat("ä", 600))
	require.NoError(t, err)
	second, err := s.StartSession(ctx, person, "2001:db8::/64", strings.Repeat("ä", 600))
	require.NoError(t, err)
	require.NotEqual(t, token, second)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var leaked bool
		require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM sessions s WHERE s::text LIKE '%' || $1 || '%')", token).Scan(&leaked))
		require.False(t, leaked, "the database contains the token")
	})

	session, err := s.Session(ctx, token)
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", session.Email)
	require.Len(t, session.Memberships, 2)
	require.Equal(t, a.TenantID(), session.Current.TenantID, "the first by slug")
	actor := session.Actor()
	require.Equal(t, a.TenantID(), actor.TenantID())
	require.Equal(t, tenants.MemberActor, actor.Kind())
	require.Equal(t, "ann@example.com", actor.Name())
	require.Equal(t, uuid.Nil, actor.KeyID(), "it is not a key")
	require.True(t, actor.Has(tenants.ScopeRead))
	require.True(t, actor.May(tenants.MayManage|tenants.MayOwn), "an owner")
	require.False(t, actor.Operator())

	require.NoError(t, s.ChooseTenant(ctx, session, b.TenantID()))
	session, err = s.Session(ctx, token)
	require.NoError(t, err)
	require.Equal(t, b.TenantID(), session.Actor().TenantID())
	require.ErrorIs(t, s.ChooseTenant(ctx, session, uuid.New()), tenants.ErrNotFound)

	open, err := s.OpenSessions(ctx, session)
	require.NoError(t, err)
	require.Len(t, open, 2)
	require.Equal(t, "2001:db8::/64", open[0].Address)
	require.Equal(t, strings.Repeat("ä", 256), open[0].UserAgent)
	require.Empty(t, open[1].UserAgent, "a text with control characters is not stored")
	require.Equal(t, *now, open[0].SeenAt)

	*now = now.Add(tenants.SessionIdle - time.Microsecond)
	_, err = s.Session(ctx, token)
	require.NoError(t, err)
	*now = now.Add(time.Microsecond)
	_, err = s.Session(ctx, second)
	require.ErrorIs(t, err, tenants.ErrNoSession, "idle for too long")
	_, err = s.Session(ctx, token)
	require.NoError(t, err, "its use was recorded")
	require.NoError(t, s.Purge(ctx))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var left int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM sessions").Scan(&left))
		require.Equal(t, 1, left)
	})
	require.NoError(t, s.EndOtherSessions(ctx, session))
	require.NoError(t, s.EndSession(ctx, session, session.ID))
	require.ErrorIs(t, s.EndSession(ctx, session, session.ID), tenants.ErrNotFound)
	for _, gone := range []string{token, "", "x", token + "=", strings.Repeat("A", 42), strings.Repeat("A", 100_000)} {
		_, err = s.Session(ctx, gone)
		require.ErrorIs(t, err, tenants.ErrNoSession)
	}
}

// A change in one tenant ends the sessions in it, and not those in other tenants.
func TestSessionsEndWhereRightsChange(t *testing.T) {
	t.Parallel()
	d, a, b, _, person := sessionStack(t)
	s, ctx := d.Store, t.Context()
	here, err := s.StartSession(ctx, person, "", "")
	require.NoError(t, err)
	there, err := s.StartSession(ctx, person, "", "")
	require.NoError(t, err)
	session, err := s.Session(ctx, there)
	require.NoError(t, err)
	require.NoError(t, s.ChooseTenant(ctx, session, b.TenantID()))
	_, err = s.CreateMember(ctx, a, "owner@example.com", "another horse", tenants.Owner)
	require.NoError(t, err)
	_, err = s.EditMember(ctx, a, session.Memberships[0].MemberID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Viewer })
	require.NoError(t, err)
	_, err = s.Session(ctx, here)
	require.ErrorIs(t, err, tenants.ErrNoSession)
	session, err = s.Session(ctx, there)
	require.NoError(t, err)
	require.Equal(t, tenants.Viewer, session.Memberships[0].Role, "the current role")

	_, err = s.CreateMember(ctx, a, "ann@example.com", "a new password", tenants.Viewer)
	require.NoError(t, err)
	_, err = s.Session(ctx, there)
	require.ErrorIs(t, err, tenants.ErrNoSession, "a new password ends all sessions")
}

// limitIdle sets the idle limit of a tenant.
func limitIdle(t *testing.T, s *tenants.Store, a tenants.Actor, idle string) {
	t.Helper()
	_, err := s.EditSecuritySettings(t.Context(), a, tenants.Match{}, func(e *tenants.SecuritySettings) error {
		e.SessionIdle.Text = idle
		return nil
	})
	require.NoError(t, err)
}

// A session that was idle in a tenant with a long limit does not continue in one with a short
// limit, also if it was used in between. After the password was entered, it does.
func TestIdleInAnotherTenant(t *testing.T) {
	t.Parallel()
	d, a, b, now, person := sessionStack(t)
	s, ctx := d.Store, t.Context()
	limitIdle(t, s, b, "15m")
	for _, c := range []struct {
		idle    time.Duration
		confirm bool
		ends    bool
	}{
		{15 * time.Minute, false, true},
		{15*time.Minute - time.Millisecond, false, false},
		{3 * time.Hour, true, false},
	} {
		token, err := s.StartSession(ctx, person, "", "")
		require.NoError(t, err)
		session, err := s.Session(ctx, token)
		require.NoError(t, err)
		require.NoError(t, s.ChooseTenant(ctx, session, a.TenantID()))
		*now = now.Add(c.idle)
		for range 2 { // the second one is soon after the first
			session, err = s.Session(ctx, token)
			require.NoError(t, err, "the limit of the current tenant")
			*now = now.Add(2 * time.Minute)
		}
		if c.confirm {
			require.NoError(t, s.Confirm(ctx, session))
		}
		require.NoError(t, s.ChooseTenant(ctx, session, b.TenantID()))
		look := tenants.SessionLook{Session: session.ID, Tenant: b.TenantID()}
		holding, err := s.SessionsThatHold(ctx, []tenants.SessionLook{look})
		require.NoError(t, err)
		require.Equal(t, !c.ends, holding[look])
		_, err = s.Session(ctx, token)
		if c.ends {
			require.ErrorIs(t, err, tenants.ErrNoSession, c.idle)
		} else {
			require.NoError(t, err, c.idle)
		}
	}
}

func TestConfigured(t *testing.T) {
	t.Parallel()
	d, a, b, _, _ := sessionStack(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustPlan(t, s, a, "free")
	mustSubject(t, s, a, tenants.Subject{Subject: "alice"})
	got, err := s.Configured(ctx, a)
	require.NoError(t, err)
	require.Equal(t, tenants.Configured{Rules: 1, Plans: 1, Subjects: 1, Keys: 1}, got)
	d.Exec(`INSERT INTO subjects (tenant_id, subject, id, state, labels, billing_ref, version)
		SELECT $1, 's' || i, gen_random_uuid(), 'active', '{}', '', 1 FROM generate_series(1, 20000) AS i`, a.TenantID())
	got, err = s.Configured(ctx, a)
	require.NoError(t, err)
	require.EqualValues(t, tenants.MostCountedSubjects+1, got.Subjects)
	got, err = s.Configured(ctx, b)
	require.NoError(t, err)
	require.Equal(t, tenants.Configured{Keys: 1}, got)
}
