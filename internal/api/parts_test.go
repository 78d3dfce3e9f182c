package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Parts beyond the rate wait, and those of ordinary bodies do not.
func TestParts(t *testing.T) {
	t.Parallel()
	p := newPartRate(1)
	p.wait(-3)
	require.InDelta(t, partsPerSecond/10, p.limiter.Tokens(), 1)
	p.wait(partsPerSecond / 10)
	start := time.Now()
	p.wait(partsPerSecond / 100)
	require.GreaterOrEqual(t, time.Since(start), 9*time.Millisecond)

	// What would wait for too long leaves the rate to others.
	p.limiter.ReserveN(time.Now(), partsPerSecond/10)
	for range 50 {
		p.limiter.ReserveN(time.Now(), partsPerSecond/10)
	}
	before := p.limiter.Tokens()
	start = time.Now()
	p.wait(10)
	require.GreaterOrEqual(t, time.Since(start), partPatience)
	require.Greater(t, p.limiter.Tokens(), before)
}
