package migrations_test

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/migrations"
)

// withOptions returns the URL with a setting of the session.
func withOptions(t *testing.T, databaseURL, options string) string {
	t.Helper()
	parsed, err := url.Parse(databaseURL)
	require.NoError(t, err)
	query := parsed.Query()
	query.Set("options", options)
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

// A standby, and a server whose disk is full, are read-only only for a time.
func TestUpReadOnly(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	latest, err := migrations.Latest()
	require.NoError(t, err)
	downTo(t, u, latest-1)
	err = migrations.Up(t.Context(), withOptions(t, u, "-cdefault_transaction_read_only=on"))
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "25006", refused.Code)
	var failed *migrations.FailedError
	require.NotErrorAs(t, err, &failed, "it is tried again")
	atVersion(t, u, latest-1)
	require.NoError(t, migrations.Up(t.Context(), u))
}
