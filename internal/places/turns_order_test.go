package places_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// A free place goes to the holder who has the fewest, also if another one has waited longer.
func TestTurnsByHolder(t *testing.T) {
	t.Parallel()
	turns := places.NewTurns[string](3, 2, 0)
	first, err := turns.Take(t.Context(), "ada")
	require.NoError(t, err)
	_, err = turns.Take(t.Context(), "ada")
	require.NoError(t, err)
	got := make(chan string)
	wait := func(holder string) {
		waiting := turns.WaitingOf(holder)
		go func() {
			if _, err := turns.Take(t.Context(), holder); err == nil {
				got <- holder
			}
		}()
		for turns.WaitingOf(holder) == waiting {
			runtime.Gosched()
		}
	}
	wait("ada") // she has her share, although a place is free
	bob, err := turns.Take(t.Context(), "bob")
	require.NoError(t, err)
	wait("bob")
	wait("eve")
	bob()
	require.Equal(t, "eve", <-got, "ada has her share; bob and eve have none, and bob just had one")
	first()
	require.Equal(t, "bob", <-got, "ada came first, and has one")
}

// A holder who stops waiting takes no place, and a place that was given meanwhile goes back.
func TestTurnsEnd(t *testing.T) {
	t.Parallel()
	turns := places.NewTurns[string](1, 1, 0)
	ended, end := context.WithCancel(t.Context())
	end()
	leave, err := turns.Take(ended, "ada")
	require.NoError(t, err, "the place is free")
	_, err = turns.Take(ended, "bob")
	require.ErrorIs(t, err, context.Canceled)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := turns.Take(ctx, "bob")
		done <- err
	}()
	for turns.WaitingOf("bob") == 0 {
		runtime.Gosched()
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Zero(t, turns.WaitingOf("bob"))
	leave()
	_, err = turns.Take(t.Context(), "eve")
	require.NoError(t, err)
}

// With any number of concurrent holders, some of whom stop waiting, no more places are taken than
// exist, and none is lost.
func TestTurnsConcurrently(t *testing.T) {
	t.Parallel()
	turns := places.NewTurns[int](4, 2, 0)
	var inside atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 200 {
				ctx, stop := context.WithCancel(t.Context())
				if i%3 == 0 {
					go stop()
				}
				if leave, err := turns.Take(ctx, i%5); err == nil {
					if inside.Add(1) > 4 {
						t.Error("more than 4 at once")
					}
					inside.Add(-1)
					leave()
				}
				stop()
			}
		})
	}
	all.Wait()
	for holder := range 4 {
		_, err := turns.Take(t.Context(), holder)
		require.NoError(t, err)
	}
}

// However many wait, giving a place to another holder looks at few of them. Before, it looked at
// all, with the lock that everybody needs.
func TestTurnsLookAtFewWaiting(t *testing.T) {
	const holders, each = 5, 400
	turns := places.NewTurns[int](64, 8, 4)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for holder := range holders {
		for range 8 {
			_, err := turns.Take(ctx, holder)
			require.NoError(t, err)
		}
		for range each {
			waiting.Go(func() { _, _ = turns.Take(ctx, holder) })
		}
	}
	for holder := range holders {
		for turns.WaitingOf(holder) < each {
			runtime.Gosched()
		}
	}
	const times = 1000
	before := turns.Compared()
	for range times {
		leave, err := turns.Take(ctx, holders)
		require.NoError(t, err)
		leave()
	}
	require.LessOrEqual(t, turns.Compared()-before, times*10)
	before = turns.Compared()
	cancel()
	waiting.Wait()
	require.LessOrEqual(t, turns.Compared()-before, holders*each*10, "all of them give up")
	for holder := range holders {
		require.Zero(t, turns.WaitingOf(holder))
	}
}
