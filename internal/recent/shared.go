package recent

import (
	"context"
	"maps"
	"slices"
	"time"

	"weir/internal/limit"
)

// sharedFor is how long the answers of the other instances serve all lists of a tenant. A tenant
// may have many live pages, each with its own filter and each updated once a second. All of them
// together cost two requests a second. An instance keeps at most recentMost decisions of a tenant,
// so the requests have no filter: the answers contain everything, and each list selects from them.
const sharedFor = time.Second / 2

// sharedKey identifies requests that share their answers.
type sharedKey struct {
	tenant limit.TenantID
	near   bool // subjects near a limit; otherwise decisions
}

// shared has the answers of the other instances.
type shared struct {
	at   time.Time     // when they were requested
	done chan struct{} // closed when list is complete
	list List          // never changed after that
}

// List returns recent decisions of a tenant, from all instances that answer in time. Those of the
// other instances may be half a second old. It never fails: if Redis is unavailable, and before
// Run, it returns those of this instance.
func (r *Log) List(ctx context.Context, tenant limit.TenantID, q Query) List {
	return r.Merge(tenant, r.Others(ctx, tenant), q)
}

// Others returns the decisions of the other instances that answer in time, for Merge. It waits for
// them.
func (r *Log) Others(ctx context.Context, tenant limit.TenantID) List {
	return r.share(ctx, sharedKey{tenant: tenant})
}

// Merge is List with what the others have answered. It waits for nothing, and takes the processor
// for up to a millisecond.
func (r *Log) Merge(tenant limit.TenantID, others List, q Query) List {
	if q.Most <= 0 || q.Most > recentMost {
		q.Most = recentMost
	}
	others.Decisions = newestFirst(append(selected(others.Decisions, q), r.entries(tenant, q)...), q.Most)
	return others
}

// selected returns a new list of the decisions that meet the conditions.
func selected(list []Decision, q Query) (out []Decision) {
	for i := range list {
		if q.Selects(&list[i]) {
			out = append(out, list[i])
		}
	}
	return out
}

// Near returns subjects that were near a limit and may still be, from all instances that answer in
// time. The list contains only what these instances saw, and each entry has its own time.
func (r *Log) Near(ctx context.Context, tenant limit.TenantID, most int) List {
	out := r.share(ctx, sharedKey{tenant: tenant, near: true})
	out.Near = mostUsedFirst(slices.Concat(out.Near, r.near(tenant)), most)
	return out
}

// share returns the answers of the other instances, which other calls within sharedFor get, too.
// The caller must not change them.
func (r *Log) share(ctx context.Context, key sharedKey) List {
	r.look(key.tenant)
	alone := List{Instances: r.peers.Others() + 1, Answered: 1}
	now := r.clock()
	r.ask.mu.Lock()
	if r.ask.client == nil || alone.Instances == 1 {
		r.ask.mu.Unlock()
		return alone
	}
	s := r.ask.shared[key]
	if s == nil || now.Sub(s.at) >= sharedFor {
		s = &shared{at: now, done: make(chan struct{})}
		if r.ask.shared == nil {
			r.ask.shared = map[sharedKey]*shared{}
		}
		r.ask.shared[key] = s
		// The request does not end with the page that is the first to need it.
		go func(ctx context.Context) {
			defer close(s.done)
			s.list = r.gather(ctx, recentRequest{Tenant: key.tenant, Near: key.near, Query: Query{Most: recentMost}})
		}(context.WithoutCancel(ctx))
		time.AfterFunc(sharedFor, r.forgetShared)
	}
	r.ask.mu.Unlock()
	select {
	case <-s.done:
		return s.list
	case <-ctx.Done():
		return alone
	}
}

// forgetShared frees the memory of answers that are too old.
func (r *Log) forgetShared() {
	now := r.clock()
	r.ask.mu.Lock()
	defer r.ask.mu.Unlock()
	maps.DeleteFunc(r.ask.shared, func(_ sharedKey, s *shared) bool { return now.Sub(s.at) >= sharedFor })
}
