package engine

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

type breakerRig struct {
	*Breaker
	now     atomic.Int64
	healthy atomic.Bool
}

func newBreakerRig(t *testing.T) *breakerRig {
	r := &breakerRig{}
	r.now.Store(engineStart * int64(time.Millisecond))
	r.Breaker = NewBreaker(nil, NewMetrics(prometheus.NewRegistry()), func() time.Time { return time.Unix(0, r.now.Load()) })
	r.probe = func(context.Context) error {
		if r.healthy.Load() {
			return nil
		}
		return errors.New("away")
	}
	t.Cleanup(r.Close)
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
			require.True(t, r.DegradedSince().IsZero())
			outage(r)
			require.False(t, r.allow())
			require.False(t, r.DegradedSince().IsZero())
			r.done(nil) // a late answer does not close the breaker
			require.False(t, r.allow())

			r.healthy.Store(true)
			require.Eventually(t, func() bool { return r.DegradedSince().IsZero() }, 5*time.Second, time.Millisecond)
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

const engineStart = int64(1_800_000_000_000) // a whole minute
