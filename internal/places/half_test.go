package places

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnHalf(t *testing.T) {
	for processors, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 6: 3, 8: 4, 64: 4} {
		require.Equal(t, want, OnHalf(processors, 4), "of %d", processors)
	}
}
