package places_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// inSite is an address in a home in a site.
func inSite(site string, home, address int) [3]string {
	return [3]string{fmt.Sprintf("%s-%d-%d", site, home, address), fmt.Sprintf("%s-%d", site, home), site}
}

// all takes places for holders until none is left for them, and returns how many that are.
func all(take func(within [3]string) (func(), bool), holder func(i int) [3]string) (n int) {
	for i := range 1000 {
		if _, ok := take(holder(i)); ok {
			n++
		}
	}
	return n
}

// However many addresses a site has, it leaves places for other sites.
func TestNestedPlaces(t *testing.T) {
	t.Parallel()
	p := places.NewNested[string]()
	take := func(within [3]string) (func(), bool) { return p.Take(within, 64, 8) }
	require.Equal(t, 8, all(take, func(int) [3]string { return inSite("a", 1, 1) }), "one address")
	require.Equal(t, 24, all(take, func(i int) [3]string { return inSite("a", 1, i+2) }), "4 times as many of a home")
	require.Equal(t, 16, all(take, func(i int) [3]string { return inSite("a", i+2, i) }), "three quarters of all of a site")
	require.Equal(t, 1, all(take, func(i int) [3]string { return inSite("b", i, i) }), "the last quarter is for sites without any")
	leave, ok := take([3]string{"c", "", "c's site"})
	require.True(t, ok)
	require.Equal(t, 14, all(take, func(i int) [3]string { return [3]string{fmt.Sprint("d", i)} }), "each without a site is one itself")
	require.Equal(t, 64, p.Taken())
	_, ok = take(inSite("e", 1, 1))
	require.False(t, ok)
	leave()
	_, ok = take(inSite("e", 1, 1))
	require.True(t, ok)
	only, ok := places.NewNested[string]().Take(inSite("a", 1, 1), 1, 1)
	require.True(t, ok, "of a single place, none is reserved")
	only()
}

// With a share of what is left, a site leaves as many to others as a holder without a site.
func TestNestedShareOfWhatIsLeft(t *testing.T) {
	t.Parallel()
	p := places.NewNested[string]()
	take := func(within [3]string) (func(), bool) { return p.TakeShare(within, 256, 4) }
	require.Equal(t, 51, all(take, func(int) [3]string { return inSite("a", 1, 1) }))
	require.Equal(t, 13, all(take, func(i int) [3]string { return inSite("a", 1, i+2) }), "a third of what is left of a home")
	require.Equal(t, 21, all(take, func(i int) [3]string { return inSite("a", i+2, i) }), "half of what is left of a site")
	for site := range 10 {
		all(take, func(i int) [3]string { return inSite(fmt.Sprint(site), i, i) })
	}
	require.Equal(t, 4, all(take, func(int) [3]string { return inSite("b", 1, 1) }), "the least of an address")
	require.Equal(t, 12, all(take, func(i int) [3]string { return inSite("b", i+2, i) }), "the least of a site")
}

// With any number of concurrent holders, no more places are taken than exist, and none is lost.
func TestNestedConcurrently(t *testing.T) {
	t.Parallel()
	p := places.NewNested[string]()
	var inside atomic.Int64
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for range 1000 {
				leave, ok := p.Take(inSite(fmt.Sprint(i%3), i%2, i), 4, 2)
				if !ok {
					continue
				}
				if inside.Add(1) > 4 {
					t.Error("more than 4 at once")
				}
				inside.Add(-1)
				leave()
			}
		})
	}
	wait.Wait()
	require.Zero(t, p.Taken())
	require.Equal(t, 3, all(func(within [3]string) (func(), bool) { return p.Take(within, 4, 2) }, func(i int) [3]string { return inSite("0", i, i) }))
}
