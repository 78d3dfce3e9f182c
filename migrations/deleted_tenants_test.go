package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/migrations"
)

// No role of the server sees a tenant that was deleted, and an earlier release, which could not
// tell it from others, does not find it again.
func TestDeletedTenantsAreHidden(t *testing.T) {
	t.Parallel()
	u, ctx := newDatabase(t), t.Context()
	require.NoError(t, migrations.Up(ctx, u))
	for version := 0; version != 68; {
		var err error
		version, _, err = migrations.Version(ctx, u)
		require.NoError(t, err)
		if version != 68 {
			require.NoError(t, migrations.Down(ctx, u))
		}
	}
	conn, err := pgx.Connect(ctx, u)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	for _, statement := range []string{
		`INSERT INTO tenants (id, slug, version, policy_version, subjects_version, keys_version, deleted_at)
			VALUES ('00000000-0000-0000-0000-000000000001', 'here', 1, 1, 1, 1, NULL), ('00000000-0000-0000-0000-000000000002', 'gone', 1, 1, 1, 1, now())`,
		`INSERT INTO subjects (tenant_id, subject, id, version) SELECT id, 'ada', gen_random_uuid(), 1 FROM tenants`,
	} {
		_, err := conn.Exec(ctx, statement)
		require.NoError(t, err)
	}
	slugs := func(settings string) (out []string) {
		t.Helper()
		_, err := conn.Exec(ctx, settings)
		require.NoError(t, err)
		rows, err := conn.Query(ctx, "SELECT slug FROM tenants ORDER BY slug")
		require.NoError(t, err)
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		_, err = conn.Exec(ctx, "RESET ROLE; RESET weir.tenant_id; RESET weir.deleted_tenants")
		require.NoError(t, err)
		return out
	}
	const ofGone = "SET ROLE weir_app; SET weir.tenant_id = '00000000-0000-0000-0000-000000000002'"
	require.Equal(t, []string{"here"}, slugs("SET ROLE weir_system"))
	require.Equal(t, []string{"gone", "here"}, slugs("SET ROLE weir_system; SET weir.deleted_tenants = 'on'"))
	require.Empty(t, slugs(ofGone))
	require.Empty(t, slugs(ofGone+"; SET weir.deleted_tenants = 'on'"))

	require.NoError(t, migrations.Down(ctx, u))
	require.Equal(t, []string{"here"}, slugs("SELECT"))
	var subjects int
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM subjects").Scan(&subjects))
	require.Equal(t, 1, subjects)
}
