package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
)

// A silent store is given up at the deadline, after one late look; a busy one is waited for, until
// it has been silent as long or the patience is at its end.
func TestPulse(t *testing.T) {
	const patience = time.Hour // so long that the time this test takes is nothing beside it
	more := func(elapsed, silence time.Duration, first bool) time.Duration {
		p := &pulse{}
		p.last.Store(int64(engine.Awake() - silence))
		return p.more(patience, engine.Awake()-elapsed, first)
	}
	near := float64(time.Minute)
	require.Equal(t, lateLook, more(patience, 2*patience, true), "silent: one late look")
	require.LessOrEqual(t, more(patience, 2*patience, false), time.Duration(0), "and no more")
	require.InDelta(t, patience/4, more(patience, patience*3/4, false), near, "until it was silent for as long")
	require.InDelta(t, patience/2, more(patience*7/2, 0, false), near, "what is left of all patience")
	require.LessOrEqual(t, more(maxPatience*patience, 0, true), time.Duration(0), "which has an end")
	require.InDelta(t, patience/2, more(patience/2, 2*patience, false), near, "the process stood still: the wait is not over")
}
