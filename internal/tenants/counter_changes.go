package tenants

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/tenants/db"
)

// How the counters of a subject follow a change to a plan. Carry keeps the units used, reset sets
// them to zero, and scale keeps the used share of the quota.
const (
	OnChangeCarry = "carry"
	OnChangeReset = "reset"
	OnChangeScale = "scale"
)

// OnChanges are the values of Plan.OnChange.
var OnChanges = []string{OnChangeCarry, OnChangeReset, OnChangeScale}

// counterChanges is the maximum number of counter changes that are listed at once.
const counterChanges = 500

// CarryOutCounterChanges calls carry with the pending changes of counters, those of a tenant in
// order, the tenants in turn, and deletes those that succeed. After an error, the tenant's further
// changes wait for the next round. more reports whether more can be done immediately. Several
// servers may call it concurrently, and a change may be passed to carry more than once. Errors:
// ErrUnavailable, and the first error of carry.
func (s *Store) CarryOutCounterChanges(ctx context.Context, carry func(tenant uuid.UUID, c check.CounterChange) error) (done int, more bool, err error) {
	var first error
	var without []uuid.UUID // tenants that failed
	for {
		n, full, failed, err := s.carryOutCounterChanges(ctx, without, carry)
		done += n
		if failed.first != nil && first == nil {
			first = failed.first
		}
		if err != nil {
			return done, false, errors.Join(first, err)
		}
		if without = append(without, failed.tenants...); len(failed.tenants) == 0 || !full || len(without) >= turnsFailed {
			return done, full && n > 0, first
		}
		// The changes of the tenants that failed may hide those of others.
	}
}

// carryOutCounterChanges carries out one page of changes. full means that there may be more.
func (s *Store) carryOutCounterChanges(ctx context.Context, without []uuid.UUID, carry func(tenant uuid.UUID, c check.CounterChange) error) (done int, full bool, failed failedTenants, err error) {
	rows, full, err := s.counterChanges(ctx, without)
	if err != nil {
		return 0, false, failed, fmt.Errorf("list changes of counters: %w", err)
	}
	var carried []int64
	for _, row := range rows {
		if failed.has(row.TenantID) {
			continue
		}
		change := check.CounterChange{
			ID: row.ID, Subject: row.Subject, Reset: row.Action == OnChangeReset, From: row.FromPlan, To: row.ToPlan,
			FromVersion: int(row.FromVersion), ToVersion: int(row.ToVersion),
			FromMultiplier: int64(row.FromMultiplier), ToMultiplier: int64(row.ToMultiplier),
		}
		if err := carry(row.TenantID, change); err != nil {
			failed.add(row.TenantID, err)
			continue
		}
		carried = append(carried, row.ID)
	}
	if len(carried) > 0 {
		err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
			return q.DeleteCounterChanges(ctx, carried)
		})
		if err != nil {
			return 0, false, failed, fmt.Errorf("delete changes of counters: %w", err)
		}
	}
	return len(carried), full, failed, nil
}

// counterChanges lists the changes of one step. full means that there may be more.
func (s *Store) counterChanges(ctx context.Context, without []uuid.UUID) (rows []db.CounterChangesRow, full bool, err error) {
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		step, err := s.turns.counters.step(ctx, tx, counterChangeTasks, s.instant(), counterChanges, without)
		if err != nil {
			return err
		}
		share := step.share(counterChanges)
		rows, err = q.CounterChanges(ctx, db.CounterChangesParams{Tenants: step.tenants, OfTenant: share, Most: counterChanges})
		if err != nil {
			return err
		}
		s.turns.counters.passed(step.last)
		full = isFull(rows, counterChanges, share, func(r db.CounterChangesRow) uuid.UUID { return r.TenantID })
		return nil
	})
	return rows, full, err
}
