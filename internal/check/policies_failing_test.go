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

// failingSource cannot read some tenants. Each such read lasts until the test lets it end.
type failingSource struct {
	PolicySource
	mu      sync.Mutex
	fails   map[limit.TenantID]bool
	entered chan limit.TenantID
	end     chan struct{}
}

var errSlow = errors.New("it takes too long")

func (s *failingSource) LoadPolicy(ctx context.Context, t limit.TenantID) (PolicyData, error) {
	s.mu.Lock()
	fails := s.fails[t]
	s.mu.Unlock()
	if fails {
		select {
		case s.entered <- t:
		case <-ctx.Done():
		}
		select {
		case <-s.end:
		case <-ctx.Done():
		}
		return PolicyData{}, errSlow
	}
	return s.PolicySource.LoadPolicy(ctx, t)
}

// Tenants whose first load has failed have places of their own for the next ones. Those of other
// tenants do not wait for them, however many there are, and do not fail.
func TestFailingTenantsHoldNoPlacesOfOthers(t *testing.T) {
	t.Parallel()
	good, known := uuid.New(), uuid.New()
	inner := &fakeSource{data: map[limit.TenantID]PolicyData{good: {Version: 1}, known: {Version: 1}}}
	source := &failingSource{PolicySource: inner, fails: map[limit.TenantID]bool{}, entered: make(chan limit.TenantID), end: make(chan struct{})}
	failing := make([]limit.TenantID, 8)
	for i := range failing {
		failing[i] = uuid.New()
		source.fails[failing[i]] = true
		inner.data[failing[i]] = PolicyData{Version: 1}
	}
	p, _ := newPolicies(source)
	defer p.Close()
	p.coldWait = time.Minute
	ended := make(chan error, len(failing))
	load := func() {
		for _, tenant := range failing {
			go func() {
				_, err := p.Get(t.Context(), tenant)
				ended <- err
			}()
		}
	}
	_, err := p.Get(t.Context(), known)
	require.NoError(t, err)
	load()
	for range failing {
		<-source.entered
		p.Changed(known, 2, 0) // others can be read
		require.NoError(t, p.Settle(t.Context(), known))
		source.end <- struct{}{}
		require.ErrorIs(t, <-ended, errSlow)
	}
	load()
	for range cap(p.queues.failing) {
		<-source.entered // and stays
	}
	require.Empty(t, p.queues.first, "all places are free")
	_, err = p.Get(t.Context(), good)
	require.NoError(t, err)

	source.mu.Lock()
	clear(source.fails)
	source.mu.Unlock()
	for range cap(p.queues.failing) {
		source.end <- struct{}{}
	}
	failed := 0
	for range failing {
		if err := <-ended; err != nil {
			require.ErrorIs(t, err, errSlow)
			failed++
		}
	}
	require.Equal(t, cap(p.queues.failing), failed)
	for _, tenant := range failing {
		_, err := p.Get(t.Context(), tenant)
		require.NoError(t, err)
	}
	require.Empty(t, p.failing.tenants, "each of them was read")
}

// A tenant of which it is known that it alone cannot be read has a place of its own, although
// nothing else is read. One that is in memory, or must be, is not such a tenant.
func TestFailingTenantOfAQuietInstance(t *testing.T) {
	t.Parallel()
	known, pinned, failing := uuid.New(), uuid.New(), uuid.New()
	source := &fakeSource{data: map[limit.TenantID]PolicyData{known: {Version: 1}, failing: {Version: 1}}}
	p, _ := newPolicies(source)
	defer p.Close()
	p.Pin(pinned)
	_, err := p.Get(t.Context(), known)
	require.NoError(t, err)
	for _, tenant := range []limit.TenantID{known, pinned, failing} {
		p.Failing(tenant)
	}
	require.Equal(t, p.queues.first, p.queue(known))
	require.Equal(t, p.queues.first, p.queue(pinned))
	require.Equal(t, p.queues.failing, p.queue(failing))
	_, err = p.Get(t.Context(), failing)
	require.NoError(t, err)
	require.Equal(t, p.queues.first, p.queue(failing))
}

// Changes of tenants whose last read has failed have places of their own, too. Those of other
// tenants do not wait for them.
func TestFailingChangesHoldNoPlacesOfOthers(t *testing.T) {
	t.Parallel()
	inner := &fakeSource{data: map[limit.TenantID]PolicyData{}}
	source := &failingSource{PolicySource: inner, fails: map[limit.TenantID]bool{}, entered: make(chan limit.TenantID), end: make(chan struct{})}
	p, _ := newPolicies(source)
	defer p.Close()
	all := make([]limit.TenantID, 6)
	for i := range all {
		all[i] = uuid.New()
		inner.data[all[i]] = PolicyData{Version: 1}
		_, err := p.Get(t.Context(), all[i])
		require.NoError(t, err)
	}
	good, failing := all[0], all[1:]
	inner.set(func() { inner.data[good] = PolicyData{Version: 2} })
	source.mu.Lock()
	for _, tenant := range failing {
		source.fails[tenant] = true
	}
	source.mu.Unlock()
	for _, tenant := range failing {
		p.Changed(tenant, 2, 0)
	}
	for failed := map[limit.TenantID]bool{}; len(failed) < len(failing); source.end <- struct{}{} {
		failed[<-source.entered] = true
	}
	for range cap(p.queues.retries) {
		<-source.entered // and stays
	}
	eventually(t, func() bool { return len(p.queues.changes) == 0 })
	p.Changed(good, 2, 0)
	eventually(t, func() bool { return p.Loaded(good).Version() == 2 })
}
