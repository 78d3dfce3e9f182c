package tenants

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
	"weir/internal/usage"
)

// Full lists of a period, with the longest names, have 60 KB of JSON, and a report may read those
// of 1000 periods: 60 MB, which take a second of a processor. So they are read and decoded a batch
// of periods at a time. Each batch has its own transaction, so that no connection to Postgres waits
// for a processor.
const (
	// listBatch is how many periods are read at once.
	listBatch = 100
	// shortLists is how many bytes of lists are short work: they take some milliseconds.
	shortLists = 256 << 10
	// listWait is how long a batch, or the items of a report, wait for their turn.
	listWait = 2 * time.Second
)

// readLists calls add for the lists of each period of a query, in the order of time, and in turns
// of the processors. Lists of later periods may be newer than completeUntil, which is read with the
// first ones. Errors: ErrUnavailable, ErrTooManyReports, those of add.
func (s *Store) readLists(ctx context.Context, a Actor, query *UsageQuery, add func(db.UsageSubjectsRow) error) (completeUntil time.Time, err error) {
	params := db.UsageSubjectsParams{TenantID: a.tenant, Grain: query.Grain.String(), Since: query.From}
	for params.Since.Before(query.To) {
		params.Until = params.Since.Add(listBatch * query.Grain.Duration())
		if params.Until.After(query.To) {
			params.Until = query.To
		}
		var rows []db.UsageSubjectsRow
		err := s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			if params.Since.Equal(query.From) {
				if completeUntil, err = s.completeUntil(ctx, q); err != nil {
					return err
				}
			}
			rows, err = q.UsageSubjects(ctx, params)
			return err
		})
		if err != nil {
			return time.Time{}, err
		}
		if err := s.addLists(ctx, a.tenant, rows, add); err != nil {
			return time.Time{}, err
		}
		params.Since = params.Until
	}
	return completeUntil, nil
}

// addLists calls add for each row when it is the tenant's turn.
func (s *Store) addLists(ctx context.Context, tenant uuid.UUID, rows []db.UsageSubjectsRow, add func(db.UsageSubjectsRow) error) error {
	size := 0
	for i := range rows {
		size += len(rows[i].Top)
	}
	if size == 0 {
		return nil
	}
	return s.inTurn(ctx, tenant, size > shortLists, func() error {
		for i := range rows {
			if err := add(rows[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// inTurn calls f, which must only compute, when it is the tenant's turn of short or of long work.
// Errors: ErrTooManyReports; that of f.
func (s *Store) inTurn(ctx context.Context, tenant uuid.UUID, long bool, f func() error) error {
	turns := s.short.Load()
	if long {
		turns = s.long.Load()
	}
	leave, err := turns.TakeWithin(ctx, tenant, s.listWait)
	if err != nil {
		return ErrTooManyReports
	}
	defer leave()
	return f()
}

// decodeList is decodeTop for one of both lists: that of denied checks, or of all.
func decodeList(data []byte, denied bool) (usage.SubjectList, error) {
	var checks struct {
		List []storedSubject `json:"checks"`
	}
	var denials struct {
		List []storedSubject `json:"denied"`
	}
	if denied {
		err := json.Unmarshal(data, &denials)
		return loadList(denials.List), unreadableList(err)
	}
	err := json.Unmarshal(data, &checks)
	return loadList(checks.List), unreadableList(err)
}

func unreadableList(err error) error {
	if err != nil {
		return fmt.Errorf("read a list of subjects: %w", err)
	}
	return nil
}

func loadList(list []storedSubject) usage.SubjectList {
	out := make(usage.SubjectList, len(list))
	for i, s := range list {
		out[i] = usage.Subject{Subject: s.Subject, Error: s.Error, Counts: usage.Counts{
			Allowed: s.Allowed, Denied: s.Denied, ShadowDenied: s.ShadowDenied, Degraded: s.Degraded,
			CostAllowed: s.CostAllowed, CostDenied: s.CostDenied,
		}}
	}
	return out
}
