package tenants

import (
	"context"
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

// counterChanges is the maximum number of counter changes in one round.
const counterChanges = 500

// CarryOutCounterChanges calls carry with the pending changes of counters, of all tenants, in
// order, and deletes those that succeed. After an error, the tenant's further changes wait for the
// next round. Several servers may call it concurrently, and a change may be passed to carry more
// than once. Errors: ErrUnavailable, and the first error of carry.
func (s *Store) CarryOutCounterChanges(ctx context.Context, carry func(tenant uuid.UUID, c check.CounterChange) error) (done int, err error) {
	var rows []db.CounterChangesRow
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err = q.CounterChanges(ctx, counterChanges)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("list changes of counters: %w", err)
	}
	var carried []int64
	failed := map[uuid.UUID]bool{}
	var first error
	for _, row := range rows {
		if failed[row.TenantID] {
			continue
		}
		change := check.CounterChange{
			ID: row.ID, Subject: row.Subject, Reset: row.Action == OnChangeReset, From: row.FromPlan, To: row.ToPlan,
			FromVersion: int(row.FromVersion), ToVersion: int(row.ToVersion),
		}
		if err := carry(row.TenantID, change); err != nil {
			failed[row.TenantID] = true
			if first == nil {
				first = err
			}
			continue
		}
		carried = append(carried, row.ID)
	}
	if len(carried) > 0 {
		err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
			return q.DeleteCounterChanges(ctx, carried)
		})
		if err != nil {
			return 0, fmt.Errorf("delete changes of counters: %w", err)
		}
	}
	return len(carried), first
}
