package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
)

// creditFleet is several instances with one Postgres and one Redis.
type creditFleet struct {
	t         *testing.T
	d         *tenantstest.Database
	a         tenants.Actor
	keys      check.Keys
	instances []*creditInstance
}

type creditInstance struct {
	engine   *redisengine.Engine
	policies *check.Policies
	checker  *check.Checker
	keeper   *creditKeeper
}

func newCreditFleet(t *testing.T, instances int) *creditFleet {
	t.Helper()
	f := &creditFleet{t: t, d: tenantstest.New(t)}
	f.a, _ = f.d.Tenant("acme")
	f.keys = check.NewKeys(uuid.New()) // keys of no other test
	for range instances {
		client, err := redisengine.NewClient(testenv.RedisURL(t), redisengine.WithTimeout(testenv.RedisTimeout))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		registry := prometheus.NewRegistry()
		metrics := check.NewMetrics(registry)
		i := &creditInstance{engine: redisengine.New(client, redisengine.Options{Deadline: testenv.RedisTimeout})}
		stack := engine.NewStack(engine.StackOptions{
			Shared: i.engine, Local: engine.NewMemory(engine.MemoryOptions{}), Share: func() engine.Share { return engine.Share{Count: 1} }, Metrics: engine.NewMetrics(registry),
		})
		t.Cleanup(stack.Close)
		i.policies = check.NewPolicies(f.d.Store, f.keys, slog.New(slog.DiscardHandler), metrics)
		i.keeper = newCreditKeeper(f.d.Store, f.keys, i.engine, registry, slog.New(slog.DiscardHandler))
		i.checker = check.NewChecker(check.CheckerOptions{Keys: f.keys, Engine: stack, Metrics: metrics, Credits: i.keeper.decided})
		f.instances = append(f.instances, i)
	}
	return f
}

func (f *creditFleet) rule(slug string, units int64) {
	f.t.Helper()
	r := limit.NewRule(slug)
	r.Algorithm, r.Limit, r.Window = limit.FixedWindow, units, limit.Window{Duration: limit.Duration{Text: "365d", MS: 365 * 86_400_000}}
	_, err := f.d.Store.CreateRule(f.t.Context(), f.a, r)
	require.NoError(f.t, err)
}

func (f *creditFleet) grant(n tenants.NewCredits) tenants.Credits {
	f.t.Helper()
	c, created, err := f.d.Store.GrantCredits(f.t.Context(), f.a, "ada", n)
	require.NoError(f.t, err)
	require.True(f.t, created)
	return c
}

// settle settles until nothing is left to settle.
func (f *creditFleet) settle() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		done, _, err := f.d.Store.SweepCredits(f.t.Context(), f.keys, f.instances[0].engine, tenants.CreditsSweep{})
		require.NoError(f.t, err)
		return done == tenants.CreditsSettled{}
	}, time.Minute, time.Millisecond)
}

func (f *creditFleet) check(instance int, cost int64) check.RuleDecision {
	f.t.Helper()
	i := f.instances[instance]
	policy, err := i.policies.Get(context.Background(), f.a.TenantID())
	require.NoError(f.t, err)
	d, err := i.checker.Check(context.Background(), policy, []check.Request{{Subject: "ada", Resource: "default", Cost: cost}})
	require.NoError(f.t, err)
	require.False(f.t, d[0].Degraded)
	return d[0].Rules[0]
}

func (f *creditFleet) spent() map[uuid.UUID]int64 {
	f.t.Helper()
	out := map[uuid.UUID]int64{}
	for page := (tenants.Page{Limit: 100}); ; {
		list, next, err := f.d.Store.Credits(f.t.Context(), f.a, "ada", page)
		require.NoError(f.t, err)
		for _, c := range list {
			out[c.ID] = c.Spent
		}
		if page.After = next; next == "" {
			return out
		}
	}
}

// Three instances with many callers allow exactly the units of the window and the credits, and
// spend no credit while the window has units left. One of the instances is killed in between. What
// it has spent is still stored in Postgres.
func TestCreditsOfAFleet(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 3)
	f.rule("api", 100)
	soon := time.Now().Add(time.Hour)
	never := f.grant(tenants.NewCredits{Rule: "api", Units: 150})
	first := f.grant(tenants.NewCredits{Rule: "api", Units: 83, ExpiresAt: &soon})
	f.settle()

	var admitted, paid, order atomic.Int64
	var callers sync.WaitGroup
	for instance := range f.instances {
		for caller := range 16 {
			callers.Go(func() {
				for i := range 12 {
					if instance == 2 && i == 6 {
						return // this instance is gone
					}
					cost := int64(1 + (caller+i)%2)
					r := f.check(instance, cost)
					if r.CreditsSpent > 0 && r.Remaining > 0 {
						order.Add(1)
					}
					if r.Allowed {
						admitted.Add(cost)
						paid.Add(r.CreditsSpent)
					}
				}
			})
		}
	}
	callers.Wait()
	for range 2 { // what the last callers have left, if any
		if r := f.check(0, 1); r.Allowed {
			admitted.Add(1)
			paid.Add(r.CreditsSpent)
		}
	}
	require.Zero(t, order.Load(), "credits spent while the window had units left")
	require.EqualValues(t, 333, admitted.Load())
	require.EqualValues(t, 233, paid.Load())
	f.settle()
	require.Equal(t, map[uuid.UUID]int64{first.ID: 83, never.ID: 150}, f.spent())
}

// An instance stores what its own checks have spent, and does nothing for tenants that spend
// nothing.
func TestCreditsOfSpenders(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 2)
	f.rule("api", 1)
	grant := f.grant(tenants.NewCredits{Rule: "api", Units: 10})
	f.settle()
	settle := func(instance int) tenants.CreditsSettled {
		done, err := f.instances[instance].keeper.settle(t.Context())
		require.NoError(t, err)
		return done
	}
	f.check(0, 1)
	require.Zero(t, settle(0), "the window had units left")
	require.EqualValues(t, 3, f.check(0, 3).CreditsSpent)
	require.Zero(t, settle(1), "another instance decided it")
	require.Equal(t, tenants.CreditsSettled{Settled: 1}, settle(0))
	require.EqualValues(t, 3, f.spent()[grant.ID])
	require.Zero(t, settle(0))
}

// unread are counters that cannot be reached.
type unread struct{ engine.CreditStore }

func (unread) SpentCredits(_ context.Context, outboxes []string, _ int) ([][]limit.Spent, []error) {
	err := fmt.Errorf("read spent credits: %w", &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded})
	return make([][]limit.Spent, len(outboxes)), slices.Repeat([]error{err}, len(outboxes))
}

// unreadOf are counters of which one outbox cannot be reached.
type unreadOf struct {
	engine.CreditStore
	outbox string
}

func (u unreadOf) SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, []error) {
	found, errs := u.CreditStore.SpentCredits(ctx, outboxes, most)
	if i := slices.Index(outboxes, u.outbox); i >= 0 {
		found[i], errs[i] = nil, os.ErrDeadlineExceeded
	}
	return found, errs
}

// Only the tenants whose credits are not settled are settled again.
func TestSpendersThatAreNotSettled(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 1)
	other, _ := f.d.Tenant("other")
	k := f.instances[0].keeper
	k.counters = unreadOf{k.counters, f.keys.CreditsOutboxes(f.a.TenantID(), 1)[0]}
	for _, of := range []tenants.Actor{f.a, other} {
		k.spenders.Store(of.TenantID(), struct{}{})
	}
	_, err := k.settle(t.Context())
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, again := k.spenders.Load(f.a.TenantID())
	require.True(t, again)
	require.Equal(t, 1, k.spenders.Size())
}

// If Redis is unavailable, the log does not say that it is Postgres, and the reverse.
func TestCreditsLogWhatIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 1)
	f.rule("api", 1)
	f.grant(tenants.NewCredits{Rule: "api", Units: 10})
	var text bytes.Buffer
	k := newCreditKeeper(f.d.Store, f.keys, unread{f.instances[0].engine}, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&text, nil)))
	require.False(t, k.round(t.Context()))
	require.Contains(t, text.String(), "the counters cannot be reached")
	require.NotContains(t, text.String(), "Postgres")
	require.NotContains(t, text.String(), "database")

	text.Reset()
	k = newCreditKeeper(f.d.Store, f.keys, f.instances[0].engine, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&text, nil)))
	f.d.Store.Close()
	require.False(t, k.round(t.Context()))
	require.Contains(t, text.String(), "the database is not available")
	require.NotContains(t, text.String(), "counters")
}

// A server stores what was spent within a second, in the order of expiry, and again after Redis has
// lost what it knew: nothing that was spent comes back.
func TestCreditsAfterALoss(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 1)
	f.rule("api", 1)
	soon := time.Now().Add(time.Hour)
	never := f.grant(tenants.NewCredits{Rule: "api", Units: 10})
	first := f.grant(tenants.NewCredits{Rule: "api", Units: 3, ExpiresAt: &soon})
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { f.instances[0].keeper.run(ctx) }) // it also opens new grants
	defer work.Wait()
	defer stop()
	require.Eventually(t, func() bool { return f.check(0, 0).Credits == 13 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 4, f.check(0, 5).CreditsSpent)
	require.Eventually(t, func() bool {
		spent := f.spent()
		return spent[first.ID] == 3 && spent[never.ID] == 1
	}, time.Minute, time.Millisecond)

	client, err := redisengine.NewClient(testenv.RedisURL(t), redisengine.WithTimeout(testenv.RedisTimeout))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Del(ctx, f.keys.CreditsKey(f.a.TenantID(), 1, "ada", "api")).Err())
	lost := f.check(0, 2)
	require.False(t, lost.Allowed)
	require.LessOrEqual(t, lost.RetryAfterMS, limit.OpenedWithinMS)
	work.Go(func() { f.instances[0].keeper.open(ctx) })
	require.Eventually(t, func() bool { return f.check(0, 0).Credits == 9 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 9, f.check(0, 9).CreditsSpent)
	require.False(t, f.check(0, 1).Allowed)
}

// Grants come and end while instances open and settle them at the same time, so that some are
// removed from Redis. No unit is spent twice, and Postgres has each that was.
func TestCreditsOfManyGrants(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 2)
	f.rule("api", 1)
	f.check(0, 1)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for i := range f.instances {
		k := f.instances[i].keeper
		work.Go(func() { k.open(ctx) })
		work.Go(func() {
			for ctx.Err() == nil {
				_, _ = k.settle(ctx)
				_, next, _ := k.store.SweepCredits(ctx, k.keys, k.counters, k.swept)
				k.swept = next
			}
		})
		work.Go(func() {
			for ctx.Err() == nil {
				_, _ = k.store.OpenCredits(ctx, k.keys, k.counters, f.a.TenantID(), tenants.CreditsOf{Subject: "ada", Rule: "api"})
			}
		})
	}
	var paid atomic.Int64
	granted := int64(0)
	for range 20 {
		for n := range int64(10) {
			f.grant(tenants.NewCredits{Rule: "api", Units: 1 + n%3})
			granted += 1 + n%3
		}
		change, err := f.d.Store.Versions(ctx, f.a.TenantID())
		require.NoError(t, err)
		var callers sync.WaitGroup
		for i := range f.instances {
			f.instances[i].policies.Changed(f.a.TenantID(), change.PolicyVersion, change.SubjectsVersion)
			callers.Go(func() {
				for ends := time.Now().Add(time.Minute); paid.Load() < granted && time.Now().Before(ends); {
					if r := f.check(i, 1); r.Allowed {
						paid.Add(r.CreditsSpent)
					}
				}
			})
		}
		callers.Wait()
		require.Equal(t, granted, paid.Load(), "all units, and no more")
	}
	for range 200 { // none comes back
		require.False(t, f.check(1, 1).Allowed)
	}
	stop()
	work.Wait()
	// Transactions that stop has cut off may hold the lock and rows for a moment, and then there is
	// nothing to settle for others.
	stored := int64(0)
	require.Eventually(t, func() bool {
		f.settle()
		stored = 0
		for _, units := range f.spent() {
			stored += units
		}
		return stored >= granted
	}, time.Minute, time.Millisecond)
	require.Equal(t, granted, stored)
}

// Redis returns with an older dump while no instance is there to see it. What a grant gives a
// second time is what checks spend until the next round of the job.
func TestCreditsOfAnOlderDumpWithoutWitness(t *testing.T) {
	t.Parallel()
	f := newCreditFleet(t, 1)
	f.rule("api", 1)
	grant := f.grant(tenants.NewCredits{Rule: "api", Units: 100})
	f.settle()
	require.EqualValues(t, 10, f.check(0, 11).CreditsSpent)
	client, err := redisengine.NewClient(testenv.RedisURL(t), redisengine.WithTimeout(testenv.RedisTimeout))
	require.NoError(t, err)
	defer client.Close()
	key := f.keys.CreditsKey(f.a.TenantID(), 1, "ada", "api")
	dump, err := client.Dump(t.Context(), key).Result()
	require.NoError(t, err)
	require.EqualValues(t, 60, f.check(0, 60).CreditsSpent)
	f.settle()
	require.EqualValues(t, 70, f.spent()[grant.ID])

	require.NoError(t, client.RestoreReplace(t.Context(), key, 0, dump).Err())
	require.EqualValues(t, 88, f.check(0, 2).Credits, "2 units come back")
	done, err := f.instances[0].keeper.settle(t.Context())
	require.NoError(t, err)
	require.Equal(t, tenants.CreditsSettled{Settled: 1, Reopened: 1}, done)
	require.EqualValues(t, 30, f.check(0, 0).Credits)
	require.False(t, f.check(0, 31).Allowed)
	require.EqualValues(t, 30, f.check(0, 30).CreditsSpent)
	f.settle()
	require.EqualValues(t, 100, f.spent()[grant.ID])
}

// A tenant with very many subjects whose grants are to be opened keeps those of another one waiting
// for no more than its turn, also if its own are slow. They are opened in few batches.
func TestMissedCreditsTakeTurns(t *testing.T) {
	t.Parallel()
	const subjects = 1000
	many, other := uuid.New(), uuid.New()
	k := newCreditKeeper(nil, check.NewKeys([16]byte{3}), nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	let, opened := make(chan struct{}), make(chan struct{})
	var left sync.WaitGroup
	left.Add(subjects)
	var mu sync.Mutex
	batches, seen := 0, map[tenants.CreditsOf]bool{}
	k.opens = func(_ context.Context, tenant limit.TenantID, of []tenants.CreditsOf) (int, error) {
		if tenant == other {
			close(opened)
			return 1, nil
		}
		<-let
		mu.Lock()
		defer mu.Unlock()
		batches++
		for _, name := range of {
			if !seen[name] {
				left.Done()
			}
			seen[name] = true
		}
		return len(of), nil
	}
	missed := func(tenant limit.TenantID, subject int) {
		k.decided(tenant, fmt.Sprintf("user_%d", subject), &check.RuleDecision{Rule: &limit.Rule{Slug: "api"}, Unopened: true})
	}
	for range 2 { // many checks miss the same credits
		for i := range subjects {
			missed(many, i)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	work.Go(func() { k.open(ctx) })
	missed(other, 0)
	<-opened
	close(let)
	left.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, subjects/openedAtOnce, batches)
}
