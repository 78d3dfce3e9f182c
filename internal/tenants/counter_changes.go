package tenants

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

const (
	counterChanges = 500    // maximum number of counter changes that are listed at once
	turnsLookedAt  = 20_000 // number of pending tasks of all tenants among which a list finds its own
	turnsFailed    = 100    // of so many tenants that fail, the cause is none of them, and the round ends
)

// CarryOutCounterChanges calls carry with the pending changes of counters, those of a tenant in
// order, the tenants in turn, and deletes those that succeed. After an error, the tenant's further
// changes wait for the next round. more reports whether more can be done immediately. Several
// servers may call it concurrently, and a change may be passed to carry more than once. Errors:
// ErrUnavailable, and the first error of carry.
func (s *Store) CarryOutCounterChanges(ctx context.Context, carry func(tenant uuid.UUID, c check.CounterChange) error) (done int, more bool, err error) {
	var first error
	without := []uuid.UUID{} // tenants that failed; never nil, which would be NULL
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

// failedTenants are the tenants whose tasks failed in a round, and the first error.
type failedTenants struct {
	tenants []uuid.UUID
	first   error
}

func (f *failedTenants) add(tenant uuid.UUID, err error) {
	f.tenants = append(f.tenants, tenant)
	if f.first == nil {
		f.first = err
	}
}

func (f *failedTenants) has(tenant uuid.UUID) bool { return slices.Contains(f.tenants, tenant) }

// carryOutCounterChanges carries out one page of changes. full means that there may be more.
func (s *Store) carryOutCounterChanges(ctx context.Context, without []uuid.UUID, carry func(tenant uuid.UUID, c check.CounterChange) error) (done int, full bool, failed failedTenants, err error) {
	var rows []db.CounterChangesRow
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err = q.CounterChanges(ctx, db.CounterChangesParams{Without: without, LookedAt: turnsLookedAt, Most: counterChanges})
		return err
	})
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
	return len(carried), len(rows) == counterChanges, failed, nil
}
