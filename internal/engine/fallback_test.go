package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A share of a limit is never zero, and all shares add up to the limit.
func TestShares(t *testing.T) {
	for _, limit := range []int64{1, 2, 3, 7, 100, limit.MaxFixedLimit} {
		for count := int64(1); count <= 5; count++ {
			sum := int64(0)
			for rank := range count {
				sum += Share{count, rank}.Of(limit)
			}
			require.Equal(t, max(limit, count), sum)
		}
	}
}
