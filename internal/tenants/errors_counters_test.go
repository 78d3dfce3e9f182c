package tenants

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
)

// A call of the counters that ends only because the time is over says nothing about them: Postgres
// may have taken that time.
func TestEndedContextIsNoErrorOfTheCounters(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	<-ended.Done()
	over := fmt.Errorf("open credits: %w", context.DeadlineExceeded)
	err := translate(ofCounters(ended, over))
	require.NotErrorIs(t, err, check.ErrCountersUnavailable)
	require.ErrorIs(t, err, ErrUnavailable)

	refused := errors.New("connection refused")
	require.ErrorIs(t, ofCounters(ended, refused), check.ErrCountersUnavailable)
	require.ErrorIs(t, ofCounters(t.Context(), over), check.ErrCountersUnavailable, "a timeout of their own")
	require.NoError(t, ofCounters(ended, nil))
}
