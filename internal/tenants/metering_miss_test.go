package tenants_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Very many writers that fell silent are missed in several looks of few statements each. An hour is
// sealed after all of their gaps are reported, also when it could not stay open for longer.
func TestManyMeteringWritersAreMissed(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := openHours(t, d, 3)
	const writers, most = 2500, 1000
	d.Exec(`INSERT INTO metering_writers (writer, sequence, complete_until, written_at, ended)
		SELECT gen_random_uuid(), 1, $1::timestamptz + interval '30 minutes', now() - interval '2 minutes', false FROM generate_series(1, $2::integer)`, start, writers)
	statements, err := tenants.CountStatements(t.Context(), d.Store)
	require.NoError(t, err)
	gaps := func() (n int) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM metering_gaps WHERE closed_at IS NULL").Scan(&n))
		})
		return n
	}

	for look := 1; look <= writers/most; look++ {
		sealed, err := d.Store.SealMetering(t.Context())
		require.NoError(t, err)
		require.Less(t, statements.Total(), 10)
		require.Nil(t, sealed, "writers are still present whose gaps are not reported")
		require.Equal(t, look*most, gaps())
	}
	sealed, err := d.Store.SealMetering(t.Context())
	require.NoError(t, err)
	require.Less(t, statements.Total(), 10)
	require.NotNil(t, sealed)
	require.Equal(t, writers, gaps())
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: start})
	require.Equal(t, start.Add(30*time.Minute), report.Gaps[0].From)
}
