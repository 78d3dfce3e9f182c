package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"weir/internal/tenants/db"
	"weir/internal/usage"
)

const usageWriteTimeout = 10 * time.Second

// UsageRetention is how long usage is kept at a grain.
func UsageRetention(g usage.Grain) time.Duration {
	const day = 24 * time.Hour
	return [...]time.Duration{2 * day, 35 * day, 400 * day}[g]
}

var _ usage.Sink = (*Store)(nil)

// WriteUsage adds a batch to the usage of its tenants, at all grains, all of it or nothing. A batch
// that was already written changes nothing. Errors: ErrUnavailable; usage.ErrRefused for data that
// the database will never accept.
func (s *Store) WriteUsage(ctx context.Context, b *usage.Batch) error {
	return s.asSystemWithin(ctx, usageWriteTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		fresh, err := q.TakeUsageBatch(ctx, db.TakeUsageBatchParams{
			Writer: b.Writer, Batch: b.ID, CompleteUntil: b.CompleteUntil, Ended: b.Last,
		})
		if err != nil || fresh == 0 {
			return refused(err)
		}
		if err := addUsageRows(ctx, q, b.Rows); err != nil {
			return refused(err)
		}
		return refused(addUsageSubjects(ctx, q, b.Subjects))
	})
}

// refused wraps the errors that a retry cannot fix: those about the data itself.
func refused(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (strings.HasPrefix(pgErr.Code, "22") || strings.HasPrefix(pgErr.Code, "23")) {
		return fmt.Errorf("%w: %w", usage.ErrRefused, err)
	}
	return err
}

func addUsageRows(ctx context.Context, q *db.Queries, rows []usage.Row) error {
	var minutes, hours, days db.AddUsageMinutesParams
	for i := range rows {
		appendUsage(&days, &rows[i])
		if rows[i].Grain <= usage.Hour {
			appendUsage(&hours, &rows[i])
		}
		if rows[i].Grain == usage.Minute {
			appendUsage(&minutes, &rows[i])
		}
	}
	if len(minutes.Tenants) > 0 {
		minutes.Retention = interval(UsageRetention(usage.Minute))
		if err := q.AddUsageMinutes(ctx, minutes); err != nil {
			return err
		}
	}
	if len(hours.Tenants) > 0 {
		hours.Retention = interval(UsageRetention(usage.Hour))
		if err := q.AddUsageHours(ctx, db.AddUsageHoursParams(hours)); err != nil {
			return err
		}
	}
	if len(days.Tenants) == 0 {
		return nil
	}
	days.Retention = interval(UsageRetention(usage.Day))
	return q.AddUsageDays(ctx, db.AddUsageDaysParams(days))
}

func appendUsage(to *db.AddUsageMinutesParams, row *usage.Row) {
	to.Tenants = append(to.Tenants, row.Tenant)
	to.Starts = append(to.Starts, time.UnixMilli(row.StartMS))
	to.Rules = append(to.Rules, row.Rule)
	to.Plans = append(to.Plans, row.Plan)
	to.Resources = append(to.Resources, row.Resource)
	to.Allowed = append(to.Allowed, row.Allowed)
	to.Denied = append(to.Denied, row.Denied)
	to.ShadowDenied = append(to.ShadowDenied, row.ShadowDenied)
	to.Degraded = append(to.Degraded, row.Degraded)
	to.CostAllowed = append(to.CostAllowed, row.CostAllowed)
	to.CostDenied = append(to.CostDenied, row.CostDenied)
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// subjectsKey identifies one stored list of subjects.
type subjectsKey struct {
	tenant uuid.UUID
	grain  string
	start  int64 // Unix milliseconds
}

// addUsageSubjects merges the lists into the stored ones, at their own grain and at all coarser
// ones.
func addUsageSubjects(ctx context.Context, q *db.Queries, lists []usage.Subjects) error {
	if len(lists) == 0 {
		return nil
	}
	now, err := q.DatabaseTime(ctx)
	if err != nil {
		return err
	}
	merged := map[subjectsKey]usage.TopSubjects{}
	for i := range lists {
		at := time.UnixMilli(min(lists[i].StartMS, now.UnixMilli())) // a server's clock may be ahead
		for _, g := range usage.Grains[lists[i].Grain:] {
			start := at.Truncate(g.Duration())
			if start.Before(now.Add(-UsageRetention(g))) {
				continue
			}
			key := subjectsKey{lists[i].Tenant, g.String(), start.UnixMilli()}
			merged[key] = merged[key].Merge(lists[i].TopSubjects)
		}
	}
	var lock db.LockUsageSubjectsParams
	for key := range merged {
		lock.Tenants = append(lock.Tenants, key.tenant)
		lock.Grains = append(lock.Grains, key.grain)
		lock.Starts = append(lock.Starts, time.UnixMilli(key.start))
	}
	rows, err := q.LockUsageSubjects(ctx, lock)
	if err != nil {
		return err
	}
	var set db.SetUsageSubjectsParams
	for _, row := range rows {
		stored, err := decodeTop(row.Top)
		if err != nil {
			stored = usage.TopSubjects{} // start from zero: one unreadable list must not block all usage
		}
		top := stored.Merge(merged[subjectsKey{row.TenantID, row.Grain, row.Start.UnixMilli()}])
		encoded, err := encodeTop(top)
		if err != nil {
			return err
		}
		set.Tenants = append(set.Tenants, row.TenantID)
		set.Grains = append(set.Grains, row.Grain)
		set.Starts = append(set.Starts, row.Start)
		set.Tops = append(set.Tops, encoded)
	}
	return q.SetUsageSubjects(ctx, set)
}

// storedTop is usage.TopSubjects in the form of usage_subjects.top. The names are short, because
// there is one row with a hundred of them for every minute.
type storedTop struct {
	Checks []storedSubject `json:"checks,omitempty"`
	Denied []storedSubject `json:"denied,omitempty"`
}

type storedSubject struct {
	Subject      string `json:"s"`
	Error        int64  `json:"e,omitempty"`
	Allowed      int64  `json:"a,omitempty"`
	Denied       int64  `json:"d,omitempty"`
	ShadowDenied int64  `json:"sd,omitempty"`
	Degraded     int64  `json:"dg,omitempty"`
	CostAllowed  int64  `json:"ca,omitempty"`
	CostDenied   int64  `json:"cd,omitempty"`
}

func encodeTop(t usage.TopSubjects) ([]byte, error) {
	store := func(list usage.SubjectList) []storedSubject {
		out := make([]storedSubject, len(list))
		for i, s := range list {
			out[i] = storedSubject{s.Subject, s.Error, s.Allowed, s.Denied, s.ShadowDenied, s.Degraded, s.CostAllowed, s.CostDenied}
		}
		return out
	}
	return json.Marshal(storedTop{Checks: store(t.Checks), Denied: store(t.Denied)})
}

func decodeTop(data []byte) (usage.TopSubjects, error) {
	var stored storedTop
	if err := json.Unmarshal(data, &stored); err != nil {
		return usage.TopSubjects{}, unreadableList(err)
	}
	return usage.TopSubjects{Checks: loadList(stored.Checks), Denied: loadList(stored.Denied)}, nil
}

// KeepUsage deletes usage, also metered usage, that exceeds its retention, or whose tenant was
// deleted. Only one server does it at a time; the others return immediately. What cannot be deleted
// does not keep the rest. Errors: ErrUnavailable, and those of what was not deleted.
func (s *Store) KeepUsage(ctx context.Context) (err error) {
	note := func(of string, failed error) {
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("purge %s: %w", of, failed))
		}
	}
	note("minutes of usage", s.upkeep(ctx, emptyOldMinutes))
	for _, p := range append(usagePurges(), meteringPurges()...) {
		note(p.of, s.purgeUsage(ctx, p))
	}
	return err
}

// purgeUsage repeats a deletion until nothing is left.
func (s *Store) purgeUsage(ctx context.Context, p purge) error {
	for more := true; more; {
		more = false
		err := s.upkeep(ctx, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
			n, err := p.run(ctx, q, s.instant(), purgeRows)
			more = n == purgeRows
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// usagePurges are what KeepUsage deletes of usage, by the time of Postgres.
func usagePurges() []purge {
	purges := []purge{
		{"hours of usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeUsageHours(ctx, db.PurgeUsageHoursParams{Retention: interval(UsageRetention(usage.Hour)), Most: most})
		}},
		{"days of usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeUsageDays(ctx, db.PurgeUsageDaysParams{Retention: interval(UsageRetention(usage.Day)), Most: most})
		}},
		{"hours of usage of deleted tenants", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeDeletedUsageHours(ctx, most)
		}},
		{"days of usage of deleted tenants", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeDeletedUsageDays(ctx, most)
		}},
		{"subjects with usage of deleted tenants", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeDeletedUsageSubjects(ctx, most)
		}},
		{"writers of usage", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeUsageWriters(ctx, db.PurgeUsageWritersParams{Retention: interval(UsageRetention(usage.Hour)), Most: most})
		}},
	}
	for _, g := range usage.Grains {
		purges = append(purges, purge{"subjects with usage by " + g.String(), func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
			return q.PurgeUsageSubjects(ctx, db.PurgeUsageSubjectsParams{Grain: g.String(), Retention: interval(UsageRetention(g)), Most: most})
		}})
	}
	return purges
}

// upkeep runs fn unless another server is running it.
func (s *Store) upkeep(ctx context.Context, fn txFunc) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		alone, err := q.TryLock(ctx, usageUpkeepLock)
		if err != nil || !alone {
			return err
		}
		return fn(ctx, tx, q)
	})
}

// usageSlots is the number of tables in the ring of usage_minutes.
const usageSlots = 5

func usageSlot(day time.Time) int16 { return int16(day.Unix() / 86400 % usageSlots) } // below usageSlots

// emptyOldMinutes empties the table of three days ago. Minutes are kept for 48 hours, so those of
// the day before yesterday are still read, and the table is used again the day after tomorrow.
func emptyOldMinutes(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
	now, err := q.DatabaseTime(ctx)
	if err != nil {
		return err
	}
	slot := usageSlot(now.AddDate(0, 0, -3))
	inUse, err := q.UsageSlotInUse(ctx, slot)
	if err != nil || !inUse {
		return err
	}
	_, err = tx.Exec(ctx, fmt.Sprintf("TRUNCATE usage_minutes_%d", slot))
	return err
}
