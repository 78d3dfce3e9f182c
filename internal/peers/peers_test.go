package peers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Instances that stop answering still count for a while, so a store that dies does not shrink the
// number.
func TestPeers(t *testing.T) {
	p := New(1, prometheus.NewRegistry())
	now := time.Now()
	for _, id := range []string{"a", "b", "c"} {
		p.observe(id, now)
	}
	require.Equal(t, 4, p.Count())
	p.observe(p.id, now.Add(9*time.Minute))
	require.Equal(t, 4, p.Count(), "instances that fell silent still count for ten minutes")
	p.observe(p.id, now.Add(11*time.Minute))
	require.Equal(t, 1, p.Count())
}
