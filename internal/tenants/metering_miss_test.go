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
	"weir/internal/usage"
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

// keptGap is a row of metering_gaps.
type keptGap struct {
	From, To time.Time
	Closed   *time.Time
}

// keptGaps returns all gaps, by their beginning and end.
func keptGaps(t *testing.T, d *tenantstest.Database) (gaps []keptGap) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, "SELECT from_at, to_at, closed_at FROM metering_gaps ORDER BY from_at, to_at")
		require.NoError(t, err)
		gaps, err = pgx.CollectRows(rows, pgx.RowToStructByPos[keptGap])
		require.NoError(t, err)
	})
	return gaps
}

// writeUntil writes an empty batch, with which a writer is complete until an instant.
func writeUntil(t *testing.T, d *tenantstest.Database, w *meterWriter, until time.Time) {
	t.Helper()
	b := w.batch()
	b.CompleteUntil = until
	require.NoError(t, d.Store.WriteMetered(t.Context(), b))
}

// missAll misses all writers that have not ended, as if they had been silent for two minutes.
func missAll(t *testing.T, d *tenantstest.Database) {
	t.Helper()
	d.Exec("UPDATE metering_state SET looked_at = now(), waits_from = now() - interval '2 minutes'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
	_, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
}

// Each silence of a writer is a gap of its own. One that the writer has closed stays as it is, so
// the time between two silences, whose units are complete, is in no gap.
func TestEachSilenceOfAWriterIsAGap(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	writeUntil(t, d, w, start.Add(10*time.Minute))
	missAll(t, d)
	writeUntil(t, d, w, start.Add(40*time.Minute))
	first := keptGaps(t, d)
	require.Len(t, first, 1)
	require.True(t, start.Add(10*time.Minute).Equal(first[0].From))
	require.NotNil(t, first[0].Closed)

	missAll(t, d)
	gaps := keptGaps(t, d)
	require.Len(t, gaps, 2)
	require.Equal(t, first, gaps[:1])
	require.True(t, start.Add(40*time.Minute).Equal(gaps[1].From))
	require.Nil(t, gaps[1].Closed)

	at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	require.NoError(t, d.Store.NoteMeters(t.Context(), []usage.MeterNote{{Writer: w.id, Since: w.since, At: at}}))
	gaps = keptGaps(t, d)
	require.Equal(t, first, gaps[:1])
	require.True(t, at.Add(usage.MeterNoteLife).Equal(gaps[1].To), "it still meters")

	writeUntil(t, d, w, start.Add(2*time.Hour))
	both := keptGaps(t, d)
	require.Equal(t, first, both[:1])
	require.NotNil(t, both[1].Closed)
	missAll(t, d)
	require.NoError(t, d.Store.EndMeter(t.Context(), w.id, w.sequence))
	gaps = keptGaps(t, d)
	require.Len(t, gaps, 3)
	require.Equal(t, both, gaps[:2])
	require.NotNil(t, gaps[2].Closed, "it has ended without a loss")

	d.Exec("UPDATE metering_gaps SET to_at = now() - interval '401 days' WHERE to_at < $1", gaps[1].To)
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	require.Len(t, keptGaps(t, d), 1, "each is kept for its own retention")
}

// A silence changes neither a gap of lost batches nor the closed gap of an earlier silence.
func TestSilenceAfterLostBatches(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	writeUntil(t, d, w, start.Add(10*time.Minute))
	missAll(t, d)
	writeUntil(t, d, w, start.Add(20*time.Minute))
	restore := backUp(d)
	writeUntil(t, d, w, start.Add(30*time.Minute))
	restore()
	writeUntil(t, d, w, start.Add(40*time.Minute))
	before := keptGaps(t, d)
	require.Len(t, before, 2)
	require.NotNil(t, before[0].Closed)
	require.True(t, start.Add(20*time.Minute).Equal(before[1].From))
	require.Nil(t, before[1].Closed, "lost batches")

	missAll(t, d)
	gaps := keptGaps(t, d)
	require.Len(t, gaps, 3)
	require.Equal(t, before, gaps[:2])
	require.True(t, start.Add(40*time.Minute).Equal(gaps[2].From))
	writeUntil(t, d, w, start.Add(time.Hour))
	gaps = keptGaps(t, d)
	require.Equal(t, before, gaps[:2])
	require.NotNil(t, gaps[2].Closed)
}

// A writer falls silent again before it was complete until any later instant. Its gap, which it
// closed too early, is open again: units may still be missing from its beginning on.
func TestSilenceBeforeAGapIsMadeUp(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	w.since = start
	writeUntil(t, d, w, start)
	for range 3 {
		missAll(t, d)
		gaps := keptGaps(t, d)
		require.Len(t, gaps, 1)
		require.True(t, start.Equal(gaps[0].From))
		require.Nil(t, gaps[0].Closed)
		writeUntil(t, d, w, time.Time{})
	}
}
