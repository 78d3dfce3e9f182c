package check

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestLatency(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	now := time.UnixMilli(testStart)
	require.Zero(t, m.latency(now), "no measurement yet")
	m.evaluation.Observe(1)
	m.noteLatency(now)
	now = now.Add(30 * time.Second)
	require.Equal(t, Latency{Over: 30 * time.Second}, m.latency(now))
	for range 98 {
		m.evaluation.Observe(300e-6)
	}
	m.evaluation.Observe(50e-3)
	m.evaluation.Observe(50e-3)
	got := m.latency(now)
	require.Equal(t, uint64(100), got.Checks)
	require.InEpsilon(t, 300e-6, got.P50.Seconds(), 0.5)
	require.InEpsilon(t, 50e-3, got.P99.Seconds(), 0.5)
	m.noteLatency(now)
	for range 20 {
		now = now.Add(latencyEvery)
		m.noteLatency(now)
	}
	require.Zero(t, m.latency(now).Checks, "checks of more than a minute ago do not count")
	require.LessOrEqual(t, len(m.recently.past), int(latencyOver/latencyEvery)+2)
	m.evaluation.Observe(1e6)
	require.Greater(t, m.latency(now).P99, time.Second, "past the last bucket")
}
