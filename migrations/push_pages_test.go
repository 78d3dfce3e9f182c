package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/migrations"
)

// An export of an earlier release reads metering_state for minutes. The migration waits for it
// without a lock that others need, so that rules can be changed meanwhile.
func TestPushPagesHoldNoRulesUp(t *testing.T) {
	t.Parallel()
	u, ctx := newDatabase(t), t.Context()
	require.NoError(t, migrations.Up(ctx, u))
	downTo(t, u, 65)
	reader, writer := connect(t, u), connect(t, u)
	export := readMetering(t, reader)
	done := make(chan error, 1)
	go func() { done <- migrations.Up(ctx, u) }()
	waitsForMetering(t, writer)
	for range 3 {
		_, err := writer.Exec(ctx, "BEGIN; SET LOCAL lock_timeout = '20s'; LOCK TABLE rules IN ROW EXCLUSIVE MODE; COMMIT")
		require.NoError(t, err, "a change of a rule")
	}
	require.NoError(t, export.Rollback(ctx))
	require.NoError(t, <-done)
	latest, err := migrations.Latest()
	require.NoError(t, err)
	atVersion(t, u, latest)
}
