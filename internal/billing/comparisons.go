package billing

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/places"
	"weir/internal/tenants"
)

// A comparison may take hours: the subscriptions that a provider does not list are asked for one by
// one, and a tenant has as many of them as it sends events. So one that has had its place for
// compareTurn gives it up while others wait, and continues where it was when it has one again. The
// tenant that had none for the longest time is the next.

const (
	// comparePlaces is how many endpoints are compared at the same time, each of another tenant.
	comparePlaces = 8
	compareTurn   = 10 * time.Minute
	// mostPaused is how many comparisons without a place there are at most, because each has the
	// names of the subscriptions that it has seen. Beyond that, they keep their places.
	mostPaused = 32
)

// comparisons decides whose comparisons continue.
type comparisons struct {
	turn time.Duration

	mu     sync.Mutex
	taken  int
	began  map[uuid.UUID]time.Time // of the last turn of tenants with a comparison under way, also a paused one
	paused map[uuid.UUID]chan struct{}
	wanted int                      // comparisons for which the last look had no place
	order  *places.Order[uuid.UUID] // of tenants, by their last turn
}

func newComparisons(turn time.Duration) *comparisons {
	return &comparisons{turn: turn, began: map[uuid.UUID]time.Time{}, paused: map[uuid.UUID]chan struct{}{}, order: places.NewOrder[uuid.UUID]()}
}

// next gives the free places to paused comparisons and to due ones, and returns those of the latter
// that begin. The caller must call end after each.
func (c *comparisons) next(due []tenants.BillingTask) (begin []tenants.BillingTask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := map[uuid.UUID]tenants.BillingTask{} // one of each tenant that has none under way
	var waiting []uuid.UUID
	for tenant := range c.paused {
		waiting = append(waiting, tenant)
	}
	for _, task := range due {
		_, underway := c.began[task.Tenant]
		if _, known := first[task.Tenant]; !underway && !known {
			first[task.Tenant] = task
			waiting = append(waiting, task.Tenant)
		}
	}
	slices.SortStableFunc(waiting, c.order.Compare)
	free := min(comparePlaces-c.taken, len(waiting))
	for _, tenant := range waiting[:free] {
		c.taken++
		c.began[tenant] = time.Now()
		c.order.Serve(tenant)
		if resume, ok := c.paused[tenant]; ok {
			delete(c.paused, tenant)
			close(resume)
		} else {
			begin = append(begin, first[tenant])
		}
	}
	if c.wanted = len(waiting) - free; c.wanted == 0 {
		c.order.Keep(func(tenant uuid.UUID) bool { _, underway := c.began[tenant]; return underway })
	}
	return begin
}

// giveUp gives the place of a tenant up if its turn is over and others wait. The channel is closed
// when it has one again; nil: it keeps its place.
func (c *comparisons) giveUp(tenant uuid.UUID) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted == 0 || len(c.paused) >= mostPaused || time.Since(c.began[tenant]) < c.turn {
		return nil
	}
	c.wanted--
	c.taken--
	resume := make(chan struct{})
	c.paused[tenant] = resume
	return resume
}

// end ends the comparison of a tenant, which may have been paused.
func (c *comparisons) end(tenant uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.began, tenant)
	if _, ok := c.paused[tenant]; ok {
		delete(c.paused, tenant)
		return
	}
	c.taken--
}

// beginComparisons begins to compare the endpoints for which there are places. The others stay due.
func (r *Runner) beginComparisons(ctx context.Context, due []tenants.BillingTask) {
	for _, task := range r.comparisons.next(due) {
		r.underway.Go(func() {
			defer r.comparisons.end(task.Tenant)
			r.daily(ctx, task)
		})
	}
}

// giveWay lets other comparisons go first if they wait for long, and returns when this one has a
// place again, or if ctx ends. Meanwhile it keeps its claim with renew.
func (r *Runner) giveWay(ctx context.Context, task tenants.BillingTask, renew func()) {
	resume := r.comparisons.giveUp(task.Tenant)
	if resume == nil {
		return
	}
	ticker := time.NewTicker(r.CompareFor / 4)
	defer ticker.Stop()
	for {
		renew()
		select {
		case <-ctx.Done():
			return
		case <-resume:
			renew()
			return
		case <-ticker.C:
		}
	}
}
