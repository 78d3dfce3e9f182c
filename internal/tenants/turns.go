package tenants

import (
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// turns shares the connections of a pool among the operations of tenants. Changes of a tenant wait
// for each other in Postgres, each with its connection, and a report may take seconds. Without a
// limit, a tenant that sends many of them at once would leave no connection for the others.
//
// A tenant uses at most half of the connections. A quarter of them is only for tenants that use
// none, so that no two or three tenants can keep out another one. A connection that is released
// goes to the waiting tenant that uses the fewest. Further operations wait here, without a
// connection.
//
// An example, with 8 connections: one of them is not shared, since an operation may need a second
// one for a moment. Tenant a uses 4, and tenant b 1. Both send more operations, which wait. Tenants
// c and d still get a connection at once. When a releases one, b gets it.
type turns struct {
	each   int // most connections of one tenant
	shared int // most connections in use when a tenant that uses some gets another one
	most   int

	mu      sync.Mutex
	used    int
	of      map[uuid.UUID]int // connections in use, of tenants that use any
	waiting []*waiter         // in the order of arrival
}

// waiter is an operation that waits for its turn.
type waiter struct {
	tenant uuid.UUID
	ready  chan struct{} // closed when it has its turn
}

// newTurns returns the turns for a pool of so many connections.
func newTurns(connections int) *turns {
	most := max(1, connections-1)
	return &turns{
		each: max(1, connections/2), shared: max(1, most-max(1, connections/4)), most: most, of: map[uuid.UUID]int{},
	}
}

// take waits for a turn of the tenant, until ctx ends. If it returns no error, the caller must call
// leave.
func (t *turns) take(ctx context.Context, tenant uuid.UUID) (leave func(), err error) {
	w := &waiter{tenant: tenant, ready: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.next()
	t.mu.Unlock()
	leave = func() { t.leave(tenant) }
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(t.waiting, w)
	if at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // it got its turn at this moment
		return leave, nil
	}
	return nil, ctx.Err()
}

func (t *turns) leave(tenant uuid.UUID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
	if t.of[tenant]--; t.of[tenant] == 0 {
		delete(t.of, tenant)
	}
	t.next()
}

// next gives the turns that are free to waiting operations. The caller holds the lock.
func (t *turns) next() {
	for {
		best := -1
		for i, w := range t.waiting {
			if own := t.of[w.tenant]; t.admits(own) && (best < 0 || own < t.of[t.waiting[best].tenant]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := t.waiting[best]
		t.waiting = slices.Delete(t.waiting, best, best+1)
		t.used++
		t.of[w.tenant]++
		close(w.ready)
	}
}

// admits reports whether a tenant that uses own connections gets another one now.
func (t *turns) admits(own int) bool {
	if own == 0 {
		return t.used < t.most
	}
	return own < t.each && t.used < t.shared
}
