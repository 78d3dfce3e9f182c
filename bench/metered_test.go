package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMeteredTableHasRowsPerSecond(t *testing.T) {
	table := meteredTable([]meteredRow{
		{name: "plain", sample: sample{perSecond: 30_000, p99: 1500, serverCPU: 17}},
		{name: "metered", sample: sample{perSecond: 28_000, p99: 1700, serverCPU: 19}, rows: 1_000_000, duration: 50 * time.Second, behind: 1500 * time.Millisecond},
	})
	require.Contains(t, table, "| plain | 30 000 | 1.50 | 17.0 | 0.0 | 0.0 | 0 | 0 | – | – |\n")
	require.Contains(t, table, "| metered | 28 000 | 1.70 | 19.0 | 0.0 | 0.0 | 0 | 1 000 000 | 20 000 | 1.5 |\n")
}
