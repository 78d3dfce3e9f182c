package tenants_test

import (
	"context"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A reset that has begun is recorded although its client has disconnected. One of which nobody
// knows whether it happened is recorded as such, also if the request has an Idempotency-Key.
// Before, counters were reset without a row in the trail.
func TestResetsAreRecorded(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	_, secret := d.Tenant("tenant-a")
	a, s := d.Actor(secret), d.Store
	seen := trailIsIntact(t, s, a).Rows
	last := func() tenants.AuditEntry {
		rows := trailOf(t, s, a, seen)
		require.Len(t, rows, 1)
		seen++
		return rows[0]
	}
	why := tenants.Reset{Subject: "ada", Reason: "asked"}

	ctx, disconnect := context.WithCancel(t.Context())
	require.NoError(t, s.RecordReset(ctx, a, why, func(context.Context) ([]string, error) {
		disconnect()
		return []string{"q"}, nil
	}))
	require.JSONEq(t, `{"rules":["q"]}`, string(last().After))

	silent := func(ctx context.Context) error {
		return s.RecordReset(ctx, a, why, func(context.Context) ([]string, error) { return []string{"q"}, os.ErrDeadlineExceeded })
	}
	require.ErrorIs(t, silent(t.Context()), os.ErrDeadlineExceeded)
	row := last()
	require.Equal(t, "asked", row.Reason)
	require.JSONEq(t, `{"rules":["q"],"unsure":true}`, string(row.After))

	_, err := s.Idempotent(t.Context(), a, "key", [32]byte{1}, answers(http.StatusOK, silent))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.JSONEq(t, `{"rules":["q"],"unsure":true}`, string(last().After))
	replay, err := s.Idempotent(t.Context(), a, "key", [32]byte{1}, answers(http.StatusOK, func(ctx context.Context) error {
		return s.RecordReset(ctx, a, why, func(context.Context) ([]string, error) { return []string{"q"}, nil })
	}))
	require.NoError(t, err)
	require.Nil(t, replay, "a repeat runs")
	require.JSONEq(t, `{"rules":["q"]}`, string(last().After))
}
