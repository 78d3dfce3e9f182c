package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// manyTenants is a source of tenants that differ only in their versions, and of which some have
// many subjects.
type manyTenants struct {
	mu       sync.Mutex
	versions map[limit.TenantID]int64
	subjects map[limit.TenantID]int // number of subjects; default 10
	loads    map[limit.TenantID]int
	pages    chan limit.TenantID // if set, gets each page except the first, which then waits for release
	release  chan struct{}
}

func newManyTenants(n int) (*manyTenants, []limit.TenantID) {
	s := &manyTenants{versions: map[limit.TenantID]int64{}, subjects: map[limit.TenantID]int{}, loads: map[limit.TenantID]int{}}
	ids := make([]limit.TenantID, n)
	for i := range ids {
		ids[i] = uuid.MustParse(fmt.Sprintf("00000000-0000-7000-8000-%012d", i))
		s.versions[ids[i]] = 1
	}
	return s, ids
}

func (s *manyTenants) LoadPolicy(_ context.Context, t limit.TenantID) (PolicyData, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads[t]++
	if s.versions[t] == 0 {
		return PolicyData{}, ErrUnknownTenant
	}
	data := PolicyData{Slug: t.String(), Version: s.versions[t], Plans: []PlanData{{Slug: "free", Default: true}, {Slug: "pro", Limits: map[string]limit.Limit{}}}}
	for i := range 10 {
		slug := fmt.Sprintf("rule-%d", i)
		data.Rules = append(data.Rules, minute(slug, 100))
		data.Plans[1].Limits[slug] = limit.Limit{Limit: 1000}
	}
	return data, nil
}

const testPage = 1000

func (s *manyTenants) ListSubjects(_ context.Context, t limit.TenantID, after string, each func(SubjectData)) (int64, bool, error) {
	s.mu.Lock()
	count, known := s.subjects[t]
	version, pages, release := s.versions[t], s.pages, s.release
	s.mu.Unlock()
	if !known {
		count = 10
	}
	if after != "" && pages != nil {
		pages <- t
		<-release
	}
	first := 0
	if after != "" {
		_, _ = fmt.Sscanf(after, "customer%d", &first)
		first++
	}
	last := min(count, first+testPage)
	for n := first; n < last; n++ {
		each(SubjectData{Subject: fmt.Sprintf("customer%08d", n), Plan: strings.Clone("pro")})
	}
	return version, last < count, nil
}

func (s *manyTenants) ChangedSubjects(_ context.Context, t limit.TenantID, _ int64, _ string, _ func(SubjectData)) (int64, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[t], "", nil
}

func (s *manyTenants) change(t limit.TenantID) (version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[t]++
	return s.versions[t]
}

func (s *manyTenants) loadsOf(t limit.TenantID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads[t]
}

// limited returns a cache with space for about this number of tenants, and a clock that only the
// test moves.
func limited(t *testing.T, source *manyTenants, tenants int) (*Policies, *Metrics, *atomic.Int64) {
	p, metrics := newPolicies(source)
	now := new(atomic.Int64)
	now.Store(1_000_000)
	p.clock = func() time.Time { return time.Unix(now.Load(), 0) }
	p.tick()
	one := sizeOfOne(t, source)
	p.Limit(one*int64(tenants) + one/2)
	return p, metrics, now
}

func sizeOfOne(t *testing.T, source *manyTenants) int64 {
	p, _ := newPolicies(source)
	for tenant := range source.versions {
		_, err := p.Get(t.Context(), tenant)
		require.NoError(t, err)
		source.loads[tenant]--
		break
	}
	return p.memory.bytes.Load()
}

// If memory is too small for all tenants, the most recently used ones are loaded, and the others
// are loaded when they are used. The limit is never exceeded.
func TestMemoryKeepsRecentlyUsedTenants(t *testing.T) {
	source, ids := newManyTenants(200)
	p, metrics, now := limited(t, source, 100)
	get := func(i int) *Policy {
		policy, err := p.Get(t.Context(), ids[i])
		require.NoError(t, err)
		require.LessOrEqual(t, p.memory.bytes.Load(), p.memory.limit)
		return policy
	}
	for i := range 100 {
		get(i)
	}
	require.Equal(t, 100, p.tenants.Size())
	require.Zero(t, testutil.ToFloat64(metrics.policies.evictions))
	now.Add(120)
	p.tick()
	for i := range 50 { // the first half is used again
		get(i)
	}
	for i := 100; i < 140; i++ {
		now.Add(1)
		get(i)
	}
	for i := range 50 {
		get(i)
		require.Equal(t, 1, source.loadsOf(ids[i]), "recently used tenants are still loaded")
	}
	require.Equal(t, float64(p.tenants.Size()), testutil.ToFloat64(metrics.tenantsLoaded))
	require.Equal(t, float64(p.memory.bytes.Load()), testutil.ToFloat64(metrics.policies.bytes))
	require.Equal(t, 140.0-float64(p.tenants.Size()), testutil.ToFloat64(metrics.policies.evictions))
	require.Zero(t, testutil.ToFloat64(metrics.policies.activeEvictions))

	for i := range 200 { // if all are used at once, the limit still holds
		get(i)
	}
	require.Positive(t, testutil.ToFloat64(metrics.policies.activeEvictions))
}

// An evicted tenant is loaded again with its current configuration. Changes while it was evicted
// cost nothing.
func TestEvictedTenantIsLoadedAgain(t *testing.T) {
	source, ids := newManyTenants(20)
	p, _, now := limited(t, source, 10)
	p.Pin(ids[0])
	for i := range 20 {
		now.Add(1)
		_, err := p.Get(t.Context(), ids[i])
		require.NoError(t, err)
	}
	_, there := p.tenants.Load(ids[1])
	require.False(t, there)
	_, there = p.tenants.Load(ids[0])
	require.True(t, there, "a pinned tenant is not evicted")
	version := source.change(ids[1])
	p.Changed(ids[1], version, version)
	require.NoError(t, p.Settle(t.Context(), ids[1]))
	require.Equal(t, 1, source.loadsOf(ids[1]), "a tenant that is not loaded causes no read")
	policy, err := p.Get(t.Context(), ids[1])
	require.NoError(t, err)
	require.Equal(t, version, policy.Version())
	_, registered := policy.Subject("customer00000009")
	require.True(t, registered)

	version = source.change(ids[1])
	p.Changed(ids[1], version, version)
	eventually(t, func() bool {
		policy, err := p.Get(t.Context(), ids[1])
		return err == nil && policy.Version() == version
	})
}

// A tenant that would take all of the memory is refused, so that the others keep theirs. It is not
// read again for every check, but every 30 seconds.
func TestTooLargeATenantIsRefused(t *testing.T) {
	source, ids := newManyTenants(10)
	p, metrics, now := limited(t, source, 10)
	source.subjects[ids[9]] = 100_000
	for i := range 9 {
		_, err := p.Get(t.Context(), ids[i])
		require.NoError(t, err)
	}
	for range 10 {
		_, err := p.Get(t.Context(), ids[9])
		require.ErrorIs(t, err, ErrPolicyUnavailable)
		require.LessOrEqual(t, p.memory.bytes.Load(), p.memory.limit)
	}
	require.Equal(t, 1, source.loadsOf(ids[9]))
	require.Equal(t, 10.0, testutil.ToFloat64(metrics.policies.unanswered))
	now.Add(31)
	_, err := p.Get(t.Context(), ids[9])
	require.ErrorIs(t, err, ErrPolicyUnavailable)
	require.Equal(t, 2, source.loadsOf(ids[9]))
	source.mu.Lock()
	source.subjects[ids[9]] = 10
	source.mu.Unlock()
	version := source.change(ids[9])
	p.Changed(ids[9], version, version)
	now.Add(30)
	_, err = p.Get(t.Context(), ids[9])
	require.NoError(t, err)
	var bytes int64
	p.tenants.Range(func(_ limit.TenantID, e *tenantEntry) bool { bytes += e.bytes; return true })
	require.Equal(t, bytes, p.memory.bytes.Load())
}

// While many tenants with a million subjects are being read, a small tenant is loaded immediately,
// and a change of a loaded tenant is applied.
func TestLargeTenantsDoNotBlock(t *testing.T) {
	source, ids := newManyTenants(20)
	for _, giant := range ids[:10] {
		source.subjects[giant] = 3 * testPage
	}
	p, _ := newPolicies(source)
	loaded := ids[19]
	_, err := p.Get(t.Context(), loaded)
	require.NoError(t, err)
	source.pages, source.release = make(chan limit.TenantID, 100), make(chan struct{})
	done := make(chan error, 10)
	for _, giant := range ids[:10] {
		go func() { done <- p.Preload(t.Context(), giant) }()
	}
	<-source.pages // two of them continue to read, the others wait
	<-source.pages
	for _, small := range ids[10:19] {
		_, err := p.Get(t.Context(), small)
		require.NoError(t, err)
	}
	version := source.change(loaded)
	p.Changed(loaded, version, version)
	require.NoError(t, p.Settle(t.Context(), loaded))
	policy, err := p.Get(t.Context(), loaded)
	require.NoError(t, err)
	require.Equal(t, version, policy.Version())
	close(source.release)
	for range 10 {
		require.NoError(t, <-done)
	}
	policy, err = p.Get(t.Context(), ids[0])
	require.NoError(t, err)
	_, registered := policy.Subject(fmt.Sprintf("customer%08d", 3*testPage-1))
	require.True(t, registered)
}

// While the source does not answer, a check of a tenant that is not loaded times out, the number of
// waiting checks is limited, and loaded tenants are not affected.
func TestSilentSource(t *testing.T) {
	tenant, loaded := uuid.New(), uuid.New()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{tenant: {Version: 1}, loaded: {Version: 1}}}
	p, metrics := newPolicies(source)
	_, err := p.Get(t.Context(), loaded)
	require.NoError(t, err)
	source.set(func() { source.entered, source.release = make(chan struct{}), make(chan struct{}) })
	p.maxWaiting = 2
	waiting := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		go func() { _, err := p.Get(ctx, tenant); waiting <- err }()
	}
	<-source.entered
	eventually(t, func() bool { return p.waiting.Load() == 2 })
	_, err = p.Get(t.Context(), tenant)
	require.ErrorIs(t, err, errTooManyWait)
	_, err = p.Get(t.Context(), loaded)
	require.NoError(t, err)
	cancel()
	for range 2 {
		require.ErrorIs(t, <-waiting, context.Canceled)
	}
	p.coldWait = time.Millisecond
	_, err = p.Get(t.Context(), tenant)
	require.ErrorIs(t, err, errNotInTime)
	require.True(t, errors.Is(err, ErrPolicyUnavailable))
	require.Equal(t, 4.0, testutil.ToFloat64(metrics.policies.unanswered))
	source.release <- struct{}{}
	p.coldWait = time.Minute
	source.set(func() { source.entered = nil })
	_, err = p.Get(t.Context(), tenant)
	require.NoError(t, err)
}

// Concurrent loads, changes, evictions and checks leave a correct sum.
func TestMemoryIsAccountedFor(t *testing.T) {
	source, ids := newManyTenants(64)
	p, _, now := limited(t, source, 16)
	p.log = slog.New(slog.DiscardHandler)
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 400 {
				tenant := ids[(i*7+worker*13)%len(ids)]
				switch i % 5 {
				case 0:
					version := source.change(tenant)
					p.Changed(tenant, version, version)
				case 1:
					p.Gone(tenant)
				default:
					if _, err := p.Get(t.Context(), tenant); err != nil {
						panic(err)
					}
				}
				now.Add(1)
			}
		})
	}
	all.Wait()
	for _, tenant := range ids {
		require.NoError(t, p.Settle(t.Context(), tenant))
	}
	var bytes int64
	p.tenants.Range(func(_ limit.TenantID, e *tenantEntry) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		bytes += e.bytes
		return true
	})
	require.Equal(t, bytes, p.memory.bytes.Load())
	require.LessOrEqual(t, bytes, p.memory.limit)
}

// The estimated memory is approximately the memory of the process.
func TestPolicyBytesAreAboutRight(t *testing.T) {
	source, ids := newManyTenants(500)
	p, _ := newPolicies(source)
	before := heapInUse()
	for _, tenant := range ids {
		_, err := p.Get(t.Context(), tenant)
		require.NoError(t, err)
	}
	used := heapInUse() - before
	require.InEpsilon(t, used, p.memory.bytes.Load(), 0.2)
	t.Logf("%d bytes a tenant with 10 rules, 2 plans and 10 subjects", used/int64(len(ids)))
	runtime.KeepAlive(source)
}
