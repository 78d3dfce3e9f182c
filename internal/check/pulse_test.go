package check

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A silent store is given up at the deadline, after one late look; a busy one is waited for, until it
// has been silent as long or the patience is at its end.
func TestPulse(t *testing.T) {
	const patience = time.Hour // so long that the time this test takes is nothing beside it
	ago := func(silence time.Duration) *pulse {
		p := &pulse{}
		p.last.Store(int64(time.Since(pulseStart) - silence))
		return p
	}
	require.Equal(t, lateLook, ago(2*patience).more(patience, patience, true))
	require.LessOrEqual(t, ago(2*patience).more(patience, patience, false), time.Duration(0))
	require.InDelta(t, patience/4, ago(patience*3/4).more(patience, patience, false), float64(time.Minute))
	require.Equal(t, time.Second, ago(0).more(patience, time.Second, false), "what is left")
	require.LessOrEqual(t, ago(0).more(patience, -time.Second, true), time.Duration(0))
}
