package places_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Short and long work together leave at least a quarter of the processors to checks, and on small
// instances have one turn each. One tenant leaves turns to others where there are several.
func TestTurnsOfProcessors(t *testing.T) {
	t.Parallel()
	for processors, want := range map[int][4]int{ // short and long work, of several tenants and of one
		1: {1, 1, 1, 1}, 2: {1, 1, 1, 1}, 3: {1, 1, 1, 1}, 4: {2, 1, 1, 1}, 6: {3, 1, 1, 1}, 8: {4, 2, 2, 1}, 12: {6, 3, 3, 1}, 64: {32, 16, 4, 2},
	} {
		turns := places.NewProcessors(processors)
		taken := func(turns *places.Turns[uuid.UUID], tenants int) (count int) {
			var leave []func()
			for tenant := range tenants {
				for range processors + 1 {
					ended, err := turns.TakeWithin(t.Context(), uuid.UUID{byte(tenant)}, 0)
					if err == nil {
						leave = append(leave, ended)
					}
				}
			}
			for _, ended := range leave {
				ended()
			}
			return len(leave)
		}
		require.Equal(t, want, [4]int{taken(turns.Short, 10), taken(turns.Short, 1), taken(turns.Long, 10), taken(turns.Long, 1)}, processors)
		require.Equal(t, [2]int{processors, processors}, [2]int{taken(turns.Batches, 10), taken(turns.Batches, 1)}, processors)
		several := true
		turns.Batches.LeaveOneWhile(func() bool { return several })
		require.Equal(t, [2]int{processors, max(1, processors-1)}, [2]int{taken(turns.Batches, 10), taken(turns.Batches, 1)}, "a tenant of several leaves one")
		several = false
		require.Equal(t, processors, taken(turns.Batches, 1))
		short, err := turns.Short.TakeWithin(t.Context(), uuid.UUID{1}, 0)
		require.NoError(t, err)
		long, err := turns.Long.TakeWithin(t.Context(), uuid.UUID{1}, 0)
		require.Equal(t, processors < 4, err != nil, "one tenant has a turn of each kind: %d", processors)
		if err == nil {
			long()
		}
		for _, take := range []func(context.Context, uuid.UUID, time.Duration) (func(), error){turns.Long.TakeWithin, turns.Long.TakePausing} {
			long, err = take(t.Context(), uuid.UUID{2}, 0)
			require.NoError(t, err, "another tenant has its turn")
			long()
		}
		long, err = turns.Long.TakePausing(t.Context(), uuid.UUID{1}, 0)
		require.NoError(t, err, "also while it waits for others")
		long()
		short()
		if processors >= 4 {
			require.LessOrEqual(t, want[0]+want[2], processors-processors/4)
		}
	}
}

// With few processors, short and long work of one tenant alternate, and neither is refused.
func TestOneTurnOfBothKinds(t *testing.T) {
	t.Parallel()
	turns := places.NewProcessors(2)
	tenant := uuid.UUID{1}
	var running, most, done atomic.Int64
	var all sync.WaitGroup
	for _, kind := range []*places.Turns[uuid.UUID]{turns.Short, turns.Long} {
		for range 8 {
			all.Go(func() {
				for range 50 {
					leave, err := kind.Take(t.Context(), tenant)
					if !assert.NoError(t, err) {
						return
					}
					now := running.Add(1)
					for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
					}
					runtime.Gosched()
					running.Add(-1)
					leave()
					done.Add(1)
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, 1, most.Load())
	require.EqualValues(t, 2*8*50, done.Load())
}

// A tenant that is alone has batches on all processors, whatever else it does. While there are
// others, its batches wait for its long work if they are many.
func TestBatchesBesideOtherTurns(t *testing.T) {
	t.Parallel()
	turns := places.NewProcessors(2)
	several := false
	turns.Batches.LeaveOneWhile(func() bool { return several })
	mine, other := uuid.UUID{1}, uuid.UUID{2}
	batch := func(tenant uuid.UUID) (leave func()) {
		leave, err := turns.Batches.Take(t.Context(), tenant)
		require.NoError(t, err)
		return leave
	}
	long, err := turns.Long.Take(t.Context(), mine)
	require.NoError(t, err)
	first, second := batch(mine), batch(mine)
	first()
	second()

	several = true
	first = batch(mine)
	var few, many sync.WaitGroup
	wait := func(of *sync.WaitGroup, waiting func() int, count int) {
		of.Go(func() { batch(mine)() })
		require.Eventually(t, func() bool { return waiting() == count }, 10*time.Second, time.Millisecond)
	}
	for i := range 4 {
		wait(&few, turns.Batches.Waiting, i+1)
	}
	for i := range 3 {
		wait(&many, turns.SingleWaiting, i+1)
	}
	first()
	few.Wait()
	require.Equal(t, 3, turns.SingleWaiting(), "they leave the other processor to other tenants")
	batch(other)()
	long()
	many.Wait()
}

// Short work that waits for long work of its own tenant does not keep out the short work of other
// tenants. Work that gives up waiting leaves nothing behind.
func TestWaitForTheOwnTurn(t *testing.T) {
	t.Parallel()
	turns := places.NewProcessors(2)
	mine, other := uuid.UUID{1}, uuid.UUID{2}
	long, err := turns.Long.Take(t.Context(), mine)
	require.NoError(t, err)
	_, err = turns.Short.TakeWithin(t.Context(), mine, 0)
	require.Error(t, err)
	short, err := turns.Short.TakeWithin(t.Context(), other, 0)
	require.NoError(t, err)
	_, err = turns.Long.TakeWithin(t.Context(), other, 0)
	require.Error(t, err)
	short()
	long()
	for _, tenant := range []uuid.UUID{mine, other} {
		for _, kind := range []*places.Turns[uuid.UUID]{turns.Short, turns.Long} {
			leave, err := kind.TakeWithin(t.Context(), tenant, 0)
			require.NoError(t, err)
			leave()
		}
	}
}
