package tenants

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Two tenants that send as many operations as they can do not keep out a third one: a quarter of
// the connections is for tenants that use none. With at most half for each, they had all of them.
func TestTurns(t *testing.T) {
	turns := newTurns(8)
	a, b, c, d, e := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	var leaves []func()
	now, cancel := context.WithCancel(t.Context())
	cancel() // an operation that has to wait gives up at once
	takes := func(tenant uuid.UUID) bool {
		leave, err := turns.take(now, tenant)
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err == nil
	}
	all := func(tenant uuid.UUID) (count int) {
		for takes(tenant) {
			count++
		}
		return count
	}
	require.Equal(t, 4, all(a), "half")
	require.Equal(t, 1, all(b))
	require.True(t, takes(c))
	require.False(t, takes(c), "it uses one")
	require.True(t, takes(d))
	require.False(t, takes(e), "all are in use, except for the one that an operation may need in addition")

	// b has waited for a shorter time, but uses fewer than a.
	granted := make(chan string, 2)
	wait := func(name string, tenant uuid.UUID) {
		turns.mu.Lock()
		waiting := len(turns.waiting)
		turns.mu.Unlock()
		go func() {
			if _, err := turns.take(t.Context(), tenant); err == nil {
				granted <- name
			}
		}()
		for queued := false; !queued; {
			turns.mu.Lock()
			queued = len(turns.waiting) > waiting
			turns.mu.Unlock()
		}
	}
	wait("a", a)
	wait("b", b)
	leaves[6]() // d
	leaves[5]() // c
	require.Empty(t, granted, "these are for tenants that use none")
	leaves[0]() // of a
	require.Equal(t, "b", <-granted)
	require.Empty(t, granted)
	leaves[1]()
	require.Equal(t, "a", <-granted)

	one := newTurns(1)
	leave, err := one.take(t.Context(), a)
	require.NoError(t, err)
	_, err = one.take(now, b)
	require.ErrorIs(t, err, context.Canceled)
	leave()
	require.Zero(t, one.used)
	require.Empty(t, one.of)
	require.Empty(t, one.waiting)
}
