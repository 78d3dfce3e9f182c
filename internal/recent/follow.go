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
	"weir/internal/places"
)

// Limits for followers. Each asks all instances once a second.
const (
	MaxTenantFollowers = 4
	MaxFollowers       = 64 // of this process, without those that are about to end
	// followTurn is how long a follower keeps its place when tenants without any wait for one.
	followTurn = time.Minute
	// The places in the line are kept for clients that wait longer and longer, up to 15 seconds.
	followersWaiting = 1024
	followersWait    = 20 * time.Second
	followEvery      = time.Second
	// followSkew is how far the clock of an instance may be behind.
	followSkew = 10 * time.Second
	// followKeeps is how long a decision is known after it was last listed: an instance that does
	// not answer for a while lists it again.
	followKeeps = time.Minute
)

// ErrFollowers means that the maximum number of followers is connected, or that a follower has
// ended for one of another tenant.
var ErrFollowers = errors.New("too many followers")

// followers counts the followers of this process, by tenant, with those that are about to end. When
// all places are taken, a tenant with at least two fewer gets the place of the oldest one of the
// tenant with the most. If each has one, tenants without any wait in a line for those that have
// lasted for followTurn.
type followers struct {
	crowd *places.Crowd[limit.TenantID]

	mu   sync.Mutex
	line *places.Line[limit.TenantID]
	of   map[limit.TenantID]int
	all  int
}

func newFollowers(clock func() time.Time) *followers {
	return &followers{
		crowd: places.NewCrowd[limit.TenantID](MaxFollowers), line: places.NewLine[limit.TenantID](followersWaiting, followersWait, clock),
		of: map[limit.TenantID]int{},
	}
}

// Follower returns the decisions of a tenant as they are made.
type Follower struct {
	log    *Log
	tenant limit.TenantID
	ticks  *time.Ticker
	known  map[decisionKey]*followed
	over   chan struct{} // closed when it must end for one of another tenant
	leave  func()        // leaves the crowd
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
	f := &Follower{log: r, tenant: tenant, known: map[decisionKey]*followed{}, over: make(chan struct{})}
	if !r.following.enter(f, r.clock()) {
		return nil, ErrFollowers
	}
	f.ticks = time.NewTicker(followEvery)
	f.take(r.latest(ctx, tenant), r.clock())
	for _, k := range f.known {
		k.returned = true // made before now
	}
	return f, nil
}

func (n *followers) enter(f *Follower, now time.Time) (ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// Those that are about to end count here: a client that does not read delays the end.
	if n.all >= 2*MaxFollowers || n.of[f.tenant] >= MaxTenantFollowers {
		return false
	}
	f.leave, ok = n.crowd.EnterNext(n.line.Before(f.tenant), now, followTurn, func() { close(f.over) }, f.tenant)
	if !ok {
		if n.of[f.tenant] == 0 {
			n.line.Join(f.tenant)
		}
		return false
	}
	n.line.Leave(f.tenant)
	n.all++
	n.of[f.tenant]++
	return true
}

// Close ends the follower.
func (f *Follower) Close() {
	f.ticks.Stop()
	f.leave()
	n := f.log.following
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all--
	if n.of[f.tenant]--; n.of[f.tenant] == 0 {
		delete(n.of, f.tenant)
	}
}

// Next waits for up to a second, and returns new decisions, oldest first; often none. A decision is
// returned once, one to three seconds after it was made, because only then its repeats are known.
// Errors: that of ctx; ErrFollowers when the follower must end for one of another tenant.
func (f *Follower) Next(ctx context.Context) ([]Decision, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-f.over:
		return nil, ErrFollowers
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
