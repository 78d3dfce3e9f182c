package check

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/internal/limit"
)

// fakeSource is a configuration store that a test can make fail. The real one, in Postgres, is
// tested with this cache in the tests of the running system.
type fakeSource struct {
	mu       sync.Mutex
	data     map[limit.TenantID]PolicyData
	subjects []SubjectData
	subjAt   int64
	gone     bool
	err      error
	fault    any // LoadPolicy panics with it, once
	loads    int
	entered  chan struct{} // if set, LoadPolicy reports that it began ...
	release  chan struct{} // ... and waits
}

func (s *fakeSource) LoadPolicy(_ context.Context, t limit.TenantID) (PolicyData, error) {
	s.mu.Lock()
	data, known := s.data[t]
	err, entered, release := s.err, s.entered, s.release
	fault := s.fault
	s.fault = nil
	s.loads++
	s.mu.Unlock()
	if fault != nil {
		panic(fault)
	}
	if entered != nil {
		entered <- struct{}{}
		<-release
	}
	if err == nil && !known {
		err = ErrUnknownTenant
	}
	return data, err
}

func (s *fakeSource) ListSubjects(_ context.Context, _ limit.TenantID, _ string, each func(SubjectData)) (int64, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.subjects {
		each(d)
	}
	return s.subjAt, false, s.err
}

func (s *fakeSource) ChangedSubjects(_ context.Context, _ limit.TenantID, _ int64, _ string, each func(SubjectData)) (int64, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return 0, "", ErrHistoryGone
	}
	for _, d := range s.subjects {
		each(d)
	}
	return s.subjAt, "", s.err
}

func (s *fakeSource) set(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }

func newPolicies(source PolicySource) (*Policies, *Metrics) {
	m := NewMetrics(prometheus.NewRegistry())
	return NewPolicies(source, NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), m), m
}

func eventually(t *testing.T, f func() bool) {
	t.Helper()
	require.Eventually(t, f, time.Minute, time.Millisecond)
}

// A change takes effect. If a configuration is invalid or unreadable, the last valid one stays
// active. A loaded tenant never waits for the source.
func TestPoliciesFollowTheirSource(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{tenant: {Version: 1, Rules: []limit.Rule{minute("api", 1)}}}, subjAt: 1}
	p, metrics := newPolicies(source)
	get := func() *Policy {
		policy, err := p.Get(ctx, tenant)
		require.NoError(t, err)
		return policy
	}
	require.Equal(t, int64(1), get().Version())
	_, err := p.Get(ctx, uuid.New())
	require.ErrorIs(t, err, ErrUnknownTenant)

	source.set(func() { source.data[tenant] = PolicyData{Version: 2, Rules: []limit.Rule{minute("api", 2)}} })
	p.Changed(tenant, 2, 1)
	eventually(t, func() bool { return get().Version() == 2 })

	source.set(func() { source.data[tenant] = PolicyData{Version: 3, Rules: []limit.Rule{minute("api", 0)}} })
	p.Changed(tenant, 3, 1)
	eventually(t, func() bool { return testutil.ToFloat64(metrics.policyErrors) == 1 })
	require.Equal(t, int64(2), get().Version())

	source.set(func() { source.err = errors.New("unavailable") })
	p.Changed(tenant, 4, 1)
	require.Equal(t, int64(2), get().Version())
	source.set(func() {
		source.err, source.data[tenant] = nil, PolicyData{Version: 4, Rules: []limit.Rule{minute("api", 4)}}
	})
	eventually(t, func() bool { return get().Version() == 4 })

	source.set(func() { source.data[tenant] = PolicyData{Version: 2} })
	p.Changed(tenant, 2, 1) // the restore of a backup: versions go back
	eventually(t, func() bool { return get().Version() == 2 })

	loads := 0
	source.set(func() { loads = source.loads })
	p.Changed(tenant, 2, 1)
	source.set(func() { require.Equal(t, loads, source.loads, "known versions are not read again") })
	p.Gone(tenant)
	source.set(func() { delete(source.data, tenant) })
	_, err = p.Get(ctx, tenant)
	require.ErrorIs(t, err, ErrUnknownTenant)
}

// Registered subjects are updated one by one, or all of them if the history is no longer available.
func TestPoliciesFollowSubjects(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{
		data:     map[limit.TenantID]PolicyData{tenant: {Version: 1}},
		subjects: []SubjectData{{Subject: "a"}, {Subject: "b"}}, subjAt: 1,
	}
	p, _ := newPolicies(source)
	has := func(subject string) func() bool {
		return func() bool {
			policy, err := p.Get(ctx, tenant)
			require.NoError(t, err)
			_, ok := policy.subjects.Load(subject)
			return ok
		}
	}
	require.True(t, has("a")())
	source.set(func() {
		source.subjects, source.subjAt = []SubjectData{{Subject: "c"}, {Subject: "a", Deleted: true}}, 2
	})
	p.Changed(tenant, 1, 2)
	eventually(t, has("c"))
	eventually(t, func() bool { return !has("a")() })
	require.True(t, has("b")())
	source.set(func() { source.subjects, source.subjAt, source.gone = []SubjectData{{Subject: "d"}}, 3, true })
	p.Changed(tenant, 1, 3)
	eventually(t, has("d"))
	require.False(t, has("b")() || has("c")())
}

// Rules that do not compile do not keep subjects from their changes: a customer who has paid, or
// who was blocked, would otherwise wait for a valid rule.
func TestSubjectsFollowBesideAnInvalidPolicy(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{
		data:     map[limit.TenantID]PolicyData{tenant: {Version: 1, Rules: []limit.Rule{minute("api", 1)}}},
		subjects: []SubjectData{{Subject: "a"}}, subjAt: 1,
	}
	p, metrics := newPolicies(source)
	policy, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	has := func(subject string) bool {
		policy, err = p.Get(ctx, tenant)
		require.NoError(t, err)
		require.Equal(t, int64(1), policy.Version())
		_, ok := policy.subjects.Load(subject)
		return ok
	}
	source.set(func() {
		source.data[tenant] = PolicyData{Version: 2, Rules: []limit.Rule{minute("api", 0)}}
		source.subjects, source.subjAt = []SubjectData{{Subject: "b"}}, 2
	})
	p.Changed(tenant, 2, 2)
	require.NoError(t, p.Settle(ctx, tenant))
	require.True(t, has("a") && has("b"))
	require.InDelta(t, 1, testutil.ToFloat64(metrics.policyErrors), 0)

	source.set(func() { source.subjects = []SubjectData{{Subject: "c"}} })
	p.Reload(tenant)
	require.NoError(t, p.Settle(ctx, tenant))
	require.True(t, has("c") && !has("a") && !has("b"), "all of another history")
	require.InDelta(t, 2, testutil.ToFloat64(metrics.policyErrors), 0)
}

// A change that arrives during the first load is not lost, and all callers that wait for a tenant
// share one load.
func TestChangeDuringFirstLoad(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{
		data:    map[limit.TenantID]PolicyData{tenant: {Version: 1}},
		entered: make(chan struct{}), release: make(chan struct{}),
	}
	p, _ := newPolicies(source)
	got := make(chan *Policy, 2)
	for range 2 {
		go func() { policy, _ := p.Get(ctx, tenant); got <- policy }()
	}
	<-source.entered
	source.set(func() { source.data[tenant] = PolicyData{Version: 2} })
	p.Changed(tenant, 2, 0)
	source.release <- struct{}{}
	require.NotNil(t, <-got)
	<-source.entered
	source.release <- struct{}{}
	eventually(t, func() bool { policy, err := p.Get(ctx, tenant); return err == nil && policy.Version() == 2 })
	require.NotNil(t, <-got)
}

// After a write, the writer waits until the write is active, but not longer than ctx allows.
func TestSettle(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{tenant: {Version: 1}}}
	p, _ := newPolicies(source)
	require.NoError(t, p.Settle(ctx, tenant), "a tenant that is not loaded has nothing to wait for")
	_, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	require.NoError(t, p.Settle(ctx, tenant))
	source.set(func() {
		source.data[tenant] = PolicyData{Version: 2}
		source.entered, source.release = make(chan struct{}), make(chan struct{})
	})
	p.Changed(tenant, 2, 0)
	<-source.entered
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, p.Settle(ended, tenant), context.Canceled)
	source.release <- struct{}{}
	require.NoError(t, p.Settle(ctx, tenant))
	policy, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, int64(2), policy.Version())
}

// A panic of the source is passed on to callers that wait for the load. In the background, the last
// valid policy stays active, and the load is retried.
func TestPanicWhileAPolicyIsRead(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{tenant: {Version: 1}}, fault: "broken"}
	p, metrics := newPolicies(source)
	var log bytes.Buffer
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	var fault any
	func() {
		defer func() { fault = recover() }()
		_, _ = p.Get(ctx, tenant)
	}()
	var panicked *PanicError
	require.ErrorAs(t, fault.(error), &panicked)
	require.Equal(t, "broken", panicked.Value)
	require.Contains(t, string(panicked.Stack), "LoadPolicy")
	source.set(func() { source.fault = "broken" })
	require.ErrorAs(t, p.Preload(ctx, tenant), &panicked)
	require.Zero(t, p.tenants.Size(), "the tenant is not loaded")

	_, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	source.set(func() { source.data[tenant], source.fault = PolicyData{Version: 2}, "broken again" })
	p.Changed(tenant, 2, 0)
	require.NoError(t, p.Settle(ctx, tenant))
	policy, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, int64(2), policy.Version())
	require.EqualValues(t, 1, testutil.ToFloat64(metrics.policyErrors))
	require.Contains(t, log.String(), "broken again")
	require.Contains(t, log.String(), "LoadPolicy")
}

// A write that arrives during the first load waits for it. The load may have read before the write,
// and its policy must be replaced before the writer's next check.
func TestSettleDuringFirstLoad(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{
		data:    map[limit.TenantID]PolicyData{tenant: {Version: 1}},
		entered: make(chan struct{}), release: make(chan struct{}),
	}
	p, _ := newPolicies(source)
	loaded := make(chan error, 1)
	go func() { loaded <- p.Preload(ctx, tenant) }()
	<-source.entered // version 1 was read, and is not active yet
	source.set(func() { source.data[tenant] = PolicyData{Version: 2} })
	p.Changed(tenant, 2, 0)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, p.Settle(ended, tenant), context.Canceled, "there is a load to wait for")
	settled := make(chan error, 1)
	go func() { settled <- p.Settle(ctx, tenant) }()
	source.release <- struct{}{}
	<-source.entered
	require.NoError(t, <-loaded)
	source.release <- struct{}{}
	require.NoError(t, <-settled)
	policy, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, int64(2), policy.Version())
}

// A check may join a load that is about to end. If the tenant was evicted and changed after that
// load read it, the check loads it again.
func TestLoadBeforeAnEviction(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{tenant: {Version: 1}}}
	p, _ := newPolicies(source)
	// Loading reads the clock when it begins, when the policy becomes active, and at its end.
	asked, ending, end := 0, make(chan struct{}), make(chan struct{})
	p.clock = func() time.Time {
		if asked++; asked == 3 {
			close(ending)
			<-end
		}
		return time.Now()
	}
	loaded := make(chan error, 1)
	go func() { loaded <- p.Preload(ctx, tenant) }()
	<-ending
	p.clock = time.Now
	e, ok := p.tenants.Load(tenant)
	require.True(t, ok)
	require.True(t, p.remove(tenant, e))
	source.set(func() { source.data[tenant] = PolicyData{Version: 2} })
	p.Changed(tenant, 2, 0)
	require.NoError(t, p.Settle(ctx, tenant))

	result, own := p.fetch(tenant) // joins the load, as a check would now
	checked := make(chan *Policy, 1)
	go func() {
		policy, err := p.Get(ctx, tenant)
		if err != nil {
			policy = nil
		}
		checked <- policy
	}()
	eventually(t, func() bool { return p.waiting.Load() == 1 })
	close(end)
	require.NoError(t, (<-result).Err)
	require.False(t, *own)
	require.NoError(t, <-loaded)
	require.Equal(t, int64(2), (<-checked).Version())
}

// Close ends every goroutine: one that reads, one that waits in a read queue, one that waits to
// retry, and a load that waits for its next page.
func TestPoliciesClose(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	tenant, broken, waiting, ctx := uuid.New(), uuid.New(), uuid.New(), context.Background()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{tenant: {Version: 1}, broken: {Version: 1}, waiting: {Version: 1}}}
	p, _ := newPolicies(source)
	for _, t3 := range []limit.TenantID{tenant, broken, waiting} {
		_, err := p.Get(ctx, t3)
		require.NoError(t, err)
	}
	// One refresh fails, and will be retried.
	source.set(func() { source.err = errors.New("unavailable") })
	loads := 0
	source.set(func() { loads = source.loads })
	p.Changed(broken, 2, 0)
	eventually(t, func() (began bool) { source.set(func() { began = source.loads > loads }); return began })
	// The queue of changes is full, so the next one waits, as does a first load.
	for range cap(p.queues.changes) {
		p.queues.changes <- struct{}{}
	}
	for range cap(p.queues.first) {
		p.queues.first <- struct{}{}
	}
	p.Changed(waiting, 2, 0)
	first := make(chan error, 1)
	go func() { first <- p.Preload(ctx, uuid.New()) }()
	eventually(t, func() bool { return p.tenants.Size() == 4 })

	p.Close()
	require.ErrorIs(t, <-first, context.Canceled)
	p.Close() // again
	policy, err := p.Get(ctx, waiting)
	require.NoError(t, err, "loaded tenants are still answered")
	require.Equal(t, int64(1), policy.Version())
	_, err = p.Get(ctx, uuid.New())
	require.ErrorIs(t, err, ErrPolicyUnavailable)
	p.Changed(tenant, 2, 0) // no refresh begins
	require.NoError(t, p.Settle(ctx, tenant))
}

// What a tenant may have alive in Redis is that of its tier, which is known while both the tenant
// and the operator's tenant are loaded.
func TestTierBounds(t *testing.T) {
	tenant, free, platform := uuid.New(), uuid.New(), uuid.New()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{
		tenant: {Version: 1, Slug: "acme"}, free: {Version: 1, Slug: "other"},
		platform: {Version: 1, Plans: []PlanData{{Slug: "large", Counters: 5000, RecordBytes: 1 << 30}, {Slug: "none", Default: true}}},
	}, subjAt: 1}
	p, _ := newPolicies(source)
	_, err := p.Get(t.Context(), tenant)
	require.NoError(t, err)
	_, known := p.RecordBound(platform, tenant)
	require.False(t, known)
	source.set(func() { source.subjects = []SubjectData{{Subject: "acme", Plan: "large"}} })
	for _, id := range []limit.TenantID{platform, free} {
		_, err = p.Get(t.Context(), id)
		require.NoError(t, err)
	}
	for id, want := range map[limit.TenantID]TierBounds{tenant: {5000, 1 << 30}, free: {}, platform: {}} {
		counters, known := p.CounterBound(platform, id)
		require.True(t, known)
		bytes, known := p.RecordBound(platform, id)
		require.True(t, known)
		require.Equal(t, want, TierBounds{counters, bytes})
	}
}
