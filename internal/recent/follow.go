package recent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"weir/internal/limit"
)

// Limits for followers. Each asks all instances once a second.
const (
	MaxTenantFollowers = 4
	// sharedFollowers is the number of followers of this process in which tenants have shares: a
	// quarter of what is left, or one. Tenants that have none get one beyond that, too, up to
	// MaxFollowers.
	sharedFollowers = 32
	MaxFollowers    = 2 * sharedFollowers
	followEvery     = time.Second
	// followSkew is how far the clock of an instance may be behind.
	followSkew = 10 * time.Second
	// followKeeps is how long a decision is known after it was last listed: an instance that does
	// not answer for a while lists it again.
	followKeeps = time.Minute
)

// ErrFollowers means that the maximum number of followers is connected.
var ErrFollowers = errors.New("too many followers")

// followers counts the followers of this process, by tenant.
type followers struct {
	mu  sync.Mutex
	of  map[limit.TenantID]int
	all int
}

// Follower returns the decisions of a tenant as they are made.
type Follower struct {
	log    *Log
	tenant limit.TenantID
	ticks  *time.Ticker
	known  map[decisionKey]*followed
}

// decisionKey identifies a recorded decision.
type decisionKey struct {
	at                      int64
	subject, resource, rule string
	allowed                 bool
}

// followed is a decision that a follower knows.
type followed struct {
	first, last time.Time // when it was listed
	returned    bool
}

// Follow returns a follower for the decisions that all instances make from now on. The caller must
// close it.
func (r *Log) Follow(ctx context.Context, tenant limit.TenantID) (*Follower, error) {
	if !r.following.enter(tenant) {
		return nil, ErrFollowers
	}
	f := &Follower{log: r, tenant: tenant, ticks: time.NewTicker(followEvery), known: map[decisionKey]*followed{}}
	f.take(r.latest(ctx, tenant), r.clock())
	for _, k := range f.known {
		k.returned = true // made before now
	}
	return f, nil
}

func (n *followers) enter(tenant limit.TenantID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	share := min(MaxTenantFollowers, max(1, (sharedFollowers-n.all)/4))
	if n.all >= MaxFollowers || n.of[tenant] >= share {
		return false
	}
	if n.of == nil {
		n.of = map[limit.TenantID]int{}
	}
	n.all++
	n.of[tenant]++
	return true
}

// Close ends the follower.
func (f *Follower) Close() {
	f.ticks.Stop()
	n := &f.log.following
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all--
	if n.of[f.tenant]--; n.of[f.tenant] == 0 {
		delete(n.of, f.tenant)
	}
}

// Next waits for up to a second, and returns new decisions, oldest first; often none. A decision is
// returned once, one to three seconds after it was made, because only then its repeats are known.
func (f *Follower) Next(ctx context.Context) ([]Decision, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-f.ticks.C:
		return f.take(f.log.latest(ctx, f.tenant), f.log.clock()), nil
	}
}

// latest returns the decisions of the last seconds, from all instances that answer in time.
func (r *Log) latest(ctx context.Context, tenant limit.TenantID) []Decision {
	q := Query{Since: r.clock().Add(-followSkew), Most: recentMost}
	got := r.share(ctx, sharedKey{tenant: tenant})
	return append(selected(got.Decisions, q), r.list(tenant, q)...)
}

// take returns the decisions of a list that are due: those that were first listed long enough ago
// and were not returned.
func (f *Follower) take(list []Decision, now time.Time) (due []Decision) {
	for i := range list {
		d := &list[i]
		key := decisionKey{d.At.UnixNano(), d.Subject, d.Resource, d.Rule, d.Allowed}
		k := f.known[key]
		if k == nil {
			k = &followed{first: now}
			f.known[key] = k
		}
		k.last = now
		if !k.returned && now.Sub(k.first) >= RepeatsWithin {
			k.returned = true
			due = append(due, *d)
		}
	}
	maps.DeleteFunc(f.known, func(_ decisionKey, k *followed) bool { return now.Sub(k.last) >= followKeeps })
	slices.SortStableFunc(due, func(a, b Decision) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Subject, b.Subject)) })
	return due
}
