package tenants_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
	"weir/internal/tenants"
)

// The lines of an import are compared in turns, and without one if others have all for long: its
// transaction must not wait for them.
func TestImportsCompareInTurns(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	processors := places.NewProcessors(2)
	d.Store.TakeTurns(processors)
	lines := numbered([]tenants.SubjectLine{{Subject: "ada"}, {Subject: "bob"}})
	compare := func() (int, error) {
		counts, err := d.Store.ImportSubjects(t.Context(), a, lines, tenants.ImportMode{DryRun: true})
		return counts.Created, err
	}
	leave, err := processors.Long.Take(t.Context(), uuid.New())
	require.NoError(t, err)
	d.Store.SetLineWait(0)
	created, err := compare()
	require.NoError(t, err)
	require.Equal(t, 2, created)

	d.Store.SetLineWait(time.Hour)
	done := make(chan error, 1)
	go func() {
		_, err := compare()
		done <- err
	}()
	for processors.Long.Waiting() == 0 && len(done) == 0 {
		runtime.Gosched()
	}
	require.Empty(t, done, "it waits for its turn")
	leave()
	require.NoError(t, <-done)
	leave, err = processors.Long.TakeWithin(t.Context(), uuid.New(), 0)
	require.NoError(t, err, "the turn ends with the piece")
	leave()
}
