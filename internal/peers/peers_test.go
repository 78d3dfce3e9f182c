package peers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Instances that stop publishing still count for a while, so a failing store does not reduce the
// number.
func TestPeers(t *testing.T) {
	p := New(1, prometheus.NewRegistry())
	now := time.Now()
	for _, id := range []string{"a", "b", "c"} {
		p.observe(id, now)
	}
	require.Equal(t, 4, p.Count())
	p.observe(p.id, now.Add(9*time.Minute))
	require.Equal(t, 4, p.Count(), "instances that stopped publishing still count for ten minutes")
	p.observe(p.id, now.Add(11*time.Minute))
	require.Equal(t, 1, p.Count())
}

// In an outage, no instance receives the names of the others. Each instance must keep its own part
// of the remainder. Otherwise a limit of 4 is 6 for three instances, and a limit of 50 is 51.
func TestPlacesOutliveTheOutage(t *testing.T) {
	now := time.Now()
	instances := []*Peers{New(1, prometheus.NewRegistry()), New(1, prometheus.NewRegistry()), New(1, prometheus.NewRegistry())}
	sum := func(limit int64) (sum int64) {
		for _, p := range instances {
			sum += p.Share().Of(limit)
		}
		return sum
	}
	for _, p := range instances {
		for _, other := range instances {
			p.observe(other.id, now)
		}
	}
	for _, limit := range []int64{3, 4, 50, 100} {
		require.Equal(t, limit, sum(limit))
	}
	for _, p := range instances {
		p.observe(p.id, now.Add(2*heartbeatLost))
		require.Equal(t, 3, p.Count())
	}
	for _, limit := range []int64{3, 4, 50, 100} {
		require.Equal(t, limit, sum(limit), "after the others stopped publishing")
	}
}

// An instance does not know its place if it knows no other instance, or if it started after the
// peak. It must not use a part of the remainder that another instance may use too.
func TestUnknownPlacesTakeNoRemainder(t *testing.T) {
	now := time.Now()
	alone := New(3, prometheus.NewRegistry())
	require.Equal(t, int64(1), alone.Share().Of(4))
	require.Equal(t, int64(16), alone.Share().Of(50))

	late := New(1, prometheus.NewRegistry())
	late.mu.Lock()
	late.most = []peak{{[]string{"a", "b", "c"}, now}}
	late.mu.Unlock()
	late.observe(late.id, now)
	require.Equal(t, 3, late.Count())
	require.Equal(t, int64(1), late.Share().Of(4))
	require.Equal(t, int64(16), late.Share().Of(50))
}
