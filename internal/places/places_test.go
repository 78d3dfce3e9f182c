package places_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

func TestShares(t *testing.T) {
	t.Parallel()
	p := places.New[string](3, 2)
	first, ok := p.Take("ada")
	require.True(t, ok)
	_, ok = p.Take("ada")
	require.True(t, ok)
	_, ok = p.Take("ada")
	require.False(t, ok, "ada has her share")
	_, ok = p.Take("bob")
	require.True(t, ok)
	_, ok = p.Take("eve")
	require.False(t, ok, "all places are taken")
	first()
	_, ok = p.Take("eve")
	require.True(t, ok)
}

// With any number of concurrent holders, no more places are taken than exist, and none is lost.
func TestPlacesConcurrently(t *testing.T) {
	t.Parallel()
	p := places.New[int](4, 2)
	var inside atomic.Int64
	var all sync.WaitGroup
	for holder := range 8 {
		all.Go(func() {
			for range 1000 {
				leave, ok := p.Take(holder % 4)
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
	all.Wait()
	for range 2 {
		for _, holder := range []int{1, 2} {
			_, ok := p.Take(holder)
			require.True(t, ok)
		}
	}
}

// With a share of what is left, holders that take all they can leave the least to another one.
func TestShareOfWhatIsLeft(t *testing.T) {
	t.Parallel()
	p := places.New[int](0, 0)
	var got []int
	for holder := range 20 {
		n := 0
		for ok := true; ok; {
			if _, ok = p.TakeShare(holder, 64, 2); ok {
				n++
			}
		}
		got = append(got, n)
	}
	require.Equal(t, []int{13, 10, 8}, got[:3])
	require.Equal(t, 2, got[19])
}
