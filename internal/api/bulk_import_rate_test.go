package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An import uses one of few slots. A slow one is cancelled, and one with a sufficient rate may use
// all of its time.
func TestImportLeastRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spent time.Duration
		read  int64
		want  time.Duration
	}{
		{"at first", 0, 0, importGrace},
		{"nothing came", importGrace, 0, 0},
		{"in drops", 12 * time.Second, 1000, -1984375 * time.Microsecond},
		{"at the least rate", time.Minute, 60 * importLeastRate, importGrace},
		{"fast", time.Second, 32 << 20, importIdleTimeout},
		{"fast, near the end", importReadTimeout - time.Second, 60 << 20, time.Second},
	} {
		b := pacedBody{spent: c.spent, read: c.read, wanted: func() bool { return false }}
		require.InDelta(t, c.want.Seconds(), b.patience().Seconds(), 0.01, c.name)
	}
}
