package tenants

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// turns limits how many connections of a pool the operations of one tenant use at once. Changes of
// a tenant wait for each other in Postgres, each with its connection, and a report may take
// seconds. Without a limit, a tenant that sends many of them at once would leave no connection for
// the others.
//
// With 8 connections, a tenant uses up to 4. Its further operations wait here, without a
// connection.
type turns struct {
	each int // of one tenant
	mu   sync.Mutex
	of   map[uuid.UUID]*turn // of the tenants that have or want one
}

// turn has the places of one tenant.
type turn struct {
	places chan struct{}
	users  int // operations that have a place or wait for one; guarded by turns.mu
}

func newTurns(each int) *turns { return &turns{each: each, of: map[uuid.UUID]*turn{}} }

// take waits for a place of the tenant, until ctx ends. If it returns no error, the caller must
// call leave.
func (t *turns) take(ctx context.Context, tenant uuid.UUID) (leave func(), err error) {
	own := t.enter(tenant)
	select {
	case own.places <- struct{}{}:
		return func() {
			<-own.places
			t.exit(tenant, own)
		}, nil
	case <-ctx.Done():
		t.exit(tenant, own)
		return nil, ctx.Err()
	}
}

func (t *turns) enter(tenant uuid.UUID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.of[tenant]
	if own == nil {
		own = &turn{places: make(chan struct{}, t.each)}
		t.of[tenant] = own
	}
	own.users++
	return own
}

func (t *turns) exit(tenant uuid.UUID, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.of, tenant)
	}
}
