package check

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// neighbours is a cache that 20 small tenants use, which take a fifth of the limit.
type neighbours struct {
	*Policies
	t       *testing.T
	source  *manyTenants
	metrics *Metrics
	now     *atomic.Int64
	small   []limit.TenantID
	large   []limit.TenantID
}

func newNeighbours(t *testing.T, large int) *neighbours {
	n := newCrowd(t, 20, large, 100)
	n.use()
	return n
}

// newCrowd returns a cache with space for so many small tenants, of which none is loaded.
func newCrowd(t *testing.T, small, large, space int) *neighbours {
	source, ids := newManyTenants(small + large)
	n := &neighbours{t: t, source: source, small: ids[:small], large: ids[small:]}
	n.Policies, n.metrics, n.now = limited(t, source, space)
	n.log, n.coldWait = slog.New(slog.DiscardHandler), time.Minute
	t.Cleanup(n.Close)
	return n
}

// use sends a check of each small tenant.
func (n *neighbours) use() {
	for _, tenant := range n.small {
		_, err := n.Get(n.t.Context(), tenant)
		require.NoError(n.t, err)
	}
}

// after moves the clock.
func (n *neighbours) after(seconds int64) {
	n.now.Add(seconds)
	n.tick()
}

// resize gives a tenant so many subjects that it takes about this part of the limit.
func (n *neighbours) resize(tenant limit.TenantID, part float64) {
	const name = 16
	one := float64(name+1+8*3/2) * 33 / 32 // a name, and one and a half slots
	n.source.mu.Lock()
	defer n.source.mu.Unlock()
	n.source.subjects[tenant] = int(part * float64(n.memory.limit) / one)
}

// change tells the cache that a tenant has changed.
func (n *neighbours) change(tenant limit.TenantID) {
	version := n.source.change(tenant)
	n.Changed(tenant, version, version)
	require.NoError(n.t, n.Settle(n.t.Context(), tenant))
}

// reloads returns how often small tenants were read again.
func (n *neighbours) reloads() (reads int) {
	for _, tenant := range n.small {
		reads += n.source.loadsOf(tenant) - 1
	}
	return reads
}

// A tenant of any size that sends a check and makes a change each second evicts no other tenant in
// use. If it fits into the memory that is free, it is served. Otherwise it is refused, and read
// only once in 30 seconds.
func TestALargeTenantEvictsNoTenantInUse(t *testing.T) {
	for _, c := range []struct {
		part   float64
		served bool
	}{{0.2, true}, {0.7, true}, {0.97, false}, {1.05, false}, {1.3, false}} {
		t.Run(fmt.Sprint(c.part), func(t *testing.T) {
			n := newNeighbours(t, 1)
			large := n.large[0]
			n.resize(large, c.part)
			served := 0
			for range 90 {
				n.after(1)
				n.change(large)
				if _, err := n.Get(t.Context(), large); err == nil {
					served++
				} else {
					require.ErrorIs(t, err, errTooLarge)
				}
				n.use()
			}
			if c.served {
				require.Equal(t, 90, served)
			} else {
				require.Zero(t, served)
				require.Equal(t, 3, n.source.loadsOf(large))
			}
			require.Zero(t, n.reloads())
			require.Zero(t, testutil.ToFloat64(n.metrics.policies.evictions))
		})
	}
}

// A refused tenant that becomes smaller is served when the time is over, and not before. Nothing
// else causes a read, and nothing that it causes evicts a tenant.
func TestRefusedTenantIsTriedEvery30Seconds(t *testing.T) {
	n := newNeighbours(t, 1)
	large := n.large[0]
	n.resize(large, 2)
	refused := func() {
		_, err := n.Get(t.Context(), large)
		require.ErrorIs(t, err, errTooLarge)
	}
	refused()
	n.resize(large, 0.01)
	for range 29 {
		n.after(1)
		n.change(large)
		n.Reload(large)
		require.ErrorIs(t, n.Preload(t.Context(), large), errTooLarge)
		refused()
	}
	require.Equal(t, 1, n.source.loadsOf(large))
	n.after(1)
	_, err := n.Get(t.Context(), large)
	require.NoError(t, err)
	require.Zero(t, n.reloads())
}

// growing is a source whose tenants get subjects while they are in memory.
type growing struct{ *manyTenants }

func (s growing) ChangedSubjects(ctx context.Context, t limit.TenantID, _ int64, after string, each func(SubjectData)) (int64, string, error) {
	version, more, err := s.ListSubjects(ctx, t, after, func(d SubjectData) { after = d.Subject; each(d) })
	if !more {
		after = ""
	}
	return version, after, err
}

// A tenant that grows while it is in memory is evicted when it does not fit any more.
func TestATenantThatGrowsEvictsItselfOnly(t *testing.T) {
	n := newNeighbours(t, 1)
	n.source.mu.Lock()
	n.Policies.source = growing{n.source}
	n.source.mu.Unlock()
	large := n.large[0]
	_, err := n.Get(t.Context(), large)
	require.NoError(t, err)
	for _, part := range []float64{0.2, 0.5, 0.7} {
		n.resize(large, part)
		n.change(large)
		require.NotNil(t, n.Loaded(large))
	}
	n.resize(large, 0.9)
	n.change(large)
	require.Nil(t, n.Loaded(large))
	n.resize(large, 0.5)
	_, err = n.Get(t.Context(), large)
	require.ErrorIs(t, err, errTooLarge)
	n.use()
	require.Zero(t, n.reloads())
	n.after(30)
	_, err = n.Get(t.Context(), large)
	require.NoError(t, err)
}

// Of two tenants that do not fit together, one is served. Only one of them is read beyond its share
// at a time.
func TestLargeTenantsAtOnce(t *testing.T) {
	n := newNeighbours(t, 2)
	pages, release := make(chan limit.TenantID), make(chan struct{})
	n.source.mu.Lock()
	n.source.pages, n.source.release = pages, release
	n.source.mu.Unlock()
	ended := make(chan error, 2)
	for _, large := range n.large {
		n.resize(large, 0.6)
		go func() { ended <- n.Preload(t.Context(), large) }()
	}
	var errs []error
	read := map[limit.TenantID]int{}
	share := int(float64(n.source.subjects[n.large[0]])/0.6/sharePart)/testPage + 1
	for len(errs) < 2 {
		select {
		case tenant := <-pages:
			read[tenant]++
			if len(errs) == 0 && min(read[n.large[0]], read[n.large[1]]) > share {
				select {
				case err := <-ended: // just before
					errs = append(errs, err)
				case <-pages:
					t.Fatal("both are read beyond their shares")
				}
			}
			require.LessOrEqual(t, testutil.ToFloat64(n.metrics.policies.bytes), 1.05*float64(n.memory.limit))
			release <- struct{}{}
		case err := <-ended:
			errs = append(errs, err)
		}
	}
	if errs[0] == nil { // whichever is first
		errs[0], errs[1] = errs[1], errs[0]
	}
	require.ErrorIs(t, errs[0], errTooLarge)
	require.NoError(t, errs[1])
	n.use()
	require.Zero(t, n.reloads())
	require.Equal(t, float64(n.memory.bytes.Load()), testutil.ToFloat64(n.metrics.policies.bytes))
}

// What a small tenant takes that is being read counts for a large one, but evicts nobody.
func TestMemoryOfWhatIsBeingRead(t *testing.T) {
	n := newNeighbours(t, 2)
	slow, large := n.large[0], n.large[1]
	n.resize(slow, 0.2)
	n.resize(large, 0.7)
	pages, release := make(chan limit.TenantID), make(chan struct{})
	released := sync.OnceFunc(func() { close(release) })
	t.Cleanup(released)
	n.source.mu.Lock()
	n.source.pages, n.source.release = pages, release
	last := (n.source.subjects[slow] - 1) / testPage
	n.source.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- n.Preload(t.Context(), slow) }()
	for page := range last {
		if <-pages; page < last-1 {
			release <- struct{}{}
		}
	}
	n.source.mu.Lock()
	n.source.pages = nil // only the first one waits
	n.source.mu.Unlock()
	require.Greater(t, testutil.ToFloat64(n.metrics.policies.bytes), 0.3*float64(n.memory.limit))
	_, err := n.Get(t.Context(), large)
	require.ErrorIs(t, err, errTooLarge)
	require.Nil(t, n.Loaded(slow))
	released()
	require.NoError(t, <-ended)
	n.use()
	require.Zero(t, n.reloads())
	require.Zero(t, n.memory.reading.Load())
}

// A tenant may use all memory that others leave. It is the first one in use to be evicted when they
// need it, and may evict tenants that are not in use, but leaves them half of the limit.
func TestALargeTenantUsesWhatIsFree(t *testing.T) {
	n := newCrowd(t, 100, 1, 100)
	evictions := n.metrics.policies.evictions
	large := n.large[0]
	load := func() error { _, err := n.Get(t.Context(), large); return err }
	n.resize(large, 0.9)
	require.NoError(t, load())
	for i := 0; n.Loaded(large) != nil; i++ {
		require.Less(t, i, 50)
		n.after(1)
		require.NoError(t, load())
		_, err := n.Get(t.Context(), n.small[i])
		require.NoError(t, err)
	}
	require.Equal(t, 1.0, testutil.ToFloat64(evictions), "only itself")
	n.use()
	require.ErrorIs(t, load(), errTooLarge)

	n.after(activeFor) // no small tenant is in use
	n.resize(large, 0.6)
	require.ErrorIs(t, load(), errTooLarge)
	require.Equal(t, 100, n.tenants.Size())
	n.after(int64(refuseFor / time.Second))
	n.resize(large, 0.4)
	require.NoError(t, load())
	require.LessOrEqual(t, n.memory.bytes.Load(), n.memory.limit)
	require.InDelta(t, 60, n.tenants.Size(), 5)
	require.InDelta(t, 40, testutil.ToFloat64(evictions), 5)
}

// The tenant whose rules are the quotas of all others always gets its memory, up to the limit.
func TestPinnedTenantHasNoShare(t *testing.T) {
	n := newNeighbours(t, 1)
	n.Pin(n.large[0])
	n.resize(n.large[0], 0.85)
	_, err := n.Get(t.Context(), n.large[0])
	require.NoError(t, err)
	require.LessOrEqual(t, n.memory.bytes.Load(), n.memory.limit)
	require.Positive(t, testutil.ToFloat64(n.metrics.policies.evictions))
}
