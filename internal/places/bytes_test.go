package places_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

func TestBytes(t *testing.T) {
	t.Parallel()
	r := places.NewBytes[string](100, 40)
	takes := func(holder string, size int) bool {
		_, ok := r.Take(holder, size)
		return ok
	}
	leave, ok := r.Take("ada", 60)
	require.True(t, ok, "what she keeps alone is never too large")
	require.False(t, takes("ada", 1))
	require.True(t, takes("bob", 20))
	require.True(t, takes("bob", 20))
	require.False(t, takes("bob", 1), "his share is used")
	require.True(t, takes("eve", 30), "others cannot keep her out")
	require.False(t, takes("eve", 1), "the total is used")
	require.False(t, takes("ron", 71), "twice the total")
	require.Equal(t, 130, r.Taken())
	leave()
	require.True(t, takes("eve", 10))
	hold := r.Hold("bob", 500)
	require.Equal(t, 580, r.Taken())
	hold()
	require.Equal(t, 80, r.Taken())
	require.True(t, takes("ada", 40), "she keeps nothing else")
	leave, ok = r.Take("tim", 10)
	require.True(t, ok)
	correct := r.Hold("tim", -6)
	require.Equal(t, 124, r.Taken())
	correct()
	leave()
	require.Equal(t, 120, r.Taken())
}
