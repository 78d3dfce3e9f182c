package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// Very many writers that fell silent are missed in several looks of few statements each. An hour is
// sealed after all of their gaps are reported, also when it could not stay open for longer.
func TestManyMeteringWritersAreMissed(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	const writers, most = 2500, 1000
	d.Exec(`INSERT INTO metering_writers (writer, sequence, complete_until, written_at, ended)
		SELECT gen_random_uuid(), 1, $1::timestamptz + interval '30 minutes', now() - interval '2 minutes', false FROM generate_series(1, $2::integer)`, start, writers)
	statements, err := tenants.CountStatements(t.Context(), d.Store)
	require.NoError(t, err)
	gaps := func() (n int) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM metering_gaps WHERE closed_at IS NULL").Scan(&n))
		})
		return n
	}

	for look := 1; look <= writers/most; look++ {
		sealed, err := d.Store.SealMetering(t.Context())
		require.NoError(t, err)
		require.Less(t, statements.Total(), 10)
		require.Nil(t, sealed, "writers are still present whose gaps are not reported")
		require.Equal(t, look*most, gaps())
	}
	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.Less(t, statements.Total(), 2*10, "a look that misses the rest, and one that seals")
	require.NotNil(t, sealed)
	require.Equal(t, writers, gaps())
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Equal(t, start.Add(30*time.Minute), report.Gaps[0].From)
}

// A writer has ended without a loss, while its gap is being opened. The gap is closed.
func TestMeteringWriterEndsWhileItIsMissed(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch()))
	done := make(chan error, 1)
	whileBlocking(t, d, func(ctx context.Context, tx pgx.Tx) {
		_, err := tx.Exec(ctx, "UPDATE metering_writers SET missing = true WHERE writer = $1", w.id)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "INSERT INTO metering_gaps (writer, from_at, to_at) VALUES ($1, $2, now())", w.id, start)
		require.NoError(t, err)
	}, func() { done <- d.Store.EndMeter(t.Context(), w.id, w.sequence) }, func(ctx context.Context, tx pgx.Tx) {
		require.NoError(t, tx.Commit(ctx))
	})
	require.NoError(t, <-done)
	gaps := gapsSince(t, d.Store, a, start)
	require.Len(t, gaps, 1)
	require.NotNil(t, gaps[0].ClosedAt)
}

// A look that has missed writers does not wait for other writers with what it has locked of them:
// one of them may write just then, and would wait for the look.
func TestMissedMeteringWritersAreNotLocked(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	openHours(t, d, 3)
	silent := uuid.New()
	d.Exec(`INSERT INTO metering_writers (writer, sequence, complete_until, written_at, ended)
		VALUES ($1, 1, now(), now() - interval '2 minutes', false)`, silent)
	type result struct {
		sealed *time.Time
		err    error
	}
	done := make(chan result, 1)
	whileBlocking(t, d, func(ctx context.Context, tx pgx.Tx) {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock_shared($1)", tenants.MeteringLock) // as a writer
		require.NoError(t, err)
	}, func() {
		sealed, err := d.Store.SealMetering(t.Context())
		done <- result{sealed, err}
	}, func(ctx context.Context, tx pgx.Tx) {
		_, err := tx.Exec(ctx, "SELECT FROM metering_writers WHERE writer = $1 FOR UPDATE NOWAIT", silent)
		require.NoError(t, err)
	})
	got := <-done
	require.NoError(t, got.err)
	require.NotNil(t, got.sealed, "its gap was reported")
}

// whileBlocking calls do while waiting, in its own goroutine, waits for a lock of begin.
func whileBlocking(t *testing.T, d *tenantstest.Database, begin func(context.Context, pgx.Tx), waiting func(), do func(context.Context, pgx.Tx)) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		begin(ctx, tx)
		go waiting()
		require.Eventually(t, func() bool {
			var waits bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))`).Scan(&waits)
			return err == nil && waits
		}, time.Minute, 5*time.Millisecond)
		do(ctx, tx)
	})
}
