package tenants

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A tenant whose locks a loop never gets soon is waited for longer, one in each round, and is
// reported at last. One that was not locked begins again.
func TestLateTenants(t *testing.T) {
	t.Parallel()
	var late lateTenants
	a, b := uuid.UUID{1}, uuid.UUID{2}
	for n := 1; n <= lateReported; n++ {
		round := lateRound{of: &late}
		want := turnLock
		if n > lateRounds {
			want = lateLock
		}
		require.Equal(t, want, round.lock(a), "round %d", n)
		require.Equal(t, turnLock, round.lock(b), "one in each round")
		for _, tenant := range []uuid.UUID{a, b} {
			is, err := round.note(tenant, errLocked)
			require.True(t, is)
			require.Equal(t, n == lateReported, err != nil)
		}
	}
	round := lateRound{of: &late}
	is, err := round.note(a, nil)
	require.False(t, is)
	require.NoError(t, err)
	require.Equal(t, turnLock, round.lock(a))
	other := errors.New("another error")
	is, err = round.note(b, other)
	require.False(t, is)
	require.Equal(t, other, err)
	require.Empty(t, late.rounds)
}
