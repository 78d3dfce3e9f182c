package places_test

import (
	"context"
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
