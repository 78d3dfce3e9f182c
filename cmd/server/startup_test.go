package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/snapshot"
	"weir/migrations"
)

// A server that answers checks from the snapshot does not end because the schema cannot be
// migrated: it tries again.
func TestRefusedMigrationWithASnapshot(t *testing.T) {
	t.Parallel()
	refused := &migrations.FailedError{Version: 1}
	attempts := []error{&migrations.DirtyError{Version: 1}, refused, nil}
	tick := make(chan time.Time, len(attempts))
	for range attempts {
		tick <- time.Time{}
	}
	want := snapshot.Deployment{Platform: uuid.New()}
	calls := 0
	got, err := whileRefused(t.Context(), snapshot.Deployment{}, refused, tick, slog.New(slog.DiscardHandler), func() (snapshot.Deployment, error) {
		calls++
		return want, attempts[calls-1]
	})
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, len(attempts), calls)

	never := func() (snapshot.Deployment, error) { panic("it is not tried again") }
	other := errors.New("other")
	_, err = whileRefused(t.Context(), want, other, nil, slog.New(slog.DiscardHandler), never)
	require.Equal(t, other, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = whileRefused(ctx, want, refused, nil, slog.New(slog.DiscardHandler), never)
	require.ErrorIs(t, err, context.Canceled)
}
