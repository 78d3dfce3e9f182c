package accesslog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A flood of refused requests writes a limited number of lines, which have the total. Valid
// requests are logged as usual.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := New(slog.New(slog.NewJSONHandler(&log, nil)))
		tenant := uuid.New()
		written := func(tenant uuid.UUID, refused bool, n int) (lines int) {
			for range n {
				if b.Take(tenant, refused) {
					lines++
				}
			}
			return lines
		}
		require.Equal(t, Lines, written(uuid.Nil, true, 9_000)+written(uuid.Nil, false, 1_000), "also those that are answered")
		require.Equal(t, Lines, written(tenant, true, 30), "each tenant has its own")
		require.Equal(t, 100, written(tenant, false, 100))
		time.Sleep(Window + time.Millisecond) // on the bubble's clock
		synctest.Wait()
		require.Equal(t, 2, strings.Count(log.String(), "requests not logged"), log.String())
		require.Contains(t, log.String(), `"requests":9980`)
		require.Contains(t, log.String(), `"requests":10,"tenant_id":"`+tenant.String())
		require.Equal(t, Lines, written(uuid.Nil, true, 100), "the next second has lines again")
		time.Sleep(Window + time.Millisecond)
		synctest.Wait()
		require.Contains(t, log.String(), `"requests":80`)
		require.Equal(t, 5, written(uuid.Nil, true, 5))
		time.Sleep(Window + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 3, strings.Count(log.String(), "requests not logged"), "nothing was left out")
		require.Empty(t, b.open)
	})
}
