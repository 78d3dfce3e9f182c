package overload

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If even the luckiest batch waited for Redis, the bound falls until the wait is at its target, and
// no further. Without the adaptation, 2 000 clients waited for 280 ms.
func TestBoundFallsToTheTargetOfTheQueue(t *testing.T) {
	b := risen(time.Second)
	require.EqualValues(t, 10_000, b.Limit(), "nothing waits")
	const perSecond = 10_000 // what Redis can decide
	var wait time.Duration
	for range 200 {
		inFlight := min(2000, b.Limit())
		wait = time.Duration(inFlight) * time.Second / perSecond
		b.Adjust(Signals{Queued: wait, InFlight: inFlight, Refused: 2000 - inFlight})
		require.LessOrEqual(t, b.Limit(), int64(10_000))
	}
	require.Greater(t, wait, maxQueued/2, "Redis must stay busy")
	require.Less(t, wait, maxQueued*3/2)
}

// After a start, the bound rises from a small number, and reaches its maximum within a second.
func TestBoundRampsUp(t *testing.T) {
	b := New(10_000, 2, time.Second)
	require.EqualValues(t, 128, b.Limit())
	intervals := 0
	for ; b.Limit() < 10_000; intervals++ {
		b.Adjust(Signals{InFlight: 20})
	}
	require.LessOrEqual(t, intervals, 10)

	b = New(10_000, 8, time.Second)
	b.Adjust(Signals{InFlight: 512, Queued: 60 * time.Millisecond})
	require.Less(t, b.Limit(), int64(512), "a cold instance that cannot take more")
	require.EqualValues(t, 50, New(50, 2, time.Second).Limit(), "never above the maximum")
}

// A wait for processors has other causes too, such as other processes on the machine. It alone
// lowers the bound only to the number of requests that keep the processors busy.
func TestBoundForProcessors(t *testing.T) {
	b := New(10_000, 2, time.Second)
	for range 10 {
		b.Adjust(Signals{InFlight: 10})
	}
	b.Adjust(Signals{InFlight: 2000, Runnable: 48 * time.Millisecond})
	require.EqualValues(t, 1000, b.Limit(), "at most by half at once")
	b.Adjust(Signals{InFlight: 1000, Runnable: 19200 * time.Microsecond})
	require.EqualValues(t, 625, b.Limit())
	for range 10 {
		b.Adjust(Signals{InFlight: 1000, Runnable: 80 * time.Millisecond})
	}
	require.EqualValues(t, 128, b.Limit())
	b.Adjust(Signals{InFlight: 10, Runnable: 80 * time.Millisecond})
	require.EqualValues(t, 128, b.Limit())
}

// If the refusals are the load, refused connections pause, and the checks keep their places. With a
// bound alone, clients that repeat at once leave a fifth of the checks.
func TestRefusalsPause(t *testing.T) {
	b := New(10_000, 2, time.Second)
	require.Zero(t, b.Refuse())
	budget := perThread * 2 * Interval.Seconds()
	const clients = 2000
	before := b.Limit()
	var refused float64
	for range 100 {
		// A client that pauses comes back once per pause.
		refused = 100_000 * Interval.Seconds()
		if pause := b.Pause(); pause > 0 {
			refused = min(refused, clients/pause.Seconds()*Interval.Seconds())
		}
		wait := time.Duration(refused / budget * float64(maxRunnable))
		b.Adjust(Signals{InFlight: b.Limit(), Runnable: wait, Refused: int64(refused)})
	}
	require.LessOrEqual(t, refused, budget*2)
	require.LessOrEqual(t, b.Pause(), maxPause)
	require.GreaterOrEqual(t, b.Limit(), before, "checks keep their places")
	for range 100 {
		b.Adjust(Signals{InFlight: 10})
	}
	require.Zero(t, b.Pause(), "after the overload, no connection pauses")

	b.Adjust(Signals{InFlight: 200, Queued: time.Second, Refused: 2000})
	require.Zero(t, b.Pause(), "a few refusals are free while processors are idle")
	b.Adjust(Signals{InFlight: 200, Queued: time.Second, Refused: 10_000})
	require.Positive(t, b.Pause(), "Redis may need the processor")
	for range 100 {
		b.Adjust(Signals{InFlight: 200, Refused: 10_000})
	}
	require.Equal(t, maxIdlePause, b.Pause())
}

// Very many errors pause even if processors are not short, and neither lengthen the pause of
// refusals nor change the bound. A few do not.
func TestErrorsHaveTheirOwnPause(t *testing.T) {
	b := New(10_000, 2, time.Second)
	b.Adjust(Signals{InFlight: 10, Failed: 1000})
	require.Zero(t, b.FailPause())
	b.Adjust(Signals{InFlight: 10, Failed: 24_000})
	require.Positive(t, b.FailPause())
	before := b.Limit()
	for range 10 {
		b.Adjust(Signals{InFlight: 10, Runnable: 2 * maxRunnable, Failed: 1_000_000})
	}
	require.Equal(t, maxPause, b.FailPause())
	require.Zero(t, b.Pause())
	require.Equal(t, before, b.Limit())
	for range 200 {
		b.Adjust(Signals{InFlight: 10})
	}
	require.Zero(t, b.FailPause())
}

// Only those who ask for many errors pause before them: an error of another tenant does not wait
// for the pause that one causes.
func TestErrorsOfOthersDoNotPause(t *testing.T) {
	b := New(10_000, 2, time.Second)
	short := Signals{InFlight: 10, Runnable: 2 * maxRunnable, Failed: 1_000_000}
	for range 2 { // a new Interval begins at zero
		b.Adjust(short)
		for range mostErrors / 8 {
			require.Zero(t, b.Fail("loud", 8))
		}
		require.Equal(t, b.FailPause(), b.Fail("loud", 8))
		require.Positive(t, b.FailPause())
		require.Zero(t, b.Fail("quiet", 8))
	}
	require.EqualValues(t, 2*(mostErrors+16), b.TakeFailed())
}

// One tenant has at most half of the requests, but a single tenant can keep the processors busy.
func TestShare(t *testing.T) {
	b := New(10_000, 2, time.Second)
	require.EqualValues(t, 128, b.Share())
	for range 10 {
		b.Adjust(Signals{})
	}
	require.EqualValues(t, 5000, b.Share())
	for range 20 {
		b.Adjust(Signals{Queued: time.Second, InFlight: 1})
	}
	require.EqualValues(t, leastBound, b.Limit())
	require.EqualValues(t, leastBound, b.Share())
	require.EqualValues(t, 5, Fixed(10).Share())
}

func TestMeanSince(t *testing.T) {
	buckets := []float64{math.Inf(-1), 0, 0.002, 0.004, math.Inf(1)}
	require.Zero(t, meanSince([]uint64{0, 5, 1, 0}, []uint64{0, 5, 1, 0}, buckets))
	require.Equal(t, 2*time.Millisecond, meanSince([]uint64{0, 6, 2, 0}, []uint64{0, 5, 1, 0}, buckets))
	require.Equal(t, 4*time.Millisecond, meanSince([]uint64{0, 0, 0, 2}, []uint64{0, 0, 0, 0}, buckets))

	var r Runnable
	require.Zero(t, r.Mean())
	var all sync.WaitGroup
	for range 1000 { // the runtime measures one turn of eight
		all.Go(func() {})
	}
	all.Wait()
	require.Positive(t, r.Mean(), "the runtime still has this metric")
}
