package tenants

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

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

// changesAtOnce is the maximum number of tenants of which a change is carried out at the same time.
// Most of them wait for a turn in the counter store, and use no connection to Postgres.
const changesAtOnce = 64

// CounterChanges carries out the pending changes of counters: those of a tenant in order, and those
// of several tenants at the same time, so that no tenant waits for the long changes of another.
// Several servers may do so concurrently, and a change may be carried out more than once.
type CounterChanges struct {
	store *Store
	carry func(tenant uuid.UUID, c check.CounterChange) error
	slots chan struct{} // one for each change that is carried out
	next  chan struct{} // has an element when there may be more to list
	work  sync.WaitGroup

	mu      sync.Mutex
	busy    map[uuid.UUID]bool // tenants whose listed changes are not finished; true: they have ended
	failed  failedTenants      // since the last call of retry
	waiting int                // tenants that wait for a slot
	carried []int64            // changes that are not deleted yet
}

// CounterChanges returns what carries out changes by calling carry. After an error of it, the
// tenant's further changes wait.
func (s *Store) CounterChanges(carry func(tenant uuid.UUID, c check.CounterChange) error) *CounterChanges {
	return &CounterChanges{
		store: s, carry: carry, slots: make(chan struct{}, changesAtOnce), next: make(chan struct{}, 1), busy: map[uuid.UUID]bool{},
	}
}

// Run looks for changes every so often, and sooner while there are more, until ctx ends. It tells
// report of errors: ErrUnavailable, and those of carry.
func (c *CounterChanges) Run(ctx context.Context, every time.Duration, report func(error)) {
	defer c.work.Wait()
	timer := time.NewTimer(rand.N(every)) // instances that were started together spread out
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.next:
		case <-timer.C: // also while one tenant has more and more
			timer.Reset(every)
			if err := c.retry(); err != nil && ctx.Err() == nil {
				report(err)
			}
		}
		if _, _, err := c.step(ctx); err != nil && ctx.Err() == nil {
			report(err)
		}
	}
}

// retry lets the changes of tenants that failed be listed again, and returns their first error.
func (c *CounterChanges) retry() (first error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, c.failed = c.failed.first, failedTenants{}
	return first
}

// step deletes the changes that were carried out, and begins with one page of others. full means
// that there may be more.
func (c *CounterChanges) step(ctx context.Context) (deleted int, full bool, err error) {
	if deleted, err = c.settle(ctx); err != nil {
		return 0, false, err
	}
	without, list := c.without()
	if !list {
		return deleted, false, nil
	}
	rows, full, err := c.store.counterChanges(ctx, without)
	if err != nil {
		return deleted, false, fmt.Errorf("list changes of counters: %w", err)
	}
	var order []uuid.UUID
	of := map[uuid.UUID][]db.CounterChangesRow{}
	for _, row := range rows {
		if of[row.TenantID] == nil {
			order = append(order, row.TenantID)
		}
		of[row.TenantID] = append(of[row.TenantID], row)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tenant := range order {
		c.busy[tenant] = false
		c.waiting++
		c.work.Go(func() { c.carryOut(ctx, tenant, of[tenant], full) })
	}
	return deleted, full, nil
}

// without returns the tenants whose changes are not listed now. Nothing is listed while others wait
// for a slot, or after very many have failed, of which the cause is none of them.
func (c *CounterChanges) without() (tenants []uuid.UUID, list bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Keys(c.busy)), c.failed.tenants), c.waiting == 0 && len(c.failed.tenants) < turnsFailed
}

// carryOut carries out changes of a tenant in order. After each, other tenants may have its slot.
func (c *CounterChanges) carryOut(ctx context.Context, tenant uuid.UUID, rows []db.CounterChangesRow, more bool) {
	first := true
	kept, own := keptLimits{}, &ownLimits{}
	for i := range rows {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if first {
			c.waiting, first = c.waiting-1, false
		}
		c.mu.Unlock()
		if ctx.Err() != nil {
			break
		}
		err := c.carryOne(ctx, &rows[i], kept, own)
		<-c.slots
		c.mu.Lock()
		if err != nil {
			c.failed.add(tenant, err)
		} else {
			c.carried = append(c.carried, rows[i].ID)
		}
		c.mu.Unlock()
		if err != nil {
			break
		}
	}
	c.mu.Lock()
	c.busy[tenant] = true
	c.mu.Unlock()
	if more {
		select {
		case c.next <- struct{}{}:
		default:
		}
	}
}

// carryOne carries out a change. kept and own have limits of its tenant that were read before.
func (c *CounterChanges) carryOne(ctx context.Context, row *db.CounterChangesRow, kept keptLimits, own *ownLimits) error {
	if err := c.store.readKept(ctx, row, kept, own); err != nil {
		return fmt.Errorf("read the limits of a change of counters: %w", err)
	}
	if kept.gone(row.FromLimits) || kept.gone(row.ToLimits) {
		return nil // another server has carried it out, or they would be there
	}
	approved, err := approvedOf(row)
	if err != nil {
		return fmt.Errorf("read the limits of a change of counters: %w", err)
	}
	return c.carry(row.TenantID, check.CounterChange{
		ID: row.ID, Subject: row.Subject, Reset: row.Action == OnChangeReset, From: row.FromPlan, To: row.ToPlan,
		FromVersion: int(row.FromVersion), ToVersion: int(row.ToVersion),
		FromMultiplier: int64(row.FromMultiplier), ToMultiplier: int64(row.ToMultiplier),
		FromLimits: kept.of(row.FromLimits), ToLimits: kept.of(row.ToLimits), OwnLimits: own.of(row.ID), Approved: approved,
	})
}

// settle deletes the changes that were carried out. Then those tenants of which all listed ones are
// finished may be listed again.
func (c *CounterChanges) settle(ctx context.Context) (deleted int, err error) {
	c.mu.Lock()
	carried := c.carried
	c.carried = nil
	var ended []uuid.UUID
	for tenant, has := range c.busy {
		if has {
			ended = append(ended, tenant)
		}
	}
	c.mu.Unlock()
	if len(carried) > 0 {
		err = c.store.asSystemWithin(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
			return q.DeleteCounterChanges(ctx, carried)
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.carried = append(carried, c.carried...)
		return 0, fmt.Errorf("delete changes of counters: %w", err)
	}
	for _, tenant := range ended {
		delete(c.busy, tenant)
	}
	return len(carried), nil
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
