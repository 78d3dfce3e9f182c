package records_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/records"
)

// hold takes a turn until the returned function is called.
func hold(t *testing.T, turns *records.Turns, tenant uuid.UUID) (release func()) {
	t.Helper()
	has, let, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		if err := turns.Do(context.Background(), tenant, time.Minute, func() { close(has); <-let }); err != nil {
			t.Error(err)
		}
	}()
	<-has
	return func() { close(let); <-left }
}

// A tenant has at most half of the turns, and some are left for a tenant that has none, whatever
// two others do.
func TestTurnsOfRecords(t *testing.T) {
	t.Parallel()
	turns := records.NewTurns()
	ada, bob, cyd := uuid.New(), uuid.New(), uuid.New()
	gets := func(tenant uuid.UUID) bool {
		called := false
		err := turns.Do(t.Context(), tenant, 0, func() { called = true })
		if err != nil {
			require.ErrorIs(t, err, records.ErrBusy)
		}
		require.Equal(t, err == nil, called)
		return called
	}
	var releases []func()
	for range 8 {
		releases = append(releases, hold(t, turns, ada))
	}
	require.False(t, gets(ada), "half of 16")
	for range 4 {
		releases = append(releases, hold(t, turns, bob))
	}
	require.False(t, gets(bob), "the last four are for tenants without any")
	require.True(t, gets(cyd))
	releases[0]()
	require.True(t, gets(ada))
	require.True(t, gets(bob))
	waits := make(chan error)
	releases = append(releases[1:], hold(t, turns, bob))
	go func() { waits <- turns.Do(context.Background(), ada, time.Minute, func() {}) }()
	releases[0]()
	require.NoError(t, <-waits, "its turn came")
	for _, release := range releases[1:] {
		release()
	}
}

// Without turns, every call is made at once.
func TestWithoutTurns(t *testing.T) {
	t.Parallel()
	var turns *records.Turns
	called := false
	require.NoError(t, turns.Do(t.Context(), uuid.New(), 0, func() { called = true }))
	require.True(t, called)
}
