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

// The due tasks of a tenant are executed in sequence, because their writes would wait for each
// other, and those of several tenants at the same time. A tenant whose tasks take long, because its
// provider is slow or its rows are locked, delays nobody else:
//
//   - a tenant has a place for a second at most, and the one that had none for the longest time is
//     the next
//   - while a task waits for the provider it has another kind of place, of which there are many
//   - the loop does not wait for the end of a turn
//
// What a turn leaves stays due. Looks at the events that wait for a subject or a price have turns
// of their own in the same way.

const (
	// turnPlaces is the number of tenants whose tasks are executed at the same time; there are as
	// many more places for tenants that have none. They use a part of the connections to Postgres,
	// because the admin API needs the others.
	turnPlaces = 2
	turnFor    = time.Second
	// lookPlaces is the same of tenants whose waiting events are looked at. These have places of
	// their own, so that a look that takes long delays only other looks.
	lookPlaces = 1
	// askPlaces is of how many tenants the provider is asked at the same time, in the same way.
	askPlaces = 16
)

// tenantTasks are due tasks of one tenant.
type tenantTasks struct {
	tenant uuid.UUID
	tasks  []func(context.Context, *turn) (done bool)
}

// turns decides whose tasks are executed.
type turns struct {
	most           int // turns at the same time, and as many more of tenants that have none
	places, asking *places.Places[uuid.UUID]
	ended          chan struct{} // capacity 1; signals that a turn has ended or a place is free

	mu      sync.Mutex
	waiting []tenantTasks
	working map[uuid.UUID]bool
	done    map[uuid.UUID]bool       // tenants whose turn has ended since the last look at what is due began
	order   *places.Order[uuid.UUID] // of tenants, by their last turn
}

func newTurns(most int) *turns {
	return &turns{
		most: most, places: places.New[uuid.UUID](0, 0), asking: places.New[uuid.UUID](0, 0), ended: make(chan struct{}, 1),
		working: map[uuid.UUID]bool{}, done: map[uuid.UUID]bool{}, order: places.NewOrder[uuid.UUID](),
	}
}

// look is called before a look at what is due begins.
func (t *turns) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.done)
}

// offer replaces the tasks that wait by those that a look has found. A tenant that had a turn
// meanwhile is left out, because its tasks may be done: again reports whether there must be another
// look for it.
func (t *turns) offer(due []tenantTasks) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due = slices.DeleteFunc(due, func(of tenantTasks) bool {
		again = again || t.done[of.tenant]
		return t.done[of.tenant] || t.working[of.tenant]
	})
	present := map[uuid.UUID]bool{}
	for _, of := range due {
		present[of.tenant] = true
	}
	t.order.Keep(func(tenant uuid.UUID) bool { return present[tenant] || t.working[tenant] })
	slices.SortStableFunc(due, func(a, b tenantTasks) int { return t.order.Compare(a.tenant, b.tenant) })
	t.waiting = due
	return again
}

// take returns the tasks of the next tenant, if there is a place. The caller must free it, and call
// end. idle reports whether no turn is under way then.
func (t *turns) take() (of tenantTasks, leave func(), idle bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return of, nil, len(t.working) == 0
	}
	of = t.waiting[0]
	leave, ok := t.places.TakeShare(of.tenant, t.most, 1)
	if !ok {
		return of, nil, false
	}
	t.waiting = t.waiting[1:]
	t.working[of.tenant] = true
	t.order.Serve(of.tenant)
	return of, leave, false
}

// end ends the turn of a tenant. none reports whether no other one waits.
func (t *turns) end(tenant uuid.UUID) (none bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.working, tenant)
	t.done[tenant] = true
	t.signal()
	return len(t.waiting) == 0
}

// signal says that a place is free.
func (t *turns) signal() {
	select {
	case t.ended <- struct{}{}:
	default: // it is signalled already
	}
}

// turn is that of one tenant.
type turn struct {
	all    *turns
	tenant uuid.UUID
	leave  func()
	asked  bool // it has the place of a tenant whose provider is asked, and ends with its task
}

// ask exchanges the place of the turn for one of those that wait for a provider, and reports
// whether there was one.
func (t *turn) ask() bool {
	if t.asked {
		return true
	}
	leave, ok := t.all.asking.TakeShare(t.tenant, askPlaces, 1)
	if !ok {
		return false
	}
	t.leave()
	t.leave, t.asked = leave, true
	t.all.signal()
	return true
}

// begin begins turns, as far as there are places. idle reports whether nothing is under way then.
func (r *Runner) begin(ctx context.Context, all *turns) (idle bool) {
	for ctx.Err() == nil {
		of, leave, idle := all.take()
		if leave == nil {
			return idle
		}
		r.underway.Go(func() {
			t := &turn{all: all, tenant: of.tenant, leave: leave}
			done := r.execute(ctx, t, of.tasks)
			t.leave()
			if none := all.end(of.tenant); none && done {
				r.Wake() // it may have more
			}
		})
	}
	return false
}

// execute executes the tasks of a turn until it ends, and reports whether any was done.
func (r *Runner) execute(ctx context.Context, t *turn, tasks []func(context.Context, *turn) bool) (done bool) {
	end := time.Now().Add(turnFor)
	for _, task := range tasks {
		if ctx.Err() != nil || t.asked || time.Now().After(end) {
			break
		}
		done = task(ctx, t) || done
	}
	return done
}

// byTenant are tasks of several tenants.
type byTenant struct {
	list  []tenantTasks
	index map[uuid.UUID]int
}

func (b *byTenant) add(tenant uuid.UUID, task func(context.Context, *turn) bool) {
	i, ok := b.index[tenant]
	if !ok {
		i = len(b.list)
		b.index[tenant] = i
		b.list = append(b.list, tenantTasks{tenant: tenant})
	}
	b.list[i].tasks = append(b.list[i].tasks, task)
}

// tasksOf returns the due events and subscriptions as tasks, by tenant.
func (r *Runner) tasksOf(due tenants.BillingDue) []tenantTasks {
	out := byTenant{index: map[uuid.UUID]int{}}
	for _, task := range due.Events {
		out.add(task.Tenant, func(ctx context.Context, t *turn) bool { return r.event(ctx, task, t.ask) })
	}
	for _, task := range due.Subscriptions {
		out.add(task.Tenant, func(ctx context.Context, _ *turn) bool { return r.subscription(ctx, task) })
	}
	return out.list
}

// looksOf returns the looks at waiting events as tasks, by tenant.
func (r *Runner) looksOf(due tenants.BillingDue) []tenantTasks {
	out := byTenant{index: map[uuid.UUID]int{}}
	for _, look := range due.Looks {
		out.add(look.Tenant, func(ctx context.Context, _ *turn) bool { return r.look(ctx, look) })
	}
	return out.list
}

// look looks at waiting events. done reports whether some may be due now, or be left.
func (r *Runner) look(ctx context.Context, look tenants.BillingLook) (done bool) {
	_, err := r.Store.LookAtBilling(ctx, look)
	r.logFailure(ctx, "look at waiting events", tenants.BillingTask{Tenant: look.Tenant, Endpoint: look.Endpoint}, err)
	return err == nil
}
