package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/snapshot"
	"weir/internal/tenants"
)

// follower applies changes of the configuration in Postgres to the keys and policies in the memory
// of this instance. It also loads tenants before their first check, so that they are in memory if
// Postgres becomes unavailable: all tenants if they take at most half of the memory for policies,
// else those whose keys were used last.
type follower struct {
	authenticator *tenants.Authenticator
	policies      *check.Policies
	store         *tenants.Store
	platform      limit.TenantID
	log           *slog.Logger

	restored []limit.TenantID // from a snapshot; they are read again

	ready   chan struct{} // closed when the instance may serve checks
	isReady sync.Once

	listed atomic.Bool // the list of tenants was read; tenants created later are added to fresh
	mu     sync.Mutex
	fresh  map[limit.TenantID]bool // to be preloaded
	wake   chan struct{}           // capacity 1; signals that fresh has new entries

	failed map[limit.TenantID]bool // could not be read while Postgres answered; guarded by mu
	again  <-chan time.Time        // when those are read again
	age    func() time.Duration    // since Postgres answered the watcher; negative: it never has
	pause  time.Duration           // passAfter, except in tests
}

const (
	// preloadFor is how long an instance with free memory waits for tenants to load.
	preloadFor = 5 * time.Second
	// preloaders is the number of tenants that are loaded concurrently before the instance is
	// ready. Later it is one, so that the tenants of checks are loaded first.
	preloaders = 3
	// readFailedEvery is how often tenants are tried again that could not be read.
	readFailedEvery = 30 * time.Second
	// passAfter is how long a preloader waits at most after a tenant that could not be read, and at
	// least half of it. If Postgres is available, it answers the watcher twice in that half. After
	// a shorter pause, the same tenant would be read again, which takes as long as a read may.
	passAfter = 2 * time.Second
)

func newFollower(store *tenants.Store, authenticator *tenants.Authenticator, policies *check.Policies, platform limit.TenantID, log *slog.Logger) *follower {
	return &follower{
		authenticator: authenticator, policies: policies, store: store, platform: platform, log: log,
		ready: make(chan struct{}), fresh: map[limit.TenantID]bool{}, wake: make(chan struct{}, 1),
		failed: map[limit.TenantID]bool{}, again: time.Tick(readFailedEvery), age: store.Watcher().Age, pause: passAfter,
	}
}

// run applies changes until ctx ends. It loads the keys first, all at once. If the watcher began
// earlier, it would load them tenant by tenant. What was restored from a snapshot is read again.
func (f *follower) run(ctx context.Context) error {
	f.untilDone(ctx, "keys", f.authenticator.Load)
	for _, tenant := range f.restored {
		f.policies.Reload(tenant)
	}
	if f.restored != nil {
		f.log.Info("the database answers, and the configuration is read from it again")
		f.restored = nil
	}
	var preloading sync.WaitGroup
	preloading.Go(func() { f.preload(ctx) })
	defer preloading.Wait()
	return f.store.Watch(ctx, func(c tenants.Change) { f.changed(ctx, c) })
}

// restore loads the tenants of a snapshot, before run. The instance is ready then, even if the
// platform is not among them: no tenant has a quota until Postgres answers, and run reads it.
func (f *follower) restore(ctx context.Context, file *snapshot.File) {
	f.restored = file.Tenants
	for _, tenant := range file.Tenants {
		keys, version, err := file.Keys(tenant)
		if err != nil {
			f.log.Warn("the keys of a tenant are not restored", "tenant_id", tenant, "error", err)
			continue
		}
		f.authenticator.Restore(tenant, keys, version)
	}
	if file.Has(f.platform) {
		f.read(ctx, f.platform)
	}
	f.readAll(ctx, file.Tenants)
	f.beReady()
}

// changed applies a change that the watcher reports.
func (f *follower) changed(ctx context.Context, c tenants.Change) {
	f.authenticator.Apply(ctx, c)
	switch {
	case c.Gone:
		f.policies.Gone(c.Tenant)
		return
	case c.Reload:
		f.policies.Reload(c.Tenant)
	default:
		f.policies.Changed(c.Tenant, c.PolicyVersion, c.SubjectsVersion)
	}
	if f.listed.Load() && f.policies.HalfFree() {
		f.mu.Lock()
		f.fresh[c.Tenant] = true
		f.mu.Unlock()
		select {
		case f.wake <- struct{}{}:
		default: // already signaled
		}
	}
}

// followFor bounds how long the answer to a write waits for this instance to act on it.
const followFor = 2 * time.Second

// now applies what was just written for a tenant, whether or not the client still waits. If that
// takes longer than followFor, the watcher applies it later.
func (f *follower) now(ctx context.Context, tenant limit.TenantID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), followFor)
	defer cancel()
	change, err := f.store.Versions(ctx, tenant)
	switch {
	case errors.Is(err, tenants.ErrNotFound):
		f.authenticator.Apply(ctx, tenants.Change{Tenant: tenant, Gone: true})
		f.policies.Gone(tenant)
		return
	case err != nil:
		return
	}
	f.authenticator.Apply(ctx, change)
	f.policies.Changed(tenant, change.PolicyVersion, change.SubjectsVersion)
	_ = f.policies.Settle(ctx, tenant) // the watcher applies it later
}

// preload loads tenants until ctx ends: first the existing ones, then new ones, and again those
// that could not be read.
func (f *follower) preload(ctx context.Context) {
	select {
	case <-f.store.Watcher().Ready():
	case <-ctx.Done():
		return
	}
	f.read(ctx, f.platform)
	var all []limit.TenantID
	f.untilDone(ctx, "list of tenants", func(ctx context.Context) error {
		f.listed.Store(true)
		list, err := f.store.TenantsByUse(ctx)
		all = make([]limit.TenantID, len(list))
		for i := range list {
			all[i] = list[i].Tenant
		}
		return err
	})
	timer := time.AfterFunc(preloadFor, f.beReady)
	defer timer.Stop()
	f.readAll(ctx, all)
	f.beReady()
	all = nil
	for {
		select {
		case <-f.wake:
			f.readAll(ctx, f.takeFresh())
		case <-f.again:
			f.readAll(ctx, f.listFailed())
		case <-ctx.Done():
			return
		}
	}
}

func (f *follower) beReady() { f.isReady.Do(func() { close(f.ready) }) }

// takeFresh leaves out tenants that are tried again anyway: each change of such a tenant would
// otherwise make the others wait for another read that fails.
func (f *follower) takeFresh() (fresh []limit.TenantID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for tenant := range f.fresh {
		if !f.failed[tenant] {
			fresh = append(fresh, tenant)
		}
	}
	clear(f.fresh)
	return fresh
}

func (f *follower) listFailed() []limit.TenantID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.failed))
}

// tryAgain notes whether a tenant is to be tried again.
func (f *follower) tryAgain(tenant limit.TenantID, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if again {
		f.failed[tenant] = true
	} else {
		delete(f.failed, tenant)
	}
}

// readAll loads tenants in order, while there is enough memory.
func (f *follower) readAll(ctx context.Context, all []limit.TenantID) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for worker := range preloaders {
		workers.Go(func() {
			for ctx.Err() == nil && f.policies.HalfFree() && (worker == 0 || !f.served()) {
				i := next.Add(1) - 1
				if i >= int64(len(all)) {
					return
				}
				f.read(ctx, all[i])
			}
		})
	}
	workers.Wait()
}

// served reports whether the instance answers checks.
func (f *follower) served() bool {
	select {
	case <-f.ready:
		return true
	default:
		return false
	}
}

// read loads a tenant before its first check. A tenant that cannot be read is passed if Postgres
// answers others: else three of them would keep all others from being loaded. It is tried again
// later, and has one of the places for such tenants from then on, also for its checks.
func (f *follower) read(ctx context.Context, tenant limit.TenantID) {
	retry := f.pause
	if tenant == f.platform {
		retry = firstRetry
	}
	for {
		err := f.policies.Preload(ctx, tenant)
		failed := time.Now()
		switch {
		case err == nil:
			f.tryAgain(tenant, false)
			return
		case ctx.Err() != nil:
			return
		case !errors.Is(err, tenants.ErrUnavailable):
			// The tenant is suspended or invalid. Its checks report that, and no other tenant waits
			// for it.
			f.tryAgain(tenant, false)
			f.log.Warn("tenant not preloaded", "tenant_id", tenant, "error", err)
			return
		}
		f.log.Warn("load failed; retrying", "what", "policy", "tenant_id", tenant, "error", err)
		// Postgres may just have become unavailable: what it has answered before says nothing.
		if retry = pauseBefore(ctx, retry); tenant != f.platform && f.answersSince(failed) {
			f.policies.Failing(tenant)
			f.tryAgain(tenant, true)
			return
		}
	}
}

// answersSince reports whether Postgres has answered the watcher since an instant.
func (f *follower) answersSince(instant time.Time) bool {
	age := f.age()
	return age >= 0 && age <= time.Since(instant)
}

// untilDone calls load until it succeeds or ctx ends.
func (f *follower) untilDone(ctx context.Context, what string, load func(context.Context) error) {
	retry := firstRetry
	for {
		err := load(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		f.log.Warn("load failed; retrying", "what", what, "error", err)
		retry = pauseBefore(ctx, retry)
	}
}

// pauseBefore waits before a retry, until ctx ends, and returns how long to wait before the next.
func pauseBefore(ctx context.Context, retry time.Duration) (next time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(retry/2 + rand.N(retry/2)):
	}
	return min(2*retry, longestRetry)
}
