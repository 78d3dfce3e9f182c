package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/snapshot"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// An instance without enough memory for all tenants is ready when it has loaded the tenants whose
// keys were used last, and the platform, whose rules every check needs.
func TestReadyIfMemoryIsFull(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	actors := make([]tenants.Actor, 16)
	for i := range actors {
		actors[i], _ = d.Tenant(fmt.Sprintf("tenant-%d", i))
		d.Exec(`INSERT INTO subjects (tenant_id, subject, id, version)
			SELECT $1, 'customer' || lpad(n::text, 8, '0'), gen_random_uuid(), 1 FROM generate_series(1, 1000) n`, actors[i].TenantID())
	}
	d.Exec("UPDATE api_keys SET last_used_at = now() - interval '1 day' WHERE tenant_id = $1", actors[3].TenantID())
	d.Exec("UPDATE api_keys SET last_used_at = now() WHERE tenant_id = $1", actors[1].TenantID())

	store := d.Open(tenants.Config{})
	log := slog.New(slog.DiscardHandler)
	policies := check.NewPolicies(store, check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	policies.Limit(500_000) // eight or nine of them need more than half
	following := newFollower(store, tenants.NewAuthenticator(store), policies, platform.ID, log)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- following.run(ctx) }()
	select {
	case <-following.ready:
	case <-time.After(time.Minute):
		require.Fail(t, "not ready")
	}
	stop()
	require.NoError(t, <-ended)
	require.False(t, policies.HalfFree())

	store.Close() // from here on, only loaded tenants can be checked
	for tenant, there := range map[limit.TenantID]bool{
		platform.ID: true, actors[1].TenantID(): true, actors[3].TenantID(): true, actors[0].TenantID(): false,
	} {
		_, err := policies.Get(t.Context(), tenant)
		require.Equal(t, there, err == nil, "%v", err)
	}
}

// A write by this instance to a tenant that it did not know is in force when the write is answered:
// the first key needs no lookup, and a deleted tenant is gone.
func TestFollowNewAndDeletedTenants(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	log := slog.New(slog.DiscardHandler)
	policies := check.NewPolicies(d.Store, check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	defer policies.Close()
	authenticator := tenants.NewAuthenticator(d.Store)
	following := newFollower(d.Store, authenticator, policies, limit.TenantID{}, log) // its watcher does not run
	actor, key := d.Tenant("new")
	following.now(t.Context(), actor.TenantID())
	_, err := authenticator.Authenticate(t.Context(), key.Secret())
	require.NoError(t, err)
	require.Zero(t, authenticator.Lookups())
	_, err = policies.Get(t.Context(), actor.TenantID())
	require.NoError(t, err)

	require.NoError(t, d.Store.DeleteTenant(t.Context(), tenants.AsOperator("test"), "new", tenants.Match{}))
	following.now(t.Context(), actor.TenantID())
	_, err = authenticator.Authenticate(t.Context(), key.Secret())
	require.ErrorIs(t, err, tenants.ErrUnknownKey)
	_, err = policies.Get(t.Context(), actor.TenantID())
	require.ErrorIs(t, err, check.ErrUnknownTenant)
}

// A snapshot without the platform makes the instance ready, too. Postgres, which is not asked for
// it then, may be unavailable for long.
func TestRestoreWithoutPlatform(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	actor, key := d.Tenant("acme")
	platform := limit.TenantID{1}
	ring, err := seal.Parse(seal.NewKey())
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "snapshot")
	log := slog.New(slog.DiscardHandler)
	writer := snapshot.NewWriter(snapshot.WriterOptions{
		Path: path, MaxBytes: 1 << 20, MaxAge: time.Hour, Deployment: snapshot.Deployment{Platform: platform}, Store: d.Store, Ring: ring,
		Clock: time.Now, Logger: log, Registerer: prometheus.NewRegistry(),
	})
	_, err = writer.Write(t.Context())
	require.NoError(t, err)
	file, err := snapshot.Open(path, ring, time.Now(), time.Hour, 1<<20)
	require.NoError(t, err)
	defer file.Close()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	away := &awaySource{asked: cancel}
	policies := check.NewPolicies(snapshot.NewSource(away, file), check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	defer policies.Close()
	following := newFollower(d.Store, tenants.NewAuthenticator(d.Store), policies, platform, log)
	following.restore(ctx, file)
	require.NoError(t, ctx.Err(), "Postgres was asked")
	require.True(t, following.served())
	require.NotNil(t, policies.Loaded(actor.TenantID()))
	_, err = following.authenticator.Authenticate(ctx, key.Secret())
	require.NoError(t, err)
}

// awaySource is Postgres that is unavailable.
type awaySource struct {
	check.PolicySource
	asked func()
}

func (s *awaySource) LoadPolicy(context.Context, limit.TenantID) (check.PolicyData, error) {
	s.asked()
	return check.PolicyData{}, tenants.ErrUnavailable
}

// partlyAway is Postgres that cannot read some tenants in time.
type partlyAway struct {
	check.PolicySource
	mu    sync.Mutex
	fails map[limit.TenantID]int // how often reads still fail
	asked map[limit.TenantID]int
}

func (s *partlyAway) LoadPolicy(ctx context.Context, tenant limit.TenantID) (check.PolicyData, error) {
	s.mu.Lock()
	s.asked[tenant]++
	fails := s.fails[tenant] > 0
	s.fails[tenant]--
	s.mu.Unlock()
	if fails {
		return check.PolicyData{}, tenants.ErrUnavailable
	}
	return s.PolicySource.LoadPolicy(ctx, tenant)
}

// Tenants that cannot be read do not keep the others from being loaded before their first checks,
// nor the instance from becoming ready. They are tried again later.
func TestPreloadPassesTenantsThatFail(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	source := &partlyAway{PolicySource: d.Store, fails: map[limit.TenantID]int{}, asked: map[limit.TenantID]int{}}
	var failing, others []limit.TenantID
	for i := range 2 * preloaders {
		actor, _ := d.Tenant(fmt.Sprintf("tenant-%d", i))
		if i >= preloaders {
			others = append(others, actor.TenantID())
			continue
		}
		failing = append(failing, actor.TenantID())
		source.fails[actor.TenantID()] = math.MaxInt
		d.Exec("UPDATE api_keys SET last_used_at = now() WHERE tenant_id = $1", actor.TenantID()) // they are the first
	}
	log := slog.New(slog.DiscardHandler)
	policies := check.NewPolicies(source, check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	defer policies.Close()
	following := newFollower(d.Store, tenants.NewAuthenticator(d.Store), policies, platform.ID, log)
	again := make(chan time.Time)
	following.again, following.age, following.pause = again, func() time.Duration { return 0 }, firstRetry
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- following.run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	loaded := func(tenants []limit.TenantID) func() bool {
		return func() bool {
			return !slices.ContainsFunc(tenants, func(tenant limit.TenantID) bool { return policies.Loaded(tenant) == nil })
		}
	}
	require.Eventually(t, loaded(others), time.Minute, time.Millisecond)
	<-following.ready
	for _, tenant := range failing {
		require.Nil(t, policies.Loaded(tenant))
	}
	source.mu.Lock()
	clear(source.fails)
	source.mu.Unlock()
	again <- time.Time{}
	require.Eventually(t, loaded(failing), time.Minute, time.Millisecond)
}

// While Postgres does not answer at all, no tenant is passed.
func TestPreloadWaitsForPostgres(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	actor, _ := d.Tenant("acme")
	source := &partlyAway{PolicySource: d.Store, fails: map[limit.TenantID]int{actor.TenantID(): 2}, asked: map[limit.TenantID]int{}}
	log := slog.New(slog.DiscardHandler)
	policies := check.NewPolicies(source, check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	defer policies.Close()
	following := newFollower(d.Store, tenants.NewAuthenticator(d.Store), policies, limit.TenantID{}, log)
	following.pause = firstRetry
	for _, age := range []time.Duration{-1, time.Hour} { // never, and long ago
		following.age = func() time.Duration { return age }
		following.readAll(t.Context(), []limit.TenantID{actor.TenantID()})
		require.NotNil(t, policies.Loaded(actor.TenantID()))
		require.Equal(t, 3, source.asked[actor.TenantID()])
		policies.Gone(actor.TenantID())
		source.fails[actor.TenantID()], source.asked[actor.TenantID()] = 2, 0
	}
	require.Empty(t, following.listFailed())
}

// A tenant that is passed several times is tried again once, and not with every change of it.
// After it could be read, it is not.
func TestPassedTenantIsTriedAgainOnce(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	actor, _ := d.Tenant("acme")
	tenant := actor.TenantID()
	source := &partlyAway{PolicySource: d.Store, fails: map[limit.TenantID]int{tenant: math.MaxInt}, asked: map[limit.TenantID]int{}}
	log := slog.New(slog.DiscardHandler)
	policies := check.NewPolicies(source, check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	defer policies.Close()
	following := newFollower(d.Store, tenants.NewAuthenticator(d.Store), policies, limit.TenantID{}, log)
	following.age, following.pause = func() time.Duration { return 0 }, firstRetry
	for range 3 {
		following.readAll(t.Context(), []limit.TenantID{tenant})
	}
	require.Equal(t, []limit.TenantID{tenant}, following.listFailed())
	following.readAll(t.Context(), []limit.TenantID{tenant})
	following.fresh[tenant] = true
	require.Empty(t, following.takeFresh())

	source.fails[tenant] = 0
	following.readAll(t.Context(), []limit.TenantID{tenant})
	require.NotNil(t, policies.Loaded(tenant))
	require.Empty(t, following.listFailed())
}

// heldReads is Postgres whose reads of some tenants fail, or last until they are released. They are
// released, too, when three of them have begun, so that a test does not wait for ever.
type heldReads struct {
	check.PolicySource
	mu      sync.Mutex
	fails   map[limit.TenantID]bool
	held    map[limit.TenantID]bool
	begun   int
	entered chan struct{}
	release func()
	end     chan struct{}
}

func (s *heldReads) LoadPolicy(ctx context.Context, tenant limit.TenantID) (check.PolicyData, error) {
	s.mu.Lock()
	fails, held := s.fails[tenant], s.held[tenant]
	if held {
		if s.begun++; s.begun == preloaders {
			s.release()
		}
		s.entered <- struct{}{}
	}
	s.mu.Unlock()
	if held {
		<-s.end
	}
	if fails || held {
		return check.PolicyData{}, tenants.ErrUnavailable
	}
	return s.PolicySource.LoadPolicy(ctx, tenant)
}

// Tenants that were passed have places of their own for the next reads, although no other tenant is
// read meanwhile. So they do not hold all places, and a tenant that can be read does not wait.
func TestPassedTenantsHoldNoPlacesOfOthers(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	good, _ := d.Tenant("good")
	end := make(chan struct{})
	source := &heldReads{
		PolicySource: d.Store, fails: map[limit.TenantID]bool{}, held: map[limit.TenantID]bool{}, entered: make(chan struct{}, 64),
		end: end, release: sync.OnceFunc(func() { close(end) }),
	}
	var failing []limit.TenantID
	for i := range 2 * preloaders {
		actor, _ := d.Tenant(fmt.Sprintf("failing-%d", i))
		failing = append(failing, actor.TenantID())
		source.fails[actor.TenantID()] = true
	}
	log := slog.New(slog.DiscardHandler)
	policies := check.NewPolicies(source, check.NewKeys([16]byte{1}), log, check.NewMetrics(prometheus.NewRegistry()))
	defer policies.Close()
	defer source.release()
	following := newFollower(d.Store, tenants.NewAuthenticator(d.Store), policies, limit.TenantID{}, log)
	following.age, following.pause = func() time.Duration { return 0 }, firstRetry
	following.readAll(t.Context(), failing)
	require.Len(t, following.listFailed(), len(failing))

	for _, tenant := range failing {
		source.held[tenant] = true
	}
	var reads sync.WaitGroup
	for _, tenant := range failing {
		reads.Go(func() { _ = policies.Preload(t.Context(), tenant) })
	}
	for range preloaders - 1 {
		<-source.entered
	}
	require.NoError(t, policies.Preload(t.Context(), good.TenantID()))
	source.mu.Lock()
	require.Equal(t, preloaders-1, source.begun, "the others wait for one of these")
	source.mu.Unlock()
	source.release()
	reads.Wait()
}
