package harness

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQuietWindow asks for a window at each hour of a century: tests must not depend on the day on
// which they run.
func TestQuietWindow(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC)
	for now := start; now.Year() < 2126; now = now.Add(time.Hour) {
		for days, step := range map[int]int{30: 1, 360: 3} {
			length, err := strconv.Atoi(strings.TrimSuffix(QuietWindow(now, days, step), "d"))
			require.NoError(t, err)
			window := time.Duration(length) * 24 * time.Hour
			require.False(t, length > days || length%step != 0, now)
			require.False(t, now.Add(23*time.Hour).UnixNano()/int64(window) > now.UnixNano()/int64(window), now)
		}
	}
}
