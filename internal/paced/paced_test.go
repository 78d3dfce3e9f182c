package paced_test

import (
	"context"
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
		begun, at := time.Now(), []int64(nil)
		go l.Run(ctx, func() { at = append(at, time.Since(begun).Milliseconds()) })
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int64{0, 1000, 2000}, at)
		for range 3 {
			l.Hurry()
		}
		synctest.Wait()
		l.Hurry()
		synctest.Wait()
		require.Equal(t, []int64{0, 1000, 2000, 2500}, at)
		time.Sleep(350 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int64{0, 1000, 2000, 2500, 2600}, at, "after a gap")
		cancel()
		time.Sleep(5 * time.Second)
		require.Len(t, at, 5)
	})
}
