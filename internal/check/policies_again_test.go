package check

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// turns is a source that reads one tenant at a time when the test says so, and fails for some.
type turns struct {
	*manyTenants
	order   chan limit.TenantID // gets each tenant that is read, which then waits for release
	release chan struct{}
	mu      sync.Mutex
	broken  map[limit.TenantID]bool
}

// loadedTurns returns such a source of n tenants, and a cache that has loaded them.
func loadedTurns(t *testing.T, n int) (p *Policies, source *turns, ids []limit.TenantID) {
	t.Helper()
	many, ids := newManyTenants(n)
	source = &turns{manyTenants: many, release: make(chan struct{}), broken: map[limit.TenantID]bool{}}
	p, _ = newPolicies(source)
	for _, id := range ids {
		_, err := p.Get(t.Context(), id)
		require.NoError(t, err)
	}
	return p, source, ids
}

// inOrder makes the source tell which tenants are read, and wait for release.
func (s *turns) inOrder() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = make(chan limit.TenantID, 1000)
}

func (s *turns) LoadPolicy(ctx context.Context, t limit.TenantID) (PolicyData, error) {
	s.mu.Lock()
	order, broken := s.order, s.broken[t]
	s.mu.Unlock()
	if order != nil {
		order <- t
		<-s.release
	}
	if broken {
		return PolicyData{}, errors.New("unreadable")
	}
	return s.manyTenants.LoadPolicy(ctx, t)
}

// After a restore, the tenants that asked last are read again first, and a change waits for none of
// them. Before, tenants were read in any order, and a change waited for all of them.
func TestReloadActiveTenantsFirst(t *testing.T) {
	const n = 50
	p, source, ids := loadedTurns(t, n)
	defer p.Close()
	for i, id := range ids {
		e, _ := p.tenants.Load(id)
		e.used.Store(int64(1000 + (i*7)%n)) // not in the order of their ids
	}
	position := func(id limit.TenantID) int64 {
		e, _ := p.tenants.Load(id)
		return e.used.Load()
	}
	source.inOrder()
	for _, id := range ids {
		p.Reload(id)
	}
	reading := []limit.TenantID{<-source.order, <-source.order} // began before the others were known
	require.Len(t, reading, againReaders)
	changed := ids[20]
	require.NotContains(t, reading, changed)
	source.change(changed)
	p.Changed(changed, 2, 2)
	require.Equal(t, changed, <-source.order, "a change waits for no other tenant")
	seen := map[limit.TenantID]bool{reading[0]: true, reading[1]: true, changed: true}
	last := int64(1 << 40)
	for len(seen) < n {
		source.release <- struct{}{}
		if len(seen) == 3 { // one of the three ended, perhaps the change, after which nothing begins
			source.release <- struct{}{}
		}
		id := <-source.order
		require.False(t, seen[id])
		seen[id] = true
		require.Less(t, position(id), last+againReaders, "the tenant that asked last comes first")
		last = position(id)
	}
	close(source.release)
	for _, id := range ids {
		eventually(t, func() bool {
			e, _ := p.tenants.Load(id)
			return e.pending() == nil
		})
	}
}

// A tenant that cannot be read does not keep the others from being read, and is tried again.
func TestReloadOfABrokenTenant(t *testing.T) {
	p, source, ids := loadedTurns(t, 5)
	defer p.Close()
	source.mu.Lock()
	source.broken[ids[0]], source.broken[ids[1]] = true, true
	source.mu.Unlock()
	for _, id := range ids {
		source.change(id)
		p.Reload(id)
	}
	version := func(id limit.TenantID) int64 { return p.Loaded(id).Version() }
	for _, id := range ids[2:] {
		eventually(t, func() bool { return version(id) == 2 })
	}
	require.EqualValues(t, 1, version(ids[0]))
	source.mu.Lock()
	clear(source.broken)
	source.mu.Unlock()
	eventually(t, func() bool { return version(ids[0]) == 2 && version(ids[1]) == 2 })
}

// Close ends what is being read again.
func TestCloseWhileReloading(t *testing.T) {
	p, source, ids := loadedTurns(t, 20)
	source.mu.Lock()
	for _, id := range ids {
		source.broken[id] = true
	}
	source.mu.Unlock()
	for _, id := range ids {
		p.Reload(id)
	}
	p.Close()
}

// Settle waits for a tenant that is to be read again, also before that begins, and until a tenant
// is removed.
func TestSettleAfterReload(t *testing.T) {
	const n = 10
	p, source, ids := loadedTurns(t, n)
	defer p.Close()
	source.inOrder()
	for _, id := range ids {
		source.change(id)
		p.Reload(id)
	}
	reading := []limit.TenantID{<-source.order, <-source.order}
	waiting := slices.DeleteFunc(slices.Clone(ids), func(id limit.TenantID) bool { return slices.Contains(reading, id) })
	removed, waiting := waiting[0], waiting[1:]
	for _, id := range append(reading, ids...) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		require.ErrorIs(t, p.Settle(ctx, id), context.DeadlineExceeded)
		cancel()
	}
	settled := make(chan error, n)
	go func() { settled <- p.Settle(t.Context(), removed) }()
	p.Gone(removed)
	require.NoError(t, <-settled)
	close(source.release)
	for _, id := range append(reading, waiting...) {
		require.NoError(t, p.Settle(t.Context(), id))
		require.EqualValues(t, 2, p.Loaded(id).Version())
	}
}
