package tenants_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// The problems of an old push, of which it can have as many as subjects, are deleted in pages.
func TestPurgeProblemsOfPushes(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Exec("INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind) VALUES ($1, $1, now() - interval '2 years', 'r', 'm', 'units')", a.TenantID())
	d.Exec(`INSERT INTO metered_push_problems (tenant_id, push_id, subject, units, outcome, why)
		SELECT $1, $1, 's' || n, 1, 'parked', '' FROM generate_series(1, 6000) n`, a.TenantID())
	d.Exec(`CREATE FUNCTION bound() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF (SELECT count(*) FROM gone) > 5000 THEN RAISE 'too many rows at once'; END IF; RETURN NULL; END $$`)
	d.Exec("CREATE TRIGGER bound AFTER DELETE ON metered_push_problems REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION bound()")
	require.NoError(t, d.Store.KeepUsage(t.Context()))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var left int
		require.NoError(t, conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM metered_pushes) + (SELECT count(*) FROM metered_push_problems)").Scan(&left))
		require.Zero(t, left)
	})
}
