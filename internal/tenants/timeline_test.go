package tenants_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// The watcher may read the timeline, and each promotion of a replica changes it.
func TestTimeline(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	got, err := d.Store.Timeline(t.Context())
	require.NoError(t, err)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var want string
		require.NoError(t, conn.QueryRow(ctx, "SELECT upper(lpad(to_hex(timeline_id), 8, '0')) FROM pg_control_checkpoint()").Scan(&want))
		require.Equal(t, want, got)
	})
}

// After a failover that lost a change, its number is given to another one of the same tenant. All
// versions are those that the instance knows, but another key is revoked, and another subject has
// changed. Only the timeline differs.
func TestFailoverThatLostChanges(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	d.Exec("CREATE TABLE test_timeline AS SELECT '00000001' AS name")
	d.Exec("GRANT SELECT ON test_timeline TO weir_system")
	d.Store.Watcher().TimelineFrom("SELECT name FROM test_timeline")
	a, _ := d.Tenant("tenant-a")
	revoked, lost, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	_, kept, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	mustSubject(t, d.Store, a, tenants.Subject{Subject: "alice"})
	subjects, err := d.Store.LoadSubjects(t.Context(), a.TenantID(), 0, func(check.SubjectData) {})
	require.NoError(t, err)
	auth := tenants.NewAuthenticator(d.Store)
	require.NoError(t, auth.Load(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Store.Watch(ctx, func(c tenants.Change) { auth.Apply(ctx, c) }) }()
	answers := func(key tenants.Key, want error) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := auth.Authenticate(t.Context(), key.Secret())
			return err == want // nil, or exactly this one
		}, time.Minute, 5*time.Millisecond)
	}
	require.NoError(t, d.Store.RevokeKey(t.Context(), a, revoked.ID, tenants.Match{}))
	answers(lost, tenants.ErrKeyRevoked)
	answers(kept, nil)

	before := versionsOf(t, d, a)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		for _, statement := range []string{
			"UPDATE api_keys SET revoked_at = CASE WHEN revoked_at IS NULL THEN now() END",
			"UPDATE test_timeline SET name = '00000002'",
		} {
			_, err := tx.Exec(ctx, statement)
			require.NoError(t, err)
		}
		require.NoError(t, tx.Commit(ctx))
	})
	answers(lost, nil)
	answers(kept, tenants.ErrKeyRevoked)
	require.Equal(t, before, versionsOf(t, d, a))
	_, err = d.Store.LoadSubjects(t.Context(), a.TenantID(), subjects, func(check.SubjectData) {})
	require.ErrorIs(t, err, check.ErrHistoryGone, "what was read is of another history")
	stop()
	require.NoError(t, <-ended)
}

// A service that does not tell the timeline is followed without it, with one warning. If it tells
// it later, everything is read again: nobody knows what happened before.
func TestWatchWithoutTimeline(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	var log bytes.Buffer // written by the comparing goroutine only
	s := d.Open(tenants.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s.Watcher().TimelineFrom("SELECT told_timeline()")
	w := watch(t, s)
	pid := w.listening()
	changed := mustRule(t, d.Store, a, rule("r"))
	w.until(a.TenantID(), func(c tenants.Change) bool { return c.PolicyVersion == changed.Version && !c.Reload })
	d.Exec("CREATE FUNCTION told_timeline() RETURNS text LANGUAGE sql AS $$ SELECT '00000003' $$")
	d.Exec("SELECT pg_terminate_backend($1)", pid)
	w.until(a.TenantID(), func(c tenants.Change) bool { return c.Reload })
	w.stop()
	require.Equal(t, 1, strings.Count(log.String(), "does not tell its timeline"), log.String())
}
