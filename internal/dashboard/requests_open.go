package dashboard

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

// openedAge is how old the number of open requests in the navigation may be.
const openedAge = 10 * time.Second

// maxOpened is for how many tenants the number is kept.
const maxOpened = 10_000

// openedCounts has the number of open requests of tenants, so that not every page counts them.
type openedCounts struct {
	now  func() time.Time
	mu   sync.Mutex
	kept map[uuid.UUID]openedCount
}

type openedCount struct {
	n  int64
	at time.Time
}

func newOpenedCounts(now func() time.Time) *openedCounts {
	return &openedCounts{now: now, kept: map[uuid.UUID]openedCount{}}
}

// forget makes the next page count again.
func (o *openedCounts) forget(tenant uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.kept, tenant)
}

// of returns the number of a tenant's open requests. A page is shown without it if it cannot be
// counted.
func (o *openedCounts) of(ctx context.Context, store *tenants.Store, a tenants.Actor) int64 {
	o.mu.Lock()
	kept, known := o.kept[a.TenantID()]
	o.mu.Unlock()
	if known && o.now().Sub(kept.at) < openedAge {
		return kept.n
	}
	n, err := store.OpenLimitRequests(ctx, a)
	if err != nil {
		return kept.n
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.kept) >= maxOpened {
		clear(o.kept)
	}
	o.kept[a.TenantID()] = openedCount{n, o.now()}
	return n
}
