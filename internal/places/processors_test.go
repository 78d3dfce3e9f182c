package places_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Short and long work together leave at least a quarter of the processors to checks, and on small
// instances have one turn each. One tenant leaves turns to others where there are several.
func TestTurnsOfProcessors(t *testing.T) {
	t.Parallel()
	for processors, want := range map[int][4]int{ // short and long work, of several tenants and of one
		1: {1, 1, 1, 1}, 2: {1, 1, 1, 1}, 3: {1, 1, 1, 1}, 4: {2, 1, 1, 1}, 6: {3, 1, 1, 1}, 8: {4, 2, 2, 1}, 12: {6, 3, 3, 1}, 64: {32, 16, 4, 2},
	} {
		turns := places.NewProcessors(processors)
		taken := func(turns *places.Turns[uuid.UUID], tenants int) (count int) {
			var leave []func()
			for tenant := range tenants {
				for range processors + 1 {
					ended, err := turns.TakeWithin(t.Context(), uuid.UUID{byte(tenant)}, 0)
					if err == nil {
						leave = append(leave, ended)
					}
				}
			}
			for _, ended := range leave {
				ended()
			}
			return len(leave)
		}
		require.Equal(t, want, [4]int{taken(turns.Short, 10), taken(turns.Short, 1), taken(turns.Long, 10), taken(turns.Long, 1)}, processors)
		if processors >= 4 {
			require.LessOrEqual(t, want[0]+want[2], processors-processors/4)
		}
	}
}
