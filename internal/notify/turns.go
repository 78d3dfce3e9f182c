package notify

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/places"
	"weir/internal/tenants"
)

const (
	// Places for requests of one instance. A tenant gets a share of those that are left: the first
	// four, and with many tenants each one. So there are at most twice as many.
	shared = 20
	// sharedSlow of them are for slow endpoints, by the same rule: at most half.
	sharedSlow = shared / 2
	// turnFor is how long an endpoint keeps its place while it has more to get.
	turnFor = time.Second
	// An endpoint that answers later than this is slow.
	quick = 2 * time.Second
	// An endpoint is slow for slowFor at least, so that it does not get the places of quick ones
	// with every second answer, and for suspectFor at most, if it gets nothing any more.
	slowFor    = time.Minute
	suspectFor = time.Hour
)

// turns decides which endpoints get the places for requests. Tenants get one place each in turn,
// and the tenant that got none for the longest time is the first. Slow endpoints, which answered
// late or not at all, get at most half of the places, however many tenants they belong to.
type turns struct {
	now       func() time.Time
	all, slow *places.Places[uuid.UUID]
	freed     chan struct{} // capacity 1; signals that a place is free

	mu      sync.Mutex
	working map[tenants.DeliveryTask]func() // endpoints that have a place, with what frees it
	waiting []tenants.DeliveryTask          // what has something to get, by time
	slowAt  map[tenants.DeliveryTask]time.Time
	order   *places.Order[uuid.UUID] // of tenants, by their last place
}

func newTurns(now func() time.Time) *turns {
	return &turns{
		now: now, all: places.New[uuid.UUID](0, 0), slow: places.New[uuid.UUID](0, 0),
		freed: make(chan struct{}, 1), working: map[tenants.DeliveryTask]func(){},
		slowAt: map[tenants.DeliveryTask]time.Time{}, order: places.NewOrder[uuid.UUID](),
	}
}

// offer replaces the endpoints that have something to get.
func (t *turns) offer(due []tenants.DeliveryTask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = due
	// Most slow endpoints have been tried since, and the others have nothing to get any more.
	now := t.now()
	maps.DeleteFunc(t.slowAt, func(_ tenants.DeliveryTask, at time.Time) bool {
		return now.Sub(at) > suspectFor
	})
	present := map[uuid.UUID]bool{}
	for _, task := range due {
		present[task.Tenant] = true
	}
	t.order.Keep(func(tenant uuid.UUID) bool { return present[tenant] || t.all.Held(tenant) > 0 })
}

// take gives the free places to endpoints. The caller must call leave for each of them.
func (t *turns) take() (out []tenants.DeliveryTask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for before := -1; len(out) > before; {
		before = len(out)
		out = t.round(out)
	}
	return out
}

// round gives each tenant one place, as far as there are any for it.
func (t *turns) round(out []tenants.DeliveryTask) []tenants.DeliveryTask {
	held := map[uuid.UUID]int{}
	for task := range t.working {
		held[task.Tenant]++
	}
	slices.SortStableFunc(t.waiting, func(a, b tenants.DeliveryTask) int {
		return cmp.Or(cmp.Compare(held[a.Tenant], held[b.Tenant]), t.order.Compare(a.Tenant, b.Tenant))
	})
	got := map[uuid.UUID]bool{}
	t.waiting = slices.DeleteFunc(t.waiting, func(task tenants.DeliveryTask) bool {
		if _, busy := t.working[task]; busy {
			return true // it is offered again if it has more to get
		}
		if got[task.Tenant] || !t.begin(task) {
			return false
		}
		got[task.Tenant] = true
		out = append(out, task)
		return true
	})
	return out
}

// begin takes a place for an endpoint, or two if it is slow: one of all, and one of the slow ones.
func (t *turns) begin(task tenants.DeliveryTask) bool {
	leave, ok := t.all.TakeShare(task.Tenant, shared, 1)
	if !ok {
		return false
	}
	if _, slow := t.slowAt[task]; slow {
		leaveSlow, ok := t.slow.TakeShare(task.Tenant, sharedSlow, 1)
		if !ok {
			leave()
			return false
		}
		leaveOne := leave
		leave = func() { leaveOne(); leaveSlow() }
	}
	t.working[task] = leave
	t.order.Serve(task.Tenant)
	return true
}

// leave frees the place of an endpoint, which waits for another one if it may have more to get.
func (t *turns) leave(task tenants.DeliveryTask, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.working[task]()
	delete(t.working, task)
	if more {
		t.waiting = append(t.waiting, task)
	}
	select {
	case t.freed <- struct{}{}:
	default: // it is signalled already
	}
}

// judge remembers whether an endpoint answered in time.
func (t *turns) judge(task tenants.DeliveryTask, inTime bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if !inTime {
		t.slowAt[task] = now
	} else if now.Sub(t.slowAt[task]) > slowFor {
		delete(t.slowAt, task)
	}
}
