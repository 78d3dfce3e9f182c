package check

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// pagedSource has two pages of subjects for each tenant in paged. The second one of a tenant in
// stays lasts until Close.
type pagedSource struct {
	fakeSource
	paged, stays map[limit.TenantID]bool
	refuses      map[limit.TenantID]int // how many reads of the policy still fail
	listed       chan limit.TenantID    // a first page was read
	staying      chan limit.TenantID    // a second page that stays has begun
}

// newPagedSource returns a source with these tenants, of which the first two stay.
func newPagedSource(tenants ...limit.TenantID) *pagedSource {
	s := &pagedSource{paged: map[limit.TenantID]bool{}, stays: map[limit.TenantID]bool{}, refuses: map[limit.TenantID]int{}}
	s.listed, s.staying = make(chan limit.TenantID, 10), make(chan limit.TenantID)
	s.data, s.subjAt = map[limit.TenantID]PolicyData{}, 1
	for i, tenant := range tenants {
		s.data[tenant] = PolicyData{Version: 1}
		s.stays[tenant] = i < 2
	}
	return s
}

func (s *pagedSource) LoadPolicy(ctx context.Context, t limit.TenantID) (PolicyData, error) {
	s.mu.Lock()
	refuses := s.refuses[t] > 0
	s.refuses[t]--
	s.mu.Unlock()
	if refuses {
		return PolicyData{}, errAway
	}
	return s.fakeSource.LoadPolicy(ctx, t)
}

func (s *pagedSource) ListSubjects(ctx context.Context, t limit.TenantID, after string, each func(SubjectData)) (int64, bool, error) {
	s.mu.Lock()
	paged, stays := s.paged[t], s.stays[t]
	s.mu.Unlock()
	if !paged || after != "" && !stays {
		return s.fakeSource.ListSubjects(ctx, t, after, each)
	}
	if after == "" {
		each(SubjectData{Subject: "the last of the first page"})
		s.listed <- t
		return 1, true, nil
	}
	select {
	case s.staying <- t:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return 0, false, ctx.Err()
}

var errAway = errors.New("the source does not answer")

// While the source answers for nobody, no tenant counts as one that fails. Afterwards, large ones
// do not hold the places of others.
func TestOutageMakesNoTenantFailing(t *testing.T) {
	t.Parallel()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	source := newPagedSource(a, b, c)
	source.paged[a], source.paged[b], source.err = true, true, errAway
	p, _ := newPolicies(source)
	p.coldWait = time.Minute
	var asked sync.WaitGroup
	defer asked.Wait()
	defer p.Close()
	for _, tenant := range []limit.TenantID{a, b, c} {
		_, err := p.Get(t.Context(), tenant)
		require.ErrorIs(t, err, errAway)
	}
	require.Empty(t, p.failing.tenants)

	source.set(func() { source.err = nil })
	for _, tenant := range []limit.TenantID{a, b} {
		asked.Go(func() { _, _ = p.Get(context.Background(), tenant) })
		require.Equal(t, tenant, <-source.staying)
	}
	_, err := p.Get(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, p.failing.tenants)
}

// turnedSource answers reads of policies one by one, as a test says.
type turnedSource struct {
	*fakeSource
	entered chan limit.TenantID
	results map[limit.TenantID]chan error
}

func (s *turnedSource) LoadPolicy(ctx context.Context, t limit.TenantID) (PolicyData, error) {
	s.entered <- t
	if err := <-s.results[t]; err != nil {
		return PolicyData{}, err
	}
	return s.fakeSource.LoadPolicy(ctx, t)
}

// Nor does a tenant whose load was waiting for its place when the outage began, although loads of
// others had succeeded in the meantime.
func TestOutageMakesNoWaitingTenantFailing(t *testing.T) {
	t.Parallel()
	a, b := uuid.New(), uuid.New()
	source := &turnedSource{
		fakeSource: &fakeSource{data: map[limit.TenantID]PolicyData{a: {Version: 1}, b: {Version: 1}}},
		entered:    make(chan limit.TenantID), results: map[limit.TenantID]chan error{a: make(chan error), b: make(chan error)},
	}
	p, _ := newPolicies(source)
	defer p.Close()
	p.coldWait = time.Minute
	for range cap(p.queues.first) - 1 {
		p.queues.first <- struct{}{}
	}
	loads := map[limit.TenantID]chan error{a: make(chan error), b: make(chan error)}
	load := func(tenant limit.TenantID) {
		_, err := p.Get(t.Context(), tenant)
		loads[tenant] <- err
	}
	go load(a)
	require.Equal(t, a, <-source.entered)
	go load(b)
	require.Eventually(t, func() bool {
		e, found := p.tenants.Load(b)
		if !found {
			return false
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.first != nil
	}, time.Minute, time.Millisecond)
	source.results[a] <- nil
	require.NoError(t, <-loads[a])
	require.Equal(t, b, <-source.entered)
	source.results[b] <- errAway
	require.ErrorIs(t, <-loads[b], errAway)
	require.Empty(t, p.failing.tenants)

	go load(b) // and one that fails while others are read counts
	require.Equal(t, b, <-source.entered)
	p.Changed(a, 2, 0)
	require.Equal(t, a, <-source.entered)
	source.results[a] <- nil
	require.NoError(t, p.Settle(t.Context(), a))
	source.results[b] <- errAway
	require.ErrorIs(t, <-loads[b], errAway)
	require.Contains(t, p.failing.tenants, b)
}

// A pinned tenant never counts as one that fails: the checks of all need it.
func TestPinnedTenantIsNeverFailing(t *testing.T) {
	t.Parallel()
	good, pinned := uuid.New(), uuid.New()
	inner := newPagedSource(good, pinned)
	source := &failingSource{
		PolicySource: inner, fails: map[limit.TenantID]bool{pinned: true}, entered: make(chan limit.TenantID), end: make(chan struct{}),
	}
	p, _ := newPolicies(source)
	defer p.Close()
	p.coldWait = time.Minute
	p.Pin(pinned)
	ended := make(chan error)
	go func() {
		_, err := p.Get(t.Context(), pinned)
		ended <- err
	}()
	<-source.entered
	_, err := p.Get(t.Context(), good)
	require.NoError(t, err)
	source.end <- struct{}{}
	require.ErrorIs(t, <-ended, errSlow)
	require.Empty(t, p.failing.tenants)
}

// Large tenants whose last load has failed take one place together after their first page, so that
// small ones like them do not wait for them.
func TestLargeFailingTenantsHoldOnePlace(t *testing.T) {
	t.Parallel()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	source := newPagedSource(a, b, c)
	source.paged[a], source.paged[b] = true, true
	p, _ := newPolicies(source)
	p.coldWait = time.Minute
	var asked sync.WaitGroup
	defer asked.Wait()
	defer p.Close()
	for _, tenant := range []limit.TenantID{a, b, c} {
		p.failing.add(tenant)
	}
	for _, tenant := range []limit.TenantID{a, b} {
		asked.Go(func() { _, _ = p.Get(context.Background(), tenant) })
	}
	<-source.listed
	<-source.listed
	<-source.staying
	_, err := p.Get(t.Context(), c)
	require.NoError(t, err)
}

// Nor do other large tenants wait for those of them that had a change.
func TestLargeFailingChangesHoldOnePlace(t *testing.T) {
	t.Parallel()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	source := newPagedSource(a, b, c)
	p, _ := newPolicies(source)
	defer p.Close()
	p.coldWait = time.Minute
	for _, tenant := range []limit.TenantID{a, b} {
		_, err := p.Get(t.Context(), tenant)
		require.NoError(t, err)
	}
	source.set(func() {
		source.gone = true // all subjects are read again
		source.paged[a], source.paged[b], source.paged[c] = true, true, true
		source.refuses[a], source.refuses[b] = 1, 1
	})
	p.Changed(a, 2, 2)
	p.Changed(b, 2, 2)
	<-source.listed
	<-source.listed
	<-source.staying
	source.set(func() { source.gone = false })
	_, err := p.Get(t.Context(), c)
	require.NoError(t, err)
}
