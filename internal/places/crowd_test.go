package places_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Beyond the bound, the holder with the most loses its oldest request, and nobody is refused.
func TestCrowd(t *testing.T) {
	t.Parallel()
	c := places.NewCrowd[string](3)
	lost := make(chan string, 1)
	enter := func(name string, within ...string) (leave func()) {
		return c.Enter(func() { lost <- name }, within...)
	}
	leave := enter("a1", "a")
	enter("a2", "a")
	enter("b3", "b")
	enter("b4", "b")
	require.Equal(t, "a1", <-lost, "a has reached this number first")
	leave() // a second time changes nothing
	enter("c5", "c")
	require.Equal(t, "b3", <-lost)
	require.Equal(t, 3, c.Waiting())
}

// A site with very many addresses loses its own, of its address with the most.
func TestCrowdWithin(t *testing.T) {
	t.Parallel()
	c := places.NewCrowd[string](4)
	lost := make(chan string, 1)
	enter := func(name string, within ...string) (leave func()) {
		return c.Enter(func() { lost <- name }, within...)
	}
	enter("a1 0", "a1", "", "a")
	enter("a2 0", "a2", "", "a")
	leave := enter("a2 1", "a2", "", "a")
	enter("b 0", "b")
	enter("b 1", "b")
	require.Equal(t, "a2 0", <-lost)
	leave()
	require.Equal(t, 3, c.Waiting())
	enter("c 0", "c")
	require.Empty(t, lost)
	enter("d 0", "d")
	require.Equal(t, "b 0", <-lost, "of the largest one")
}

// Holders with fewer get a place from those with more, until nobody has two more than another one.
// Then nobody ends a request of another one.
func TestCrowdShare(t *testing.T) {
	t.Parallel()
	c := places.NewCrowd[string](4)
	lost := make(chan string, 1)
	enter := func(name string, within ...string) (ok bool) {
		_, ok = c.EnterShare(func() { lost <- name }, within...)
		return ok
	}
	for _, name := range []string{"a1 0", "a1 1", "a2 0", "a2 1"} {
		require.True(t, enter(name, name[:2], "", "a"))
	}
	require.False(t, enter("a3 0", "a3", "", "a"), "it has the most itself")
	require.True(t, enter("b0", "b"))
	require.Equal(t, "a1 0", <-lost)
	require.False(t, enter("a1 0", "a1", "", "a"), "when it comes again")
	require.True(t, enter("b1", "b"))
	require.Equal(t, "a2 0", <-lost)
	require.False(t, enter("b2", "b"), "both have two")
	require.True(t, enter("c0", "c"))
	require.Equal(t, "b0", <-lost, "b had two before a had only two")
	require.True(t, enter("d0", "d"))
	require.Equal(t, "a1 1", <-lost)
	require.False(t, enter("e0", "e"), "each has one")
	require.Empty(t, lost)
	require.Equal(t, 4, c.Waiting())
}

// If there are more holders than places, those without one get the oldest that has lasted for a
// time, in the order in which they wait. A holder that has one does not end those of others.
func TestCrowdTakesTurns(t *testing.T) {
	t.Parallel()
	c := places.NewCrowd[string](2)
	lost := make(chan string, 1)
	start := time.Unix(0, 0)
	enter := func(name string, before int, at time.Duration) (ok bool) {
		_, ok = c.EnterNext(before, start.Add(at*time.Second), time.Minute, func() { lost <- name }, name, "", name[:1])
		return ok
	}
	require.False(t, enter("a0", 2, 0), "the free places are for those before it")
	require.True(t, enter("a0", 1, 0))
	require.True(t, enter("a1", 0, 0), "of the same holder")
	require.True(t, enter("b0", 0, 10))
	require.Equal(t, "a0", <-lost, "it has two more than b")

	require.False(t, enter("c0", 0, 59))
	require.True(t, enter("c0", 0, 60))
	require.Equal(t, "a1", <-lost)
	require.False(t, enter("a0", 0, 69), "b has lasted for less than a minute")
	require.False(t, enter("b1", 0, 70), "it would be the second one")
	require.False(t, enter("d0", 1, 70), "one place is for the one before it")
	require.True(t, enter("a0", 0, 70))
	require.Equal(t, "b0", <-lost)
	require.True(t, enter("d0", 1, 200), "both are old")
	require.Equal(t, "c0", <-lost)
	require.Empty(t, lost)
	require.Equal(t, 2, c.Waiting())
}

// A request may count as several. The holder with the most parts loses one, and as many as make
// space for a larger one.
func TestCrowdParts(t *testing.T) {
	t.Parallel()
	c := places.NewCrowd[string](10)
	lost := make(chan string, 10)
	enter := func(name string, parts int, within ...string) (leave func()) {
		return c.EnterParts(parts, func() { lost <- name }, within...)
	}
	enter("a1", 5, "a")
	enter("b1", 1, "b")
	leave := enter("b2", 1, "b")
	enter("b3", 1, "b")
	require.Equal(t, 8, c.Waiting())
	enter("c1", 3, "c")
	require.Equal(t, "a1", <-lost, "a has more parts, and b more requests")
	require.Equal(t, 6, c.Waiting())
	leave()
	enter("d1", 9, "d")
	require.Equal(t, "d1", <-lost, "it has the most parts itself")
	require.Equal(t, 5, c.Waiting())
	enter("c2", 5, "c")
	enter("b4", 3, "b")
	require.Equal(t, "c1", <-lost)
	require.Empty(t, lost, "its parts were enough")
	require.Equal(t, 10, c.Waiting())
}

// With any number of concurrent holders, as many wait as have neither left nor lost.
func TestCrowdConcurrently(t *testing.T) {
	t.Parallel()
	c := places.NewCrowd[string](8)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			var leaves []func()
			for n := range 500 {
				leaves = append(leaves, c.EnterParts(1+n%4, func() {}, fmt.Sprint(n%7), "", fmt.Sprint(i%3)))
				if n%5 == 4 {
					for _, leave := range leaves {
						leave()
					}
					leaves = nil
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, c.Waiting())
}
