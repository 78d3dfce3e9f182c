package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
)

// A wait for a silent store ends at the deadline, after one late look. A wait for a busy store
// continues until the store has been silent for as long, or until the maximum.
func TestPulse(t *testing.T) {
	const patience = time.Hour // so long that the duration of this test does not matter
	more := func(elapsed, silence time.Duration, first bool) time.Duration {
		p := &pulse{}
		p.last.Store(int64(engine.Awake() - silence))
		return p.more(patience, engine.Awake()-elapsed, first)
	}
	near := float64(time.Minute)
	require.Equal(t, lateLook, more(patience, 2*patience, true), "silent: one late look")
	require.LessOrEqual(t, more(patience, 2*patience, false), time.Duration(0), "and no more")
	require.InDelta(t, patience/4, more(patience, patience*3/4, false), near, "until it was silent for as long")
	require.InDelta(t, patience/2, more(patience*7/2, 0, false), near, "the rest of the maximum")
	require.LessOrEqual(t, more(maxPatience*patience, 0, true), time.Duration(0), "the maximum is over")
	require.InDelta(t, patience/2, more(patience/2, 2*patience, false), near, "the process was stopped: the wait is not over")
}
