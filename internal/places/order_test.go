package places_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Those who were served are behind the others, the last one at the end.
func TestOrder(t *testing.T) {
	t.Parallel()
	o := places.NewOrder[string]()
	sorted := func() []string { return slices.SortedStableFunc(slices.Values([]string{"a", "b", "c"}), o.Compare) }
	o.Serve("a")
	require.Equal(t, []string{"b", "c", "a"}, sorted())
	o.Serve("b")
	o.Serve("a")
	require.Equal(t, []string{"c", "b", "a"}, sorted())
	o.Keep(func(holder string) bool { return holder == "b" })
	require.Equal(t, []string{"a", "c", "b"}, sorted())
}
