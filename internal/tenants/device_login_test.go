package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func asked(t *testing.T, s *tenants.Store, scopes ...tenants.Scope) (tenants.DeviceLogin, string) {
	t.Helper()
	login, code, err := s.StartDeviceLogin(t.Context(), tenants.NewDeviceLogin{Machine: "ann's laptop", Address: "192.0.2.7", Scopes: scopes})
	require.NoError(t, err)
	return login, code
}

func polled(t *testing.T, s *tenants.Store, code string) tenants.DevicePoll {
	t.Helper()
	poll, err := s.PollDeviceLogin(t.Context(), code)
	require.NoError(t, err)
	return poll
}

// A member approves a sign-in, and the program collects the key once. It is an ordinary key of the
// member's tenant.
func TestDeviceLogin(t *testing.T) {
	t.Parallel()
	d, _, b, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	login, code := asked(t, s, tenants.ScopeRead, tenants.ScopeCheck)
	require.Regexp(t, `^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$`, login.UserCode)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var leaked bool
		require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM device_logins l WHERE l::text LIKE '%' || $1 || '%' OR l::text LIKE '%' || $2 || '%')",
			code, login.UserCode).Scan(&leaked))
		require.False(t, leaked, "the database contains a code")
	})
	require.Equal(t, tenants.DevicePoll{State: tenants.DevicePending, Interval: 5 * time.Second}, polled(t, s, code))

	token, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	session, err := s.Session(ctx, token)
	require.NoError(t, err)
	session, ok := session.In(b.TenantID())
	require.True(t, ok)
	seen, err := s.DeviceLogin(ctx, " "+lower(login.UserCode)+" ")
	require.NoError(t, err)
	require.Equal(t, login, seen)
	require.NoError(t, s.ApproveDeviceLogin(ctx, session, seen))

	// Of two decisions, the first one counts, also for another tenant.
	_, err = s.DeviceLogin(ctx, login.UserCode)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.DenyDeviceLogin(ctx, session, seen), tenants.ErrNotFound)
	require.ErrorIs(t, s.ApproveDeviceLogin(ctx, session, seen), tenants.ErrNotFound)

	got := polled(t, s, code)
	require.Equal(t, tenants.DeviceApproved, got.State)
	require.Equal(t, "tenant-b", got.Tenant.Slug)
	require.Equal(t, []tenants.Scope{tenants.ScopeCheck, tenants.ScopeRead}, got.Key.Scopes)
	require.Equal(t, "weir on ann's laptop", got.Key.Name)
	require.Equal(t, now.Add(tenants.DeviceKeyLife), got.Key.ExpiresAt.UTC())
	require.Contains(t, got.Key.CreatedBy, "ann@example.com")
	require.Equal(t, tenants.DevicePoll{State: tenants.DeviceExpired}, polled(t, s, code), "the key is given once")

	keys, _, err := s.Keys(ctx, b, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, got.Key.ID, keys[0].ID, "it can be revoked")
	events, _, err := s.SecurityEvents(ctx, b, tenants.EventFilter{}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, tenants.EventKeyCreated, events[0].Kind)
	require.Equal(t, tenants.EventDeviceApproved, events[1].Kind)
	require.Equal(t, "ann's laptop", events[1].Target)
}

func lower(s string) string {
	out := []byte(s)
	for i := range out {
		if out[i] >= 'A' && out[i] <= 'Z' {
			out[i] += 'a' - 'A'
		}
	}
	return string(out)
}

// What gives no key.
func TestDeviceLoginRefused(t *testing.T) {
	t.Parallel()
	d, a, _, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	token, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	session, err := s.Session(ctx, token)
	require.NoError(t, err)

	for _, wrong := range []tenants.NewDeviceLogin{
		{Scopes: []tenants.Scope{tenants.ScopeRead}},
		{Machine: "laptop"},
		{Machine: "laptop", Scopes: []tenants.Scope{"everything"}},
		{Machine: "lap\x1btop", Scopes: []tenants.Scope{tenants.ScopeRead}},
		{Machine: string(make([]byte, 101)), Scopes: []tenants.Scope{tenants.ScopeRead}},
	} {
		_, _, err := s.StartDeviceLogin(ctx, wrong)
		var invalid *tenants.InvalidError
		require.ErrorAs(t, err, &invalid)
	}
	for _, unknown := range []string{"", "BCDF-GHJ", "BCDF-GHJK-L", "AEIO-UAEI", "BCDF-GHJK", "BCDF/GHJK"} {
		_, err := s.DeviceLogin(ctx, unknown)
		require.ErrorIs(t, err, tenants.ErrNotFound, unknown)
	}
	for _, unknown := range []string{"", "x", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"} {
		require.Equal(t, tenants.DeviceExpired, polled(t, s, unknown).State)
	}

	denied, code := asked(t, s, tenants.ScopeRead)
	require.NoError(t, s.DenyDeviceLogin(ctx, session, denied))
	require.Equal(t, tenants.DeviceDenied, polled(t, s, code).State)
	require.Equal(t, tenants.DeviceExpired, polled(t, s, code).State)

	// The code belongs to another sign-in than the one that was on the page.
	swapped, code := asked(t, s, tenants.ScopeRead)
	page := swapped
	page.ID = uuid.New()
	require.ErrorIs(t, s.ApproveDeviceLogin(ctx, session, page), tenants.ErrNotFound)
	require.Equal(t, tenants.DevicePending, polled(t, s, code).State)

	// A viewer cannot approve, because a viewer cannot create keys.
	viewer, err := s.CreateMember(ctx, a, "eve@example.com", "correct horse battery", tenants.Viewer)
	require.NoError(t, err)
	eve, err := s.VerifyPassword(ctx, "eve@example.com", "correct horse battery")
	require.NoError(t, err)
	token, err = s.StartSession(ctx, eve, "", "")
	require.NoError(t, err)
	hers, err := s.Session(ctx, token)
	require.NoError(t, err)
	require.ErrorIs(t, s.ApproveDeviceLogin(ctx, hers, swapped), tenants.ErrForbidden)
	require.ErrorIs(t, s.DenyDeviceLogin(ctx, hers, swapped), tenants.ErrForbidden)

	// The member has lost the right when the program collects the key.
	_, err = s.EditMember(ctx, a, viewer.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Admin })
	require.NoError(t, err)
	token, err = s.StartSession(ctx, eve, "", "")
	require.NoError(t, err)
	hers, err = s.Session(ctx, token)
	require.NoError(t, err)
	require.NoError(t, s.ApproveDeviceLogin(ctx, hers, swapped))
	_, err = s.EditMember(ctx, a, viewer.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Viewer })
	require.NoError(t, err)
	require.Equal(t, tenants.DeviceDenied, polled(t, s, code).State)

	expired, code := asked(t, s, tenants.ScopeRead)
	*now = now.Add(tenants.DeviceLoginLife)
	_, err = s.DeviceLogin(ctx, expired.UserCode)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.ApproveDeviceLogin(ctx, session, expired), tenants.ErrNotFound)
	require.Equal(t, tenants.DeviceExpired, polled(t, s, code).State)
	asked(t, s, tenants.ScopeRead)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var left int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM device_logins").Scan(&left))
		require.Equal(t, 1, left, "expired ones are deleted")
	})
}

// A program that polls too early must wait longer.
func TestDeviceLoginSlowsDown(t *testing.T) {
	t.Parallel()
	d, _, _, now, _ := sessionStack(t)
	s := d.Store
	_, code := asked(t, s, tenants.ScopeRead)
	for _, step := range []struct {
		after time.Duration
		state tenants.DeviceState
		every time.Duration
	}{
		{0, tenants.DevicePending, 5 * time.Second},
		{5 * time.Second, tenants.DevicePending, 5 * time.Second},
		{4999 * time.Millisecond, tenants.DeviceSlowDown, 10 * time.Second},
		{9999 * time.Millisecond, tenants.DeviceSlowDown, 15 * time.Second},
		{15 * time.Second, tenants.DevicePending, 15 * time.Second},
	} {
		*now = now.Add(step.after)
		require.Equal(t, tenants.DevicePoll{State: step.state, Interval: step.every}, polled(t, s, code))
	}
	for range 20 {
		require.LessOrEqual(t, polled(t, s, code).Interval, time.Minute)
	}
}

// A new password ends what somebody who was signed in with the old one has approved.
func TestNewPasswordEndsApprovedDevices(t *testing.T) {
	t.Parallel()
	d, _, _, _, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	login, code := asked(t, s, tenants.ScopeRead)
	token, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	session, err := s.Session(ctx, token)
	require.NoError(t, err)
	require.NoError(t, s.ApproveDeviceLogin(ctx, session, login))
	require.NoError(t, s.ChangePassword(ctx, &ann, "a better horse"))
	require.Equal(t, tenants.DevicePoll{State: tenants.DeviceExpired}, polled(t, s, code))
}

// Unknown clients choose the name of a machine, which a member reads before approving it: it is one
// line, and turns no text around.
func TestMachinesAreOneLine(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	for _, bad := range []string{"laptop\nof the operator", "a\tb", "a\u2028b", "laptop \u202epotpal"} {
		_, _, err := d.Store.StartDeviceLogin(t.Context(), tenants.NewDeviceLogin{Machine: bad, Scopes: []tenants.Scope{tenants.ScopeRead}})
		requireInvalid(t, err, "machine")
	}
	_, _, err := d.Store.StartDeviceLogin(t.Context(), tenants.NewDeviceLogin{Machine: "Åsa’s laptop שלום", Scopes: []tenants.Scope{tenants.ScopeRead}})
	require.NoError(t, err)
}
