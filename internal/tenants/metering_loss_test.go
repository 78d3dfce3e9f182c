package tenants_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// meteringTables are those that a restore puts back together.
var meteringTables = []string{"metering_writers", "metering_gaps", "metered_usage", "metered_totals", "metering_state"}

// backUp copies the metered usage, and returns a function that puts the copy back.
func backUp(d *tenantstest.Database) (restore func()) {
	for _, name := range meteringTables {
		d.Exec("DROP TABLE IF EXISTS kept_" + name + "; CREATE TABLE kept_" + name + " AS TABLE " + name)
	}
	return func() {
		var all []string
		for _, name := range meteringTables {
			all = append(all, "DELETE FROM "+name, "INSERT INTO "+name+" SELECT * FROM kept_"+name)
		}
		d.Exec(strings.Join(all, "; "))
	}
}

// gapsSince returns the gaps that are reported to a tenant.
func gapsSince(t *testing.T, s *tenants.Store, a tenants.Actor, start time.Time) []tenants.MeteringGap {
	t.Helper()
	report, _ := meteredOf(t, s, a, tenants.MeteredQuery{From: start, Open: true})
	return report.Gaps
}

// When Postgres is promoted or restored without batches that it had acknowledged, the next batch of
// their writer reports a gap, once, and nothing closes it.
func TestLostMeteredBatchesAreAGap(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	write := func(b *usage.MeterBatch) {
		t.Helper()
		require.NoError(t, d.Store.WriteMetered(t.Context(), b))
	}
	first := w.batch(meterRow(a, start, "ada", "api", 3))
	first.CompleteUntil = start.Add(time.Hour)
	write(first)
	restore := backUp(d)
	for range 3 {
		write(w.batch(meterRow(a, start, "ada", "api", 1000)))
	}
	require.Empty(t, gapsSince(t, d.Store, a, start))
	restore()
	next := w.batch(meterRow(a, start, "ada", "api", 3))
	write(next)
	write(next) // a repetition
	require.Equal(t, first.CompleteUntil, next.LostSince.UTC())
	write(w.batch())
	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.NotNil(t, sealed)
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.EqualValues(t, 6, report.Totals[0].Units)
	require.Len(t, report.Gaps, 1)
	require.Equal(t, first.CompleteUntil, report.Gaps[0].From)
	require.WithinDuration(t, time.Now(), report.Gaps[0].To, time.Hour)
	require.Nil(t, report.Gaps[0].ClosedAt)

	var file bytes.Buffer
	require.NoError(t, tenants.NewMeteredCSV(&file, report).End())
	require.NotContains(t, file.String(), "up to a second")
	require.Contains(t, file.String(), "Postgres has lost them")
}

// A writer that the restored database does not know reports all the time since it began. One that
// was missing reports it beside the gap that it closes.
func TestLostMeteringWriter(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	restore := backUp(d)
	w := newMeterWriter()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(meterRow(a, start, "ada", "api", 1000))))
	restore()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch()))
	gaps := gapsSince(t, d.Store, a, start)
	require.Len(t, gaps, 1)
	require.Equal(t, w.since, gaps[0].From)

	d.Exec("UPDATE metering_state SET looked_at = now(), waits_from = now() - interval '2 minutes'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
	_, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	restore = backUp(d)
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch(meterRow(a, start, "ada", "api", 1000))))
	restore()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch()))
	open, closed := 0, 0
	for _, g := range gapsSince(t, d.Store, a, start) {
		if g.ClosedAt == nil {
			open++
		} else {
			closed++
		}
	}
	require.Equal(t, []int{2, 1}, []int{open, closed}, "both losses, and that it was missing")
}

// Batches that were refused or repeated leave holes in the sequence, which are no loss. Nor is a
// batch of a writer that Postgres knows only from a note.
func TestHolesInTheSequenceAreNoLoss(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	w := newMeterWriter()
	require.NoError(t, d.Store.NoteMeters(t.Context(), []usage.MeterNote{{Writer: w.id, Since: w.since, At: time.Now()}}))
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch()))
	refused := w.batch(meterRow(a, start, "a\x00", "api", 1))
	require.True(t, errors.Is(d.Store.WriteMetered(t.Context(), refused), usage.ErrRefused))
	next := w.batch()
	next.Acknowledged = 1
	p := newCommitEater(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	p.armed.Store(true)
	require.ErrorIs(t, s.WriteMetered(t.Context(), next), tenants.ErrUnavailable)
	require.NoError(t, s.WriteMetered(t.Context(), next))
	s.Close()
	require.NoError(t, d.Store.WriteMetered(t.Context(), w.batch()))
	require.Empty(t, gapsSince(t, d.Store, a, start))
}
