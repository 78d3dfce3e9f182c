package places_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// begun are requests of one holder that wait for a place.
type begun struct {
	*places.Starts[string]
	t    *testing.T
	runs chan int // the numbers of those that have one
	out  map[int]func()
	ctx  map[int]context.Context
}

// crowded returns places for one request at once, with one that is not counted, one that runs, and
// some that wait.
func crowded(t *testing.T, waiting int) *begun {
	b := &begun{places.NewStarts[string](1), t, make(chan int, waiting), map[int]func(){}, map[int]context.Context{}}
	b.SetLong(time.Hour)
	for i := range 2 {
		b.ctx[i], b.out[i] = b.Begin(t.Context(), "a")
	}
	for i := 2; i < 2+waiting; i++ {
		go func() {
			ctx, end := b.Begin(t.Context(), "a")
			b.ctx[i], b.out[i] = ctx, end
			b.runs <- i
		}()
		for b.Waiting("a") != i-1 {
			runtime.Gosched()
		}
	}
	return b
}

// next ends request i, or lets it wait for others, and requires that the next one in order runs.
func (b *begun) next(end func(), want int) {
	b.t.Helper()
	require.Empty(b.t, b.runs)
	end()
	require.Equal(b.t, want, <-b.runs)
	require.Empty(b.t, b.runs)
}

// Beyond a number, the requests of a holder run one after the other, as they came.
func TestStartsInOrder(t *testing.T) {
	t.Parallel()
	b := crowded(t, 3)
	_, end := b.Begin(t.Context(), "another holder")
	end()
	b.out[0]() // it has no place that another could get
	b.next(b.out[1], 2)
	b.next(b.out[2], 3)
	b.next(b.out[3], 4)
	b.out[4]()
	for range 2 { // all places are free
		_, end := b.Begin(t.Context(), "a")
		end()
	}
	require.Zero(t, b.Waiting("a"))
}

// A request that waits for others lets the next one run, once.
func TestStartsWait(t *testing.T) {
	t.Parallel()
	b := crowded(t, 2)
	places.Wait(b.ctx[0])
	places.Wait(t.Context())
	b.next(func() { places.Wait(b.ctx[1]) }, 2)
	places.Wait(b.ctx[1])
	b.out[1]()
	b.next(b.out[2], 3)
	b.out[3]()
	b.out[0]()
}

// A request that runs for long is taken to wait.
func TestStartsOfSlowRequests(t *testing.T) {
	t.Parallel()
	s := places.NewStarts[string](1)
	s.SetLong(time.Nanosecond)
	ends := make([]func(), 10)
	for i := range ends { // none of them has ended when the next one begins
		_, ends[i] = s.Begin(t.Context(), "a")
	}
	for _, end := range ends {
		end()
	}
	s.SetLong(time.Hour)
	_, first := s.Begin(t.Context(), "a")
	_, second := s.Begin(t.Context(), "a")
	second()
	first()
	require.Zero(t, s.Waiting("a"))
}
