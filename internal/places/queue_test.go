package places_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Holders take turns, each with one batch in process at most, and an item is in the queue once.
func TestQueue(t *testing.T) {
	t.Parallel()
	q := places.NewQueue[string, int](1000, 100, 1)
	next := func() (string, []int, func()) {
		t.Helper()
		holder, batch, done, err := q.Next(t.Context(), 2)
		require.NoError(t, err)
		return holder, batch, done
	}
	for range 2 {
		for i := range 4 {
			require.True(t, q.Add("a", i))
		}
	}
	holder, batch, doneA := next()
	require.Equal(t, "a", holder)
	require.Equal(t, []int{0, 1}, batch)
	require.True(t, q.Add("a", 0), "it is in process")
	require.True(t, q.Add("b", 9))
	holder, batch, doneB := next()
	require.Equal(t, "b", holder, "a has a batch in process")
	require.Equal(t, []int{9}, batch)
	ended, end := context.WithCancel(t.Context())
	end()
	_, _, _, err := q.Next(ended, 2)
	require.ErrorIs(t, err, context.Canceled, "b has one, too")
	doneB()
	require.True(t, q.Add("b", 9), "again, after it was processed")
	doneA()
	holder, _, doneB = next()
	require.Equal(t, "b", holder)
	holder, batch, doneA = next()
	require.Equal(t, "a", holder)
	require.Equal(t, []int{2, 3}, batch)
	doneA()
	doneB()
	_, _, _, err = q.Next(ended, 2)
	require.ErrorIs(t, err, context.Canceled, "nothing is left")
}

// A holder with very many items leaves room for others, and each has at least some.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	q := places.NewQueue[int, int](40, 8, 2)
	fill := func(holder int) (n int) {
		for q.Add(holder, n) {
			n++
		}
		return n
	}
	require.Equal(t, []int{8, 6, 5, 4, 3}, []int{fill(0), fill(1), fill(2), fill(3), fill(4)})
	for i := range 100 {
		require.GreaterOrEqual(t, fill(10+i), 2)
	}
	_, batch, done, err := q.Next(t.Context(), 100)
	require.NoError(t, err)
	require.Len(t, batch, 8)
	require.False(t, q.Add(0, 100), "items in process count")
	done()
	require.True(t, q.Add(0, 100))
}

// Several workers process every item once, while holders add more.
func TestQueueWorkers(t *testing.T) {
	t.Parallel()
	q := places.NewQueue[int, int](10_000, 10_000, 1000)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const holders, each = 8, 200
	var mu sync.Mutex
	seen := map[[2]int]int{}
	busy := map[int]bool{}
	var left, workers sync.WaitGroup
	left.Add(holders * each)
	for range 3 {
		workers.Go(func() {
			for {
				holder, batch, done, err := q.Next(ctx, 7)
				if err != nil {
					return
				}
				mu.Lock()
				if busy[holder] {
					t.Error("a holder has two batches in process")
				}
				busy[holder] = true
				mu.Unlock()
				for _, item := range batch {
					mu.Lock()
					seen[[2]int{holder, item}]++
					mu.Unlock()
				}
				mu.Lock()
				busy[holder] = false
				mu.Unlock()
				done()
				left.Add(-len(batch))
			}
		})
	}
	for holder := range holders {
		workers.Go(func() {
			for i := range each {
				if !q.Add(holder, i) {
					t.Error("no room")
				}
			}
		})
	}
	left.Wait()
	stop()
	workers.Wait()
	require.Len(t, seen, holders*each)
	for item, times := range seen {
		require.Equal(t, 1, times, item)
	}
}
