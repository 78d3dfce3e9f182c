package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
	"weir/internal/usage"
)

// cutOffSink is the store of an instance that cannot reach it until that is allowed.
type cutOffSink struct {
	usage.MeterSink
	reachable atomic.Bool
}

func (s *cutOffSink) WriteMetered(ctx context.Context, b *usage.MeterBatch) error {
	if !s.reachable.Load() {
		return errors.New("no route to Postgres")
	}
	return s.MeterSink.WriteMetered(ctx, b)
}

func newTestMeterNotes(t *testing.T, store *tenants.Store) (*meterNotes, redis.UniversalClient) {
	t.Helper()
	client := testenv.RedisClient(t)
	return newMeterNotes(client, check.NewKeys(uuid.New()), store), client
}

// An instance that meters and has never reached Postgres is missed there. It closes its gap when it
// can write.
func TestGapOfAnInstanceThatPostgresDoesNotKnow(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("acme")
	notes, client := newTestMeterNotes(t, d.Store)
	sink := &cutOffSink{MeterSink: d.Store}
	start := time.Now().Truncate(time.Millisecond)
	meter := usage.NewMeter(usage.MeterOptions{Sink: sink, Notes: notes, Registerer: prometheus.NewRegistry(), Clock: func() time.Time { return start }})
	meter.Add(a.TenantID(), "ada", "api", usage.Metered{Units: 5, Checks: 1}, time.Now())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { meter.Run(ctx) })
	t.Cleanup(func() { sink.reachable.Store(true); stop(); running.Wait() })
	require.Eventually(t, func() bool { return client.HLen(ctx, notes.key).Val() == 1 }, time.Minute, time.Millisecond)
	kept := client.HGetAll(ctx, notes.key).Val()
	gaps := func() []tenants.MeteringGap {
		report, _, _, err := d.Store.MeteredUsage(t.Context(), a, tenants.MeteredQuery{From: start.UTC().Truncate(time.Hour), Open: true}, tenants.Page{Limit: 10})
		require.NoError(t, err)
		return report.Gaps
	}

	require.NoError(t, notes.deliver(ctx))
	_, err := d.Store.SealMetering(ctx)
	require.NoError(t, err)
	require.Empty(t, gaps(), "it is waited for")
	d.Exec("UPDATE metering_state SET looked_at = now(), waits_from = now() - interval '2 minutes'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
	_, err = d.Store.SealMetering(ctx)
	require.NoError(t, err)
	require.Len(t, gaps(), 1)
	require.WithinRange(t, gaps()[0].From, start, time.Now())

	for writer := range kept {
		later := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		require.NoError(t, notes.Note(ctx, usage.MeterNote{Writer: uuid.MustParse(writer), Since: start, At: later}))
		require.NoError(t, notes.deliver(ctx))
		require.Len(t, gaps(), 1)
		require.Equal(t, later.Add(usage.MeterNoteLife).UTC(), gaps()[0].To, "it still meters")
	}
	require.Nil(t, gaps()[0].ClosedAt)

	sink.reachable.Store(true)
	stop()
	running.Wait()
	require.NotNil(t, gaps()[0].ClosedAt, "it has written everything")
}

// Notes are kept for days, and removed when Postgres has them. What no instance wrote is removed,
// too, and holds up no other.
func TestMeterNotes(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	notes, client := newTestMeterNotes(t, d.Store)
	ctx := t.Context()
	require.NoError(t, notes.deliver(ctx), "there is none")
	now := time.Now().Truncate(time.Millisecond)
	one, two := usage.MeterNote{Writer: uuid.New(), Since: now.Add(-time.Hour), At: now}, usage.MeterNote{Writer: uuid.New(), Since: now, At: now}
	require.NoError(t, notes.Note(ctx, one))
	require.NoError(t, notes.Note(ctx, two))
	two.Ended = true
	require.NoError(t, notes.Note(ctx, two))
	require.Greater(t, client.PTTL(ctx, notes.key).Val(), meterNotesLife-time.Hour)
	got, ok := notes.parse(one.Writer.String(), client.HGet(ctx, notes.key, one.Writer.String()).Val())
	require.True(t, ok)
	require.Equal(t, one, got)

	for i, text := range []string{"", "x", "1", "-1 5", "5 1", "1 9223372036854775807", "99999999999999999999 1", "1 2 x", "1 2 -1", "1 2 3 4"} {
		id := uuid.UUID{byte(i + 1)}.String()
		_, ok := notes.parse(id, text)
		require.False(t, ok, text)
		require.NoError(t, client.HSet(ctx, notes.key, id, text, "not a writer", "1 2").Err())
	}
	require.NoError(t, notes.deliver(ctx))
	require.Zero(t, client.Exists(ctx, notes.key).Val())
	d.Exec("UPDATE metering_state SET looked_at = now(), waits_from = now() - interval '2 minutes'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
	_, err := d.Store.SealMetering(ctx)
	require.NoError(t, err)
	a, _ := d.Tenant("acme")
	report, _, _, err := d.Store.MeteredUsage(ctx, a, tenants.MeteredQuery{From: now.UTC().Truncate(time.Hour).Add(-2 * time.Hour), Open: true}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, report.Gaps, 1)
	require.Equal(t, one.Since.UTC(), report.Gaps[0].From)
}

// A writer that ended without a loss is no gap, also if Postgres learnt of it while it was running.
// One whose acknowledged batches Postgres has lost is a gap.
func TestMeterNotesOfTheEnd(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("acme")
	notes, _ := newTestMeterNotes(t, d.Store)
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	deliver := func(n usage.MeterNote) {
		require.NoError(t, notes.Note(ctx, n))
		require.NoError(t, notes.deliver(ctx))
	}
	open := func() (n int) {
		d.Exec("UPDATE metering_state SET looked_at = now(), waits_from = now() - interval '2 minutes'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
		_, err := d.Store.SealMetering(ctx)
		require.NoError(t, err)
		report, _, _, err := d.Store.MeteredUsage(ctx, a, tenants.MeteredQuery{From: now.UTC().Truncate(time.Hour), Open: true}, tenants.Page{Limit: 10})
		require.NoError(t, err)
		for _, g := range report.Gaps {
			if g.ClosedAt == nil {
				n++
			}
		}
		return n
	}

	early, late := usage.MeterNote{Writer: uuid.New(), Since: now, At: now}, usage.MeterNote{Writer: uuid.New(), Since: now, At: now}
	lost := usage.MeterNote{Writer: uuid.New(), Since: now, At: now, Ended: true, Acknowledged: 1}
	deliver(early)
	early.Ended = true
	deliver(early)
	require.Zero(t, open())
	early.Ended = false
	deliver(early) // by an instance that read it before
	require.Zero(t, open())
	deliver(late)
	require.Equal(t, 1, open())
	late.Ended = true
	deliver(late)
	require.Zero(t, open())
	deliver(lost)
	require.Equal(t, 1, open())
}

// Before a look whether an hour can be sealed, all notes are passed to Postgres, however many.
func TestSealingPassesNotesOn(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	notes, client := newTestMeterNotes(t, d.Store)
	now := time.Now()
	var fields []any
	for range 2*mostMeterNotes + 1 {
		fields = append(fields, uuid.NewString(), fmt.Sprint(now.UnixMilli(), " ", now.UnixMilli()))
	}
	require.NoError(t, client.HSet(t.Context(), notes.key, fields...).Err())
	require.NoError(t, notes.deliver(t.Context()))
	require.Zero(t, client.Exists(t.Context(), notes.key).Val(), "all at once")

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { sealMetering(ctx, d.Store, notes, slog.New(slog.DiscardHandler)) })
	t.Cleanup(func() { stop(); running.Wait() })
	one := usage.MeterNote{Writer: uuid.New(), Since: now, At: now}
	require.NoError(t, notes.Note(ctx, one))
	known := func() (there bool) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM metering_writers WHERE writer = $1)", one.Writer).Scan(&there))
		})
		return there
	}
	require.Eventually(t, known, time.Minute, 10*time.Millisecond)
}
