package redis_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// Three instances with 64 clients each use one counter while a day in Berlin ends, the day on which
// the clock is set back. Two of the instances have clocks that are hours off. Each day allows
// exactly its limit.
func TestCalendarWindowEndsExactly(t *testing.T) {
	const (
		limitOfDay = 700
		midnight   = int64(1_792_969_200_000) // 2026-10-26T00:00:00+01:00, after a day of 25 hours
		around     = 40                       // milliseconds before and after it
		eachMS     = 60                       // calls, by all clients together
	)
	server := testenv.StartRedis(t)
	zone, err := limit.ParseZone("Europe/Berlin")
	require.NoError(t, err)
	windows, err := limit.NewCalendarWindows(limit.CalendarDay, zone)
	require.NoError(t, err)
	before := windows.At(midnight - 1)
	require.Equal(t, limit.Span{StartMS: midnight - 25*3_600_000, EndMS: midnight}, before)

	var clock, asked atomic.Int64
	clock.Store(midnight - around)
	tick := func() int64 { // the time advances with the calls
		if n := asked.Add(1); n%eachMS == 0 {
			clock.Add(1)
		}
		return clock.Load()
	}
	key := enginetest.Prefix() + "day"
	var admitted [2]atomic.Int64 // before midnight, and after it
	var clients sync.WaitGroup
	for _, offMS := range []int64{0, -9 * 3_600_000, 11 * 3_600_000} {
		eng := redisengine.New(clientOf(t, server.URL), redisOptions())
		for range 64 {
			clients.Go(func() {
				for {
					now := tick()
					if now >= midnight+around {
						return
					}
					call := &engine.Call{NowMS: now, Cost: 1, Counters: []engine.Counter{{Key: key, Numbers: limit.Numbers{
						Algorithm: limit.FixedWindow, Calendar: limit.CalendarDay, Limit: limitOfDay, Bounds: windows.Around(now + offMS),
					}}}}
					eng.Evaluate(context.Background(), call)
					if call.Err != nil {
						t.Error(call.Err)
						return
					}
					if !call.Outcome.Allowed {
						continue
					}
					// A call that was sent before midnight may arrive after a call of the next day.
					// It then counts on that day.
					switch call.Outcome.Verdicts[0].ResetMS {
					case midnight:
						admitted[0].Add(1)
					case midnight + 24*3_600_000:
						admitted[1].Add(1)
					default:
						t.Errorf("window ends at %d", call.Outcome.Verdicts[0].ResetMS)
					}
				}
			})
		}
	}
	clients.Wait()
	require.EqualValues(t, limitOfDay, admitted[0].Load())
	require.EqualValues(t, limitOfDay, admitted[1].Load())
}
