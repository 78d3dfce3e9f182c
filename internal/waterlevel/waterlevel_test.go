package waterlevel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/waterlevel"
)

// The level bounds the tenants with the most only.
func TestWaterLevel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		amounts []int64
		fits    int64
		want    int64
	}{
		{nil, 0, waterlevel.None},
		{[]int64{10, 20, 30}, 60, waterlevel.None},
		{[]int64{10, 20, 30}, 59, 29},
		{[]int64{30, 10, 20}, 40, 15},
		{[]int64{1000, 1, 2, 3}, 500, 494},
		{[]int64{1000, 1000, 10}, 110, 50},
		{[]int64{5, 5}, 0, 0},
	} {
		require.Equal(t, c.want, waterlevel.Of(c.amounts, c.fits), c)
	}
}
