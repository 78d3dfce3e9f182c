package places_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// roundsOfOne has one place, which is taken, and requests that wait for it.
type roundsOfOne struct {
	*places.Rounds[string]
	t    *testing.T
	outs map[string]chan error
	got  chan string // names of requests that have the place
}

func newRoundsOfOne(t *testing.T, queue int) *roundsOfOne {
	r := &roundsOfOne{places.NewRounds[string](1, queue), t, map[string]chan error{}, make(chan string)}
	require.NoError(t, r.Take(t.Context(), "first"))
	return r
}

// wait starts a request, and returns when it waits, or another one has lost its place in the queue.
func (r *roundsOfOne) wait(ctx context.Context, holder, name string, waiting int) {
	r.waitWithin(ctx, []string{holder}, name, waiting)
}

func (r *roundsOfOne) waitWithin(ctx context.Context, within []string, name string, waiting int) {
	out := make(chan error, 1)
	r.outs[name] = out
	started := make(chan struct{})
	go func() {
		close(started)
		err := r.Take(ctx, within...)
		out <- err
		if err == nil {
			r.got <- name
		}
	}()
	<-started
	for r.Waiting() != waiting {
		runtime.Gosched()
	}
}

// next leaves the place, and returns who has it then.
func (r *roundsOfOne) next() string {
	r.Leave()
	return <-r.got
}

// Holders take turns, and the newest request of a holder is first.
func TestRounds(t *testing.T) {
	t.Parallel()
	r := newRoundsOfOne(t, 1000)
	for n := range 100 {
		r.wait(t.Context(), "ada", fmt.Sprint("ada ", n), n+1)
	}
	r.wait(t.Context(), "bob", "bob 0", 101)
	r.wait(t.Context(), "bob", "bob 1", 102)
	r.wait(t.Context(), "eve", "eve 0", 103)
	var order []string
	for range 7 {
		order = append(order, r.next())
	}
	require.Equal(t, []string{"ada 99", "bob 1", "eve 0", "ada 98", "bob 0", "ada 97", "ada 96"}, order)
	for range 96 {
		r.next()
	}
	require.Zero(t, r.Waiting())
	r.Leave()
	require.NoError(t, r.Take(t.Context(), "ron"), "the place is free")
}

// If too many wait, the holder with the most loses its oldest request.
func TestRoundsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRoundsOfOne(t, 4)
	for n := range 3 {
		r.wait(t.Context(), "ada", fmt.Sprint("ada ", n), n+1)
	}
	r.wait(t.Context(), "bob", "bob 0", 4)
	r.wait(t.Context(), "eve", "eve 0", 4)
	require.ErrorIs(t, <-r.outs["ada 0"], places.ErrCrowded)
	r.wait(t.Context(), "ron", "ron 0", 4)
	require.ErrorIs(t, <-r.outs["ada 1"], places.ErrCrowded)
	r.wait(t.Context(), "bob", "bob 1", 4)
	require.ErrorIs(t, <-r.outs["bob 0"], places.ErrCrowded, "bob has the most")
	var order []string
	for range 4 {
		order = append(order, r.next())
	}
	require.Equal(t, []string{"ada 2", "bob 1", "eve 0", "ron 0"}, order)
}

// A site has as many turns with very many addresses as with one, and its addresses take turns among
// themselves.
func TestRoundsWithin(t *testing.T) {
	t.Parallel()
	r := newRoundsOfOne(t, 1000)
	n := 0
	wait := func(name string, within ...string) {
		n++
		r.waitWithin(t.Context(), within, name, n)
	}
	for i := range 50 {
		wait(fmt.Sprint("flood ", i), fmt.Sprint("flood ", i), fmt.Sprint("home ", i%10), "flood")
	}
	wait("neighbour", "neighbour", "home 10", "flood")
	wait("ada", "ada", "", "ada's site")
	wait("bob", "bob")
	var order []string
	for range 4 {
		order = append(order, r.next())
	}
	require.Equal(t, []string{"flood 0", "ada", "bob", "flood 1"}, order)
	for range 8 {
		r.next()
	}
	require.Equal(t, "neighbour", r.next(), "after one of each home")
	require.Equal(t, "flood 10", r.next())
	for range 39 {
		r.next()
	}
	require.Zero(t, r.Waiting())
}

// If too many wait, the site with the most loses one of its address with the most.
func TestRoundsWithinAreBounded(t *testing.T) {
	t.Parallel()
	r := newRoundsOfOne(t, 5)
	for i := range 2 {
		r.waitWithin(t.Context(), []string{"a1", "", "a"}, fmt.Sprint("a1 ", i), i+1)
	}
	r.waitWithin(t.Context(), []string{"a2", "", "a"}, "a2 0", 3)
	for i := range 2 {
		r.waitWithin(t.Context(), []string{"b", "", ""}, fmt.Sprint("b ", i), 4+i)
	}
	r.waitWithin(t.Context(), []string{"c", "", "c"}, "c", 5)
	require.ErrorIs(t, <-r.outs["a1 0"], places.ErrCrowded)
	r.waitWithin(t.Context(), []string{"d", "", "d"}, "d", 5)
	require.ErrorIs(t, <-r.outs["b 0"], places.ErrCrowded, "it has reached this number before the other")
	var order []string
	for range 5 {
		order = append(order, r.next())
	}
	require.Equal(t, []string{"a1 1", "b 1", "c", "d", "a2 0"}, order)
}

// A request that gives up leaves the queue, and takes no place.
func TestRoundsGiveUp(t *testing.T) {
	t.Parallel()
	r := newRoundsOfOne(t, 10)
	ctx, cancel := context.WithCancel(t.Context())
	r.wait(ctx, "ada", "ada 0", 1)
	r.wait(t.Context(), "ada", "ada 1", 2)
	r.wait(ctx, "bob", "bob 0", 3)
	cancel()
	require.ErrorIs(t, <-r.outs["ada 0"], context.Canceled)
	require.ErrorIs(t, <-r.outs["bob 0"], context.Canceled)
	require.Equal(t, 1, r.Waiting())
	require.Equal(t, "ada 1", r.next())
	r.Leave()
	require.ErrorIs(t, r.Take(ctx, "ada"), context.Canceled, "although a place is free")
}

// With any number of concurrent holders, some of which give up, no more places are taken than
// exist, and none is lost.
func TestRoundsConcurrently(t *testing.T) {
	t.Parallel()
	r := places.NewRounds[int](3, 8)
	var inside atomic.Int64
	var all sync.WaitGroup
	for holder := range 16 {
		all.Go(func() {
			for n := range 1000 {
				ctx, cancel := context.WithCancel(context.Background())
				if n%3 == 0 {
					go cancel()
				}
				if r.Take(ctx, holder%5, 5+holder%3, 8+holder%2) == nil {
					if inside.Add(1) > 3 {
						t.Error("more than 3 at once")
					}
					runtime.Gosched()
					inside.Add(-1)
					r.Leave()
				}
				cancel()
			}
		})
	}
	all.Wait()
	require.Zero(t, r.Waiting())
	for range 3 {
		require.NoError(t, r.Take(t.Context(), 0))
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() { got <- r.Take(ctx, 0) }()
	for r.Waiting() == 0 {
		runtime.Gosched()
	}
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
}
