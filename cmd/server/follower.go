package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"weir/internal/check"
	"weir/internal/tenants"
)

// follower carries changes of the configuration from Postgres to what this instance has in
// memory. It also reads every tenant ahead of its first check, so that an outage of Postgres
// finds all of them loaded.
type follower struct {
	authenticator *tenants.Authenticator
	policies      *check.Policies
	store         *tenants.Store
	watcher       *tenants.Watcher
	log           *slog.Logger

	loaded chan struct{} // closed when all tenants that there were at start are loaded

	mu    sync.Mutex
	known map[check.TenantID]bool
	fresh []check.TenantID // not loaded yet
	wake  chan struct{}    // of capacity 1: fresh has grown
}

func newFollower(store *tenants.Store, authenticator *tenants.Authenticator, policies *check.Policies, log *slog.Logger) *follower {
	return &follower{
		authenticator: authenticator, policies: policies, store: store, watcher: store.Watcher(), log: log,
		loaded: make(chan struct{}), known: map[check.TenantID]bool{}, wake: make(chan struct{}, 1),
	}
}

// changed returns what the watcher is to call.
func (f *follower) changed(ctx context.Context) func(tenants.Change) {
	return func(c tenants.Change) {
		f.authenticator.Apply(ctx, c)
		switch {
		case c.Gone:
			f.policies.Gone(c.Tenant)
		case c.Reload:
			f.policies.Changed(c.Tenant, -1, -1) // differs from every version
		default:
			f.policies.Changed(c.Tenant, c.PolicyVersion, c.SubjectsVersion)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if c.Gone {
			delete(f.known, c.Tenant)
		} else if !f.known[c.Tenant] {
			f.known[c.Tenant] = true
			f.fresh = append(f.fresh, c.Tenant)
			select {
			case f.wake <- struct{}{}:
			default: // it is awake, or about to be
			}
		}
	}
}

// followFor bounds how long the answer to a write waits for this instance to act on it.
const followFor = 500 * time.Millisecond

// now takes over what was just written for a tenant, whether or not the client still waits, or leaves it
// to the watcher where that takes longer than followFor.
func (f *follower) now(ctx context.Context, tenant check.TenantID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), followFor)
	defer cancel()
	change, err := f.store.Versions(ctx, tenant)
	if err != nil {
		return
	}
	f.authenticator.Apply(ctx, change)
	f.policies.Changed(tenant, change.PolicyVersion, change.SubjectsVersion)
	_ = f.policies.Settle(ctx, tenant) // the watcher will see to it
}

// preload reads tenants until ctx ends: first all that there are, then new ones as they come.
func (f *follower) preload(ctx context.Context) {
	select {
	case <-f.watcher.Ready():
	case <-ctx.Done():
		return
	}
	f.untilDone(ctx, "keys", f.authenticator.Load)
	f.loadFresh(ctx)
	close(f.loaded)
	for {
		select {
		case <-f.wake:
			f.loadFresh(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (f *follower) loadFresh(ctx context.Context) {
	f.mu.Lock()
	fresh := f.fresh
	f.fresh = nil
	f.mu.Unlock()
	for _, tenant := range fresh {
		f.untilDone(ctx, "policy", func(ctx context.Context) error {
			_, err := f.policies.Get(ctx, tenant)
			if err != nil && !errors.Is(err, tenants.ErrUnavailable) {
				// suspended, or broken: its checks will say so, and nobody else is to wait for it
				f.log.Warn("tenant is not loaded ahead", "tenant_id", tenant, "error", err)
				return nil
			}
			return err
		})
	}
}

// untilDone calls load until it succeeds or ctx ends.
func (f *follower) untilDone(ctx context.Context, what string, load func(context.Context) error) {
	retry := firstRetry
	for {
		err := load(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		f.log.Warn("cannot be loaded; trying again", "what", what, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry/2 + rand.N(retry/2)):
		}
		retry = min(2*retry, longestRetry)
	}
}
