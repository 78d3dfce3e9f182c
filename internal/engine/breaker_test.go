package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

type breakerRig struct {
	*circuit
	now     atomic.Int64
	healthy atomic.Bool
}

func newBreakerRig(t *testing.T) *breakerRig {
	r := &breakerRig{}
	r.now.Store(engineStart * int64(time.Millisecond))
	r.circuit = NewBreaker(nil, NewMetrics(prometheus.NewRegistry()), func() time.Time { return time.Unix(0, r.now.Load()) }).only
	r.probe = func(context.Context) error {
		if r.healthy.Load() {
			return nil
		}
		return errors.New("away")
	}
	t.Cleanup(r.breaker.Close)
	return r
}

func (r *breakerRig) move(d time.Duration) { r.now.Add(int64(d)) }
func (r *breakerRig) fail(n int, err error) {
	for range n {
		r.done(err)
	}
}

var errRefused = errors.New("connection refused")

// If the machine pauses for a moment, all calls in flight fail at once. That is not an outage: the
// next call is answered, and nothing is counted locally.
func TestBreakerIgnoresAPause(t *testing.T) {
	r := newBreakerRig(t)
	for range 10 {
		for range 1000 {
			r.done(nil)
		}
		r.move(100 * time.Millisecond)
		r.fail(200, os.ErrDeadlineExceeded)
		require.True(t, r.allow())
	}
	r.done(nil)
	r.fail(128, errRefused) // one broken connection, and all calls that shared it
	require.True(t, r.allow())
}

// Calls that wait behind too many others say nothing about the store: they are degraded, and the
// calls of other tenants, which have their turn, are not.
func TestBreakerIgnoresOverload(t *testing.T) {
	r := newBreakerRig(t)
	for range 100 {
		r.move(10 * time.Millisecond)
		r.done(nil)
		r.fail(100, fmt.Errorf("evaluate counters: %w", ErrNotSent))
	}
	r.move(time.Second)
	r.fail(100, ErrNotSent)
	require.True(t, r.allow())
	require.Equal(t, int32(breakerClosed), r.state.Load())
}

// Calls that waited while the store was silent for a moment are as many as a tenant sends at once.
// The store has answered since, and one more failure is no outage. Before, it was one for all
// tenants. If the store stays silent, calls that wait find that, too.
func TestBreakerIgnoresAQueueBehindAPause(t *testing.T) {
	r := newBreakerRig(t)
	waited := errors.Join(ErrNotReached, ErrStoreSilent, os.ErrDeadlineExceeded)
	r.done(nil)
	r.fail(60, waited)
	for range 40 {
		r.move(4 * time.Millisecond)
		r.done(nil)
	}
	r.fail(1, os.ErrDeadlineExceeded)
	require.Equal(t, int32(breakerClosed), r.state.Load())
	r.move(breakerTimedOut)
	r.fail(breakerInARow, waited)
	require.Equal(t, int32(breakerOpen), r.state.Load())
}

// Refunds that cannot be decided while their counters move to another server say nothing about the
// store.
func TestBreakerIgnoresMovingRefunds(t *testing.T) {
	r := newBreakerRig(t)
	r.breaker.next = movingRefunds{}
	for range 100 {
		r.move(10 * time.Millisecond)
		refund := &Refund{}
		r.breaker.refund(t.Context(), r.circuit, []*Refund{refund})
		require.ErrorIs(t, refund.Err, ErrMoving)
	}
	require.Equal(t, int32(breakerClosed), r.state.Load())
}

type movingRefunds struct{ Engine }

func (movingRefunds) Refund(_ context.Context, refunds ...*Refund) {
	for _, r := range refunds {
		r.Err = ErrMoving
	}
}

// The breaker opens soon if a store is silent, refuses calls, or fails half of the time.
func TestBreakerOpens(t *testing.T) {
	for name, outage := range map[string]func(*breakerRig){
		"silent": func(r *breakerRig) {
			for range 5 {
				r.move(50 * time.Millisecond)
				r.done(os.ErrDeadlineExceeded)
			}
		},
		"refusing": func(r *breakerRig) {
			for range 5 {
				r.move(6 * time.Millisecond)
				r.done(errRefused)
			}
		},
		"slow for half": func(r *breakerRig) {
			for range 20 {
				r.move(10 * time.Millisecond)
				r.done(nil)
				r.done(os.ErrDeadlineExceeded)
			}
		},
		"little traffic": func(r *breakerRig) {
			r.move(time.Hour)
			r.fail(5, os.ErrDeadlineExceeded)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newBreakerRig(t)
			r.done(nil)
			require.True(t, r.degradedSince().IsZero())
			outage(r)
			require.False(t, r.allow())
			require.False(t, r.degradedSince().IsZero())
			r.move(time.Minute)
			r.done(nil) // a late answer does not close the breaker
			require.False(t, r.allow())

			r.healthy.Store(true)
			require.Eventually(t, func() bool { return r.degradedSince().IsZero() }, time.Minute, time.Millisecond)
			require.Equal(t, int32(breakerRamping), r.state.Load())
			r.move(breakerRamp / 2)
			let := 0
			for range 1000 {
				if r.allow() {
					let++
				}
			}
			require.InDelta(t, 500, let, 150, "half of the calls, after half of the ramp")
			r.move(breakerRamp)
			require.True(t, r.allow())
			require.Equal(t, int32(breakerClosed), r.state.Load())
		})
	}
}

// The probes of an outage follow its length: a server that stood still for 200 ms is back at once,
// and one that is unavailable for long is asked ten times a second at most, and five times at
// least.
func TestProbesFollowTheOutage(t *testing.T) {
	for name, failing := range map[string]int{"stall": 0, "short": 2, "long": 50} {
		t.Run(name, func(t *testing.T) {
			r := newBreakerRig(t)
			waits, probes, recovered := []time.Duration(nil), 0, make(chan struct{})
			r.breaker.sleep = func(d time.Duration) bool {
				waits = append(waits, d)
				r.move(d)
				return true
			}
			r.probe = func(context.Context) error {
				if probes++; probes <= failing {
					return errRefused
				}
				if probes == failing+breakerGoodProbes {
					defer close(recovered)
				}
				return nil
			}
			r.move(time.Second)
			r.fail(breakerInARow, os.ErrDeadlineExceeded)
			<-recovered
			require.Len(t, waits, failing+breakerGoodProbes)
			require.GreaterOrEqual(t, waits[0], 20*time.Millisecond)
			require.LessOrEqual(t, waits[0], 30*time.Millisecond)
			for i, wait := range waits[1:] {
				switch {
				case i >= failing: // after a good one
					require.LessOrEqual(t, wait, 10*time.Millisecond)
				default:
					require.LessOrEqual(t, wait, 200*time.Millisecond)
					require.GreaterOrEqual(t, wait, min(20*time.Millisecond<<i, 100*time.Millisecond))
				}
			}
		})
	}
}

// A server that was unavailable for a moment gets its calls back in a moment: the way back is as
// long as the outage was.
func TestCallsReturnAsFastAsTheyWent(t *testing.T) {
	r := newBreakerRig(t)
	recovered := make(chan struct{})
	r.breaker.sleep = func(d time.Duration) bool { r.move(d); return true }
	good := 0
	r.probe = func(context.Context) error {
		if good++; good == breakerGoodProbes {
			close(recovered)
		}
		return nil
	}
	r.move(time.Second)
	r.fail(breakerInARow, os.ErrDeadlineExceeded)
	<-recovered
	require.Eventually(t, func() bool { return r.state.Load() == int32(breakerRamping) }, time.Minute, time.Millisecond)
	r.move(50 * time.Millisecond)
	for range 100 {
		require.True(t, r.allow())
	}
}

// A store that cannot count is found before anybody asks, with the class of what it says.
func TestLookFindsAServerThatFails(t *testing.T) {
	r := newBreakerRig(t)
	r.breaker.sleep = func(d time.Duration) bool {
		r.move(d)
		return r.degradedSince().IsZero() // the probes of the open circuit are another test's
	}
	r.look(context.Background())
	require.False(t, r.degradedSince().IsZero())
	health := r.breaker.Health()
	require.Equal(t, Failure("other"), health.Failure)
	require.EqualError(t, health.Err, "away")

	well := newBreakerRig(t)
	well.healthy.Store(true)
	well.look(context.Background())
	require.True(t, well.degradedSince().IsZero())
	require.Empty(t, well.breaker.Health().Failure)
}

const engineStart = int64(1_800_000_000_000) // a whole minute
