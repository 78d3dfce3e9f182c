package tenants

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
	"weir/internal/usage"
)

// MeteringRetention is how long metered usage is kept: for a year and the disputes of its last
// invoice.
const MeteringRetention = 400 * 24 * time.Hour

const (
	// meteringGrace is how long after its end an hour stays open at least.
	meteringGrace = 5 * time.Second
	// meteringSilence is how long a writer is waited for that writes nothing. It writes every five
	// seconds even if it meters nothing.
	meteringSilence = time.Minute
	// meteringBound is how long after its end an hour stays open at most, while a server can look.
	// A writer that is behind for longer adds the rest to a later hour.
	meteringBound = 10 * time.Minute
	// mostMissedWriters is how many writers are missed in one look. Many more may have been noted,
	// and a look that took too long would be repeated for ever.
	mostMissedWriters = 1000
	// meteringUnwatched is how long nobody must have looked for the waits to begin again.
	meteringUnwatched = 30 * time.Second
)

var _ usage.MeterSink = (*Store)(nil)

// WriteMetered adds a batch to the metered usage of its tenants, all of it or nothing. A batch that
// was already written changes nothing. Units of an hour that is sealed are added to the first open
// hour, as late units. Those of subjects beyond the bound of an hour are added only to the totals,
// and are in b.Beyond. If batches are missing that were acknowledged, b.LostSince is set, and a gap
// is reported that stays. Errors: ErrUnavailable; usage.ErrRefused for data that the database will
// never accept.
func (s *Store) WriteMetered(ctx context.Context, b *usage.MeterBatch) error {
	var created []db.AddMeteredUsageRow
	err := s.asSystemWithin(ctx, usageWriteTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		created, b.Beyond = nil, nil
		if err := q.ShareMetering(ctx, meteringLock); err != nil {
			return err
		}
		if fresh, err := takeMeteredBatch(ctx, q, b); err != nil || !fresh || len(b.Rows) == 0 {
			return err
		}
		var err error
		var in []usage.MeterRow
		if in, b.Beyond, err = s.metered.within(ctx, q, b.Rows); err != nil {
			return refused(err)
		}
		rows, totals := batchColumns(in)
		if len(rows.Subjects) > 0 {
			if created, err = q.AddMeteredUsage(ctx, rows); err != nil {
				return refused(err)
			}
		}
		return refused(q.AddMeteredTotals(ctx, totals))
	})
	if err == nil {
		s.metered.count(created)
	}
	return err
}

// takeMeteredBatch records that a writer wrote a batch, and reports whether it had not written it
// before. If older batches are missing, it reports the gap: Postgres was promoted or restored
// without them. A row of a writer is deleted only after 35 days without a batch.
func takeMeteredBatch(ctx context.Context, q *db.Queries, b *usage.MeterBatch) (fresh bool, err error) {
	complete := b.CompleteUntil
	if complete.IsZero() {
		complete = b.Since // the greatest one that was written is kept
	}
	before, err := q.TakeMeteredBatch(ctx, db.TakeMeteredBatchParams{
		Writer: b.Writer, Sequence: b.Sequence, CompleteUntil: complete, Ended: b.Last, Since: b.Since,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, refused(err)
	}
	if before.Had < b.Acknowledged {
		b.LostSince = before.HadUntil
		if err := q.ReportLostBatches(ctx, before.HadUntil); err != nil {
			return false, err
		}
	}
	return true, q.CloseMeteringGap(ctx, b.Writer)
}

// NoteMeters records writers that may have units which they could not write. They are waited for as
// if they had written at the beginning of the minute of silence, so one that does not write is
// reported as a gap. The gap of a writer that is missing already, because it cannot reach Postgres,
// becomes as long as it has metered. One that has ended without a loss is not waited for any more,
// and its gap is closed. Error: ErrUnavailable.
func (s *Store) NoteMeters(ctx context.Context, notes []usage.MeterNote) error {
	var in db.NoteMeteringWritersParams
	var ended db.EndMeteringWritersParams
	var until []time.Time
	for _, n := range notes {
		if n.Ended {
			ended.Writers, ended.Acknowledged = append(ended.Writers, n.Writer), append(ended.Acknowledged, n.Acknowledged)
		}
		in.Writers, in.Since = append(in.Writers, n.Writer), append(in.Since, n.Since)
		until = append(until, n.At.Add(usage.MeterNoteLife))
	}
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.LockMetering(ctx, meteringNoteLock); err != nil { // servers have the same notes, in any order
			return err
		}
		if err := q.NoteMeteringWriters(ctx, in); err != nil {
			return err
		}
		if len(ended.Writers) > 0 {
			if err := endMeters(ctx, q, ended); err != nil {
				return err
			}
		}
		return q.ExtendMeteringGaps(ctx, db.ExtendMeteringGapsParams{Writers: in.Writers, At: until})
	})
}

// endMeters notes that writers have ended, and closes the gaps of those that have written all.
func endMeters(ctx context.Context, q *db.Queries, in db.EndMeteringWritersParams) error {
	ended, err := q.EndMeteringWriters(ctx, in)
	if err != nil || len(ended) == 0 {
		return err
	}
	return q.CloseMeteringGaps(ctx, ended)
}

// batchColumns returns rows as columns, and their totals. The driver allocates for each value of a
// column, except for small numbers, so what rows have in common is sent once.
func batchColumns(in []usage.MeterRow) (rows db.AddMeteredUsageParams, totals db.AddMeteredTotalsParams) {
	rows = db.AddMeteredUsageParams{
		Groups: make([]int32, 0, len(in)), Subjects: make([]string, 0, len(in)), Units: make([]int64, 0, len(in)),
		OverageUnits: make([]int64, 0, len(in)), Checks: make([]int64, 0, len(in)),
		FreeUnits: make([]int64, 0, len(in)), BilledUnits: make([]int64, 0, len(in)),
	}
	groups := map[usage.MeterKey]int32{}
	var sums, without []usage.Metered
	for i := range in {
		row := &in[i]
		key := row.MeterKey
		key.Subject = ""
		n, known := groups[key]
		if !known {
			n = int32(len(groups)) // at most as many as rows of a batch
			groups[key] = n
			sums, without = append(sums, usage.Metered{}), append(without, usage.Metered{})
			rows.Tenants, rows.Rules = append(rows.Tenants, row.Tenant), append(rows.Rules, row.Rule)
			rows.Starts = append(rows.Starts, time.UnixMilli(row.StartMS))
		}
		sums[n].Add(row.Metered)
		if row.Subject == "" {
			without[n].Add(row.Metered)
			continue
		}
		rows.Groups, rows.Subjects = append(rows.Groups, n), append(rows.Subjects, row.Subject)
		rows.Units, rows.OverageUnits, rows.Checks = append(rows.Units, row.Units), append(rows.OverageUnits, row.Overage), append(rows.Checks, row.Checks)
		rows.FreeUnits, rows.BilledUnits = append(rows.FreeUnits, row.Free), append(rows.BilledUnits, row.Billed)
	}
	totals = db.AddMeteredTotalsParams{Tenants: rows.Tenants, Starts: rows.Starts, Rules: rows.Rules}
	for n, sum := range sums {
		totals.Units, totals.OverageUnits, totals.Checks = append(totals.Units, sum.Units), append(totals.OverageUnits, sum.Overage), append(totals.Checks, sum.Checks)
		totals.FreeUnits, totals.BilledUnits = append(totals.FreeUnits, sum.Free), append(totals.BilledUnits, sum.Billed)
		totals.UnattributedUnits = append(totals.UnattributedUnits, without[n].Units)
	}
	return rows, totals
}

// SealMetering seals the hours that all writers have written, and returns until when it did, nil if
// it sealed none. An hour is sealed when every writer that is present has written everything until
// its end, or ten minutes later. A writer that is silent for a minute is not waited for: it was
// killed, or cannot reach Postgres, and its units since then are reported as a gap. After an outage
// of Postgres, these times begin again. Only one server looks at a time. Writers wait while an hour
// is sealed, so what may be much, its pushes, comes after it: CreateMeterPushes. Error:
// ErrUnavailable.
func (s *Store) SealMetering(ctx context.Context) (sealed *time.Time, err error) {
	sealed, missed, err := s.lookAtMetering(ctx)
	if err != nil || missed == 0 || missed == mostMissedWriters {
		return sealed, err
	}
	sealed, _, err = s.lookAtMetering(ctx)
	return sealed, err
}

// lookAtMetering reports writers that are missing, and returns their number; if there are none, it
// seals what can be sealed. A look that has missed writers has locked them, and one may just write,
// so it does not wait for writers. If there may be more to miss, their gaps come before the hours
// are sealed: the next look is seconds away, and an invoice is never without them.
func (s *Store) lookAtMetering(ctx context.Context) (sealed *time.Time, missed int64, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		sealed, missed = nil, 0
		alone, err := q.TryLock(ctx, meteringLookLock)
		if err != nil || !alone {
			return err
		}
		now, err := q.DatabaseTime(ctx)
		if err != nil {
			return err
		}
		state, err := q.LookMetering(ctx, db.LookMeteringParams{Now: now, Unwatched: interval(meteringUnwatched)})
		if err != nil {
			return err
		}
		missed, err = q.MissMeteringWriters(ctx, db.MissMeteringWritersParams{
			Now: now, WaitsFrom: state.WaitsFrom, Silence: interval(meteringSilence), Most: mostMissedWriters,
		})
		if err != nil || missed > 0 {
			return err
		}
		until, err := sealable(ctx, q, now, state.WaitsFrom)
		if err != nil || !until.After(state.SealedUntil) {
			return err
		}
		if err := q.LockMetering(ctx, meteringLock); err != nil {
			return err
		}
		if until, err = q.SealMetering(ctx, until); err != nil {
			return err
		}
		sealed = &until
		return nil
	})
	return sealed, missed, err
}

// sealable returns until when hours can be sealed.
func sealable(ctx context.Context, q *db.Queries, now, waitsFrom time.Time) (until time.Time, err error) {
	complete, err := q.MeteringCompleteUntil(ctx, now)
	if err != nil {
		return until, err
	}
	until = earlier(complete, now.Add(-meteringGrace))
	if bound := now.Add(-meteringBound); waitsFrom.Before(bound) && bound.After(until) {
		until = bound
	}
	return until.UTC().Truncate(time.Hour), nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// meteringPurges delete what exceeds its retention or whose tenant was deleted, at most
// purgeRows rows each.
func meteringPurges() []purge {
	return []purge{
		{"metered usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeMeteredUsage(ctx, db.PurgeMeteredUsageParams{Retention: interval(MeteringRetention), Most: most})
		}},
		{"totals of metered usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeMeteredTotals(ctx, db.PurgeMeteredTotalsParams{Retention: interval(MeteringRetention), Most: most})
		}},
		{"problems of pushes of metered usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeMeteredPushProblems(ctx, db.PurgeMeteredPushProblemsParams{Retention: interval(MeteringRetention), Most: most})
		}},
		{"pushes of metered usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeMeteredPushes(ctx, db.PurgeMeteredPushesParams{Retention: interval(MeteringRetention), Most: most})
		}},
		{"metered usage of deleted tenants", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeDeletedMeteredUsage(ctx, most)
		}},
		{"totals of metered usage of deleted tenants", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeDeletedMeteredTotals(ctx, most)
		}},
		{"gaps in metered usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeMeteringGaps(ctx, db.PurgeMeteringGapsParams{Retention: interval(MeteringRetention), Most: most})
		}},
		{"writers of metered usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeMeteringWriters(ctx, db.PurgeMeteringWritersParams{Retention: interval(UsageRetention(usage.Hour)), Most: most})
		}},
	}
}
