package migrations_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/migrations"
)

// An export of an earlier release reads metering_state for minutes. The migration waits for it
// without a lock that others need, so that rules can be changed meanwhile.
func TestPushPagesHoldNoRulesUp(t *testing.T) {
	t.Parallel()
	u, ctx := newDatabase(t), t.Context()
	require.NoError(t, migrations.Up(ctx, u))
	for version := 0; version != 65; {
		require.NoError(t, migrations.Down(ctx, u))
		var err error
		version, _, err = migrations.Version(ctx, u)
		require.NoError(t, err)
	}
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(ctx, u)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		return conn
	}
	reader, writer := connect(), connect()
	export, err := reader.Begin(ctx)
	require.NoError(t, err)
	_, err = export.Exec(ctx, "SELECT sealed_until FROM metering_state")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- migrations.Up(ctx, u) }()
	waits := func() (found bool) {
		require.NoError(t, writer.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks l
			WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.relation = 'metering_state'::regclass AND NOT l.granted)`).Scan(&found))
		return found
	}
	require.Eventually(t, waits, time.Minute, time.Millisecond)
	for range 3 {
		_, err := writer.Exec(ctx, "BEGIN; SET LOCAL lock_timeout = '20s'; LOCK TABLE rules IN ROW EXCLUSIVE MODE; COMMIT")
		require.NoError(t, err, "a change of a rule")
	}
	require.NoError(t, export.Rollback(ctx))
	require.NoError(t, <-done)
	_, dirty, err := migrations.Version(ctx, u)
	require.NoError(t, err)
	require.False(t, dirty)
}
