package places_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// work has the place for a time of what others use, again and again, and returns how long all took.
func work(t *testing.T, p *places.Pace[string], holder string, times int, took time.Duration) time.Duration {
	begun := time.Now()
	for range times {
		if p.Take(t.Context(), holder) != nil {
			break
		}
		time.Sleep(took)
		p.Leave(holder, took)
	}
	return time.Since(begun)
}

// Long work leaves the place empty for nine times as long. Short work does so too, but only as a
// sum.
func TestPaceRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := places.NewPace[string](9, time.Millisecond)
		require.Equal(t, 398*time.Millisecond, work(t, p, "a", 11, 4*time.Millisecond), "400 ms, and 4 of the last one, without 10 for the free one")
		time.Sleep(time.Second)
		require.Equal(t, time.Millisecond, work(t, p, "a", 10, 100*time.Microsecond), "at once")
		time.Sleep(time.Second)
		require.InDelta(t, time.Second, work(t, p, "a", 1000, 100*time.Microsecond), float64(20*time.Millisecond), "a tenth of the time")
	})
}

// The holder that has used the least is next. One that comes later is not ahead by all that others
// have used before.
func TestPaceIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := places.NewPace[string](9, time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, holder := range []string{"a", "b", "c", "d"} {
			go func() {
				for p.Take(ctx, holder) == nil {
					time.Sleep(4 * time.Millisecond)
					p.Leave(holder, 4*time.Millisecond)
				}
			}()
		}
		time.Sleep(10 * time.Second)
		for range 5 {
			require.LessOrEqual(t, work(t, p, "e", 1, 100*time.Microsecond), 170*time.Millisecond, "once for each of the others")
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, work(t, p, "f", 30, 100*time.Microsecond), 210*time.Millisecond, "less work than one piece of the others")
		long := work(t, p, "g", 10, 4*time.Millisecond)
		require.Greater(t, long, 5*400*time.Millisecond/2, "as much as the others")
		require.Less(t, long, 6*400*time.Millisecond)
		cancel()
		synctest.Wait()
	})
}

// A holder that stops waiting keeps the place from nobody.
func TestPaceStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := places.NewPace[string](9, 0)
		require.NoError(t, p.Take(t.Context(), "a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Take(ctx, "b"), context.DeadlineExceeded)
		require.ErrorIs(t, p.Take(ctx, "b"), context.DeadlineExceeded, "not at all")
		p.Leave("a", time.Minute)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Take(ctx, "b"), context.DeadlineExceeded, "in the rest")
		require.NoError(t, p.Take(t.Context(), "c"))
		p.Leave("c", 0)
		require.NoError(t, p.Take(t.Context(), "b"))
	})
}

// simplePace says which holder is next, by all that was ever used.
type simplePace struct {
	taken   bool
	waiting []int
	used    map[int]time.Duration
	least   time.Duration
}

func (p *simplePace) usedBy(holder int) time.Duration { return max(p.least, p.used[holder]) }

// next returns the holder that gets the place.
func (p *simplePace) next() (holder int, ok bool) {
	if p.taken || len(p.waiting) == 0 {
		return 0, false
	}
	first := 0
	for i := range p.waiting {
		if p.usedBy(p.waiting[i]) < p.usedBy(p.waiting[first]) {
			first = i
		}
	}
	holder = p.waiting[first]
	p.waiting = slices.Delete(p.waiting, first, first+1)
	p.taken, p.least = true, p.usedBy(holder)
	return holder, true
}

func (p *simplePace) leave(holder int, took time.Duration) {
	p.taken, p.used[holder] = false, p.usedBy(holder)+took
}

// unpaced is work of which none has to wait for a rest.
const unpaced = 10_000 * time.Hour

// That it forgets who is not ahead any more changes nothing.
func TestPaceAsTheSimpleOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			p, simple := places.NewPace[int](0, unpaced), &simplePace{used: map[int]time.Duration{}}
			got, holder, used, forgot := make(chan int, 1), 0, 0, false
			for range 4000 {
				if simple.taken && random.IntN(2) == 0 {
					took := time.Duration(random.IntN(1000)) * time.Millisecond
					simple.leave(holder, took)
					p.Leave(holder, took)
				} else if len(simple.waiting) < 20 {
					comes := random.IntN(300)
					simple.waiting = append(simple.waiting, comes)
					go func() {
						if p.Take(t.Context(), comes) == nil {
							got <- comes
						}
					}()
				}
				synctest.Wait()
				next, ok := simple.next()
				if !ok {
					require.Empty(t, got)
					continue
				}
				require.Len(t, got, 1)
				holder = <-got
				require.Equal(t, next, holder)
				forgot, used = forgot || p.Used() < used, p.Used()
			}
			require.True(t, forgot)
			for simple.taken {
				simple.leave(holder, 0)
				p.Leave(holder, 0)
				synctest.Wait()
				if _, ok := simple.next(); ok {
					holder = <-got
				}
			}
		})
	}
}

// To forget who is not ahead any more, it does not look at all holders each time.
func TestPaceForgetsInFewSteps(t *testing.T) {
	t.Parallel()
	p := places.NewPace[int](0, unpaced)
	const holders, rounds = 1000, 4
	looked, most := 0, 0
	step := func(do func()) {
		before := p.Used()
		do()
		if p.Used() < before { // it has looked at all of them
			looked += before
		}
		most = max(most, p.Used())
	}
	for round := range rounds {
		for holder := range holders {
			step(func() { require.NoError(t, p.Take(t.Context(), holder)) })
			step(func() { p.Leave(holder, time.Duration(1+holder)*time.Millisecond) })
		}
		require.LessOrEqual(t, looked, 4*holders*(round+1))
	}
	require.LessOrEqual(t, most, 2*holders)

	// Nobody is ahead of those that come after one who has used much more than all.
	for range 2 {
		require.NoError(t, p.Take(t.Context(), 0))
		p.Leave(0, 100*time.Hour)
	}
	for holder := range 3 * holders {
		require.NoError(t, p.Take(t.Context(), holders+holder))
		p.Leave(holders+holder, 0)
	}
	require.LessOrEqual(t, p.Used(), 100, "it forgets them")
}

func BenchmarkPace(b *testing.B) {
	p := places.NewPace[int](0, unpaced)
	for holder := range 10_000 { // that are ahead of all that come
		require.NoError(b, p.Take(b.Context(), holder))
		p.Leave(holder, time.Hour)
	}
	for n := 0; b.Loop(); n++ {
		_ = p.Take(b.Context(), 10_000+n%100)
		p.Leave(10_000+n%100, 1)
	}
}
