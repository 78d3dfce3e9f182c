package paced_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/paced"
)

// Work is repeated regularly, and sooner after Hurry, but with a gap. Several calls of Hurry are
// as one.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := paced.New(time.Second, 100*time.Millisecond)
		begun := time.Now()
		var mu sync.Mutex
		var calls []int64
		go l.Run(ctx, func() {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, time.Since(begun).Milliseconds())
		})
		called := func() []int64 {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(calls)
		}
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int64{0, 1000, 2000}, called())
		for range 3 {
			l.Hurry()
		}
		synctest.Wait()
		l.Hurry()
		synctest.Wait()
		require.Equal(t, []int64{0, 1000, 2000, 2500}, called())
		time.Sleep(350 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int64{0, 1000, 2000, 2500, 2600}, called(), "after a gap")
		cancel()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Len(t, called(), 5)
	})
}
