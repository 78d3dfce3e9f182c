package places_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Those that were refused wait in the order of arrival, until they have not asked for a time.
func TestLine(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	l := places.NewLine[string](2, 10*time.Second, func() time.Time { return now })
	require.Zero(t, l.Before("a"))
	l.Join("a")
	l.Join("b")
	l.Join("c") // the line is full
	require.Equal(t, []int{0, 1, 2, 2}, []int{l.Before("a"), l.Before("b"), l.Before("c"), l.Len()})
	now = now.Add(6 * time.Second)
	l.Join("b")
	require.Equal(t, 1, l.Before("b"), "it keeps its place")
	now = now.Add(4 * time.Second)
	require.Zero(t, l.Before("a"), "just after its time")
	require.Zero(t, l.Before("b"), "a has given up")
	l.Join("c")
	require.Equal(t, []int{0, 1, 2}, []int{l.Before("b"), l.Before("c"), l.Len()})
	l.Leave("b")
	require.Equal(t, []int{1, 0, 1}, []int{l.Before("b"), l.Before("c"), l.Len()})
	now = now.Add(10 * time.Second)
	require.Zero(t, l.Len())
}
