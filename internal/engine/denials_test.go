package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// slowStore denies every call in the middle of the time that it takes.
type slowStore struct {
	engine.Engine
	now   *time.Time
	takes time.Duration
	until time.Time // the end of the window
	calls int
}

func (s *slowStore) Evaluate(_ context.Context, calls ...*engine.Call) {
	s.calls++
	*s.now = s.now.Add(s.takes / 2)
	for _, c := range calls {
		left := s.until.Sub(*s.now).Milliseconds()
		c.Outcome = engine.Outcome{NowMS: s.now.UnixMilli(), Verdicts: []limit.Verdict{{
			RetryAfterMS: left, ResetMS: s.until.UnixMilli(), NextMS: s.until.UnixMilli(),
		}}}
	}
	*s.now = s.now.Add(s.takes / 2)
}

// A denial from memory names the instant that the first answer named, however long the first call
// waited, and never one before the end of the window.
func TestTimesOfRememberedDenials(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	store := &slowStore{now: &now, takes: 40 * time.Millisecond, until: now.Add(time.Second)}
	d := engine.NewDenials(store, engine.NewMetrics(prometheus.NewRegistry()), func() time.Time { return now })
	// ask returns the instants at which the caller may come again, and at which the window ends, by
	// the clock of the caller, who reads the answer at once.
	ask := func() (retry, reset time.Time) {
		c := &engine.Call{Cost: 1, Started: now, Counters: []engine.Counter{{Key: "w{a}k", Numbers: limit.Numbers{Limit: 1, WindowMS: 1000}}}}
		d.Evaluate(t.Context(), c)
		require.NoError(t, c.Err)
		require.False(t, c.Outcome.Allowed)
		v := c.Outcome.Verdicts[0]
		return now.Add(time.Duration(v.RetryAfterMS) * time.Millisecond), now.Add(time.Duration(v.ResetMS-c.Outcome.NowMS) * time.Millisecond)
	}
	firstRetry, firstReset := ask()
	require.Equal(t, 1, store.calls)
	for range 5 {
		now = now.Add(10 * time.Millisecond)
		retry, reset := ask()
		require.Equal(t, 1, store.calls, "answered from memory")
		require.Equal(t, firstRetry, retry)
		require.Equal(t, firstReset, reset)
		require.False(t, retry.Before(store.until), "the caller would be denied again")
	}
	now = now.Add(10 * time.Millisecond)
	ask()
	require.Equal(t, 2, store.calls, "100 ms after the start, the store is asked again")
}

// Reset does nothing.
func (s *slowStore) Reset(context.Context, ...engine.Counter) error { return nil }

// A reset forgets the denials that have ended, too, so that the next one does not look at them.
func TestResetForgetsEndedDenials(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	store := &slowStore{now: &now, until: now.Add(time.Hour)}
	d := engine.NewDenials(store, engine.NewMetrics(prometheus.NewRegistry()), func() time.Time { return now })
	deny := func(key string) engine.Counter {
		c := engine.Counter{Key: key, Numbers: limit.Numbers{Limit: 1, WindowMS: 1000}}
		d.Evaluate(t.Context(), &engine.Call{Cost: 1, Started: now, Counters: []engine.Counter{c}})
		return c
	}
	holds := deny("w{a}counter")
	require.NoError(t, d.Reset(t.Context(), engine.Counter{Key: "w{a}other"}))
	require.Equal(t, 1, d.Kept())
	require.NoError(t, d.Reset(t.Context(), holds))
	require.Zero(t, d.Kept())
	deny("w{a}counter")
	now = now.Add(time.Second)
	require.Equal(t, 1, d.Kept(), "it has ended")
	require.NoError(t, d.Reset(t.Context(), engine.Counter{Key: "w{a}other"}))
	require.Zero(t, d.Kept())
}
