package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A field in the wrong place would count as the work of other processes.
func TestParseClock(t *testing.T) {
	c, err := parseClock([]byte("cpu  100 10 50 1000 20 3 7 40 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"))
	require.NoError(t, err)
	require.Equal(t, Clock{Busy: 1700 * time.Millisecond, Steal: 400 * time.Millisecond, Idle: 10200 * time.Millisecond}, c)
	for _, broken := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3\n", "cpu a 2 3 4 5 6 7 8\n"} {
		_, err := parseClock([]byte(broken))
		require.Error(t, err, broken)
	}
}

func TestClockAdvances(t *testing.T) {
	first, err := ReadClock()
	require.NoError(t, err)
	require.Positive(t, first.All())
	require.Eventually(t, func() bool {
		now, err := ReadClock()
		return err == nil && now.Since(first).All() > 0
	}, 10*time.Second, 5*time.Millisecond)
	load, err := Load()
	require.NoError(t, err)
	require.GreaterOrEqual(t, load, 0.0)
}
