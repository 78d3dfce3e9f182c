package api

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// Parts beyond the rate of a site wait, and those of ordinary bodies and of other sites do not.
func TestParts(t *testing.T) {
	t.Parallel()
	p := newPartRate(1)
	client, other := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, &net.TCPAddr{IP: net.IPv4(198, 51, 100, 1)}
	const burst = partsPerSecond / 20
	require.NoError(t, p.wait(client, -3))
	require.NoError(t, p.wait(client, freeParts))
	require.InDelta(t, 2*burst, p.all.Tokens(), 1, "ordinary bodies do not count")
	require.NoError(t, p.wait(client, burst))
	require.Greater(t, p.all.Tokens(), burst/2.0, "other sites do not wait for this one")

	var site *rate.Limiter
	for _, s := range p.sites {
		require.Equal(t, rate.Limit(partsPerSecond/2), s.Limit())
		if s.Tokens() < burst/2 {
			site = s
		}
	}
	require.NotNil(t, site)
	for range 50 {
		site.ReserveN(time.Now(), burst)
	}
	before := site.Tokens()
	require.ErrorIs(t, p.wait(client, freeParts+1), errManyParts)
	require.GreaterOrEqual(t, site.Tokens(), before, "what would wait for too long leaves the rate to others")
	require.NoError(t, p.wait(other, freeParts+1))
}
