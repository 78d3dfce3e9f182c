package migrations_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"weir/internal/testenv"
	"weir/migrations"
)

// newDatabase creates an empty database, dropped with the test, and returns its URL.
func newDatabase(t *testing.T) string {
	t.Helper()
	owner := testenv.DatabaseURL(t)
	name := "weir_migrate_" + strings.ToLower(rand.Text())
	exec(t, owner, "CREATE DATABASE "+name)
	t.Cleanup(func() { exec(t, owner, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(owner)
	require.NoError(t, err)
	u.Path = "/" + name
	return u.String()
}

func exec(t *testing.T, databaseURL, statement string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, databaseURL)
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	require.NoError(t, err)
}

// tables returns the tables that migrations created, except for their own table.
func tables(t *testing.T, databaseURL string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(),
		"SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migrations' ORDER BY 1")
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

// An operator can migrate down, and up again.
func TestUpDownUp(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	version, dirty, err := migrations.Version(t.Context(), u)
	require.NoError(t, err)
	require.Zero(t, version)
	require.False(t, dirty)

	latest, err := migrations.Latest()
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), u))
	require.NoError(t, migrations.Up(t.Context(), u), "a second run finds nothing to do")
	version, dirty, err = migrations.Version(t.Context(), u)
	require.NoError(t, err)
	require.Equal(t, latest, version)
	require.False(t, dirty)
	full := tables(t, u)
	require.Contains(t, full, "rules")
	first := secrets(t, u)

	for left := latest; left > 0; left = version { // numbers may have gaps
		require.NoError(t, migrations.Down(t.Context(), u))
		version, _, err = migrations.Version(t.Context(), u)
		require.NoError(t, err)
		require.Less(t, version, left)
	}
	require.Empty(t, tables(t, u))
	require.NoError(t, migrations.Down(t.Context(), u), "nothing to undo is not an error")
	require.NoError(t, migrations.Up(t.Context(), u))
	require.Equal(t, full, tables(t, u))
	require.NotEqual(t, first, secrets(t, u), "each deployment has its own secrets")
}

// secrets returns the deployment's secrets in hex.
func secrets(t *testing.T, databaseURL string) (both string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	err = conn.QueryRow(t.Context(), "SELECT encode(counter_key || cursor_key, 'hex') FROM deployment_secrets").Scan(&both)
	require.NoError(t, err)
	require.Len(t, both, 2*(16+32))
	return both
}

// Several servers of a deployment start concurrently, and several databases of one cluster share
// roles.
func TestUpConcurrently(t *testing.T) {
	t.Parallel()
	var all errgroup.Group
	for range 3 {
		u := newDatabase(t)
		for range 3 {
			all.Go(func() error { return migrations.Up(t.Context(), u) })
		}
	}
	require.NoError(t, all.Wait())
}

// An interrupted migration stops the next start with an error that says what to do.
func TestUpDirty(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	exec(t, u, "UPDATE schema_migrations SET dirty = true")
	var dirty *migrations.DirtyError
	require.ErrorAs(t, migrations.Up(t.Context(), u), &dirty)
	require.ErrorContains(t, dirty, "UPDATE schema_migrations SET version = ")
}

// An instance that is replaced by a newer version may start once more after the newer one has
// migrated.
func TestUpOnANewerSchema(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	latest, err := migrations.Latest()
	require.NoError(t, err)
	exec(t, u, "UPDATE schema_migrations SET version = version + 3")
	require.NoError(t, migrations.Up(t.Context(), u))
	version, dirty, err := migrations.Version(t.Context(), u)
	require.NoError(t, err)
	require.Equal(t, latest+3, version)
	require.False(t, dirty)

	exec(t, u, "UPDATE schema_migrations SET dirty = true")
	var interrupted *migrations.DirtyError
	require.ErrorAs(t, migrations.Up(t.Context(), u), &interrupted)
}

// An owner without superuser rights, as on managed databases, must be able to migrate and then act
// as both roles.
func TestUpAsPlainOwner(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	parsed, err := url.Parse(u)
	require.NoError(t, err)
	login := "owner_" + strings.ToLower(rand.Text())
	exec(t, u, "CREATE ROLE "+login+" LOGIN CREATEROLE PASSWORD 'plain'")
	exec(t, u, "ALTER DATABASE "+strings.TrimPrefix(parsed.Path, "/")+" OWNER TO "+login)
	exec(t, u, "ALTER SCHEMA public OWNER TO "+login)
	t.Cleanup(func() {
		exec(t, u, "REASSIGN OWNED BY "+login+" TO CURRENT_USER; DROP OWNED BY "+login+"; DROP ROLE "+login)
	})
	parsed.User = url.UserPassword(login, "plain")
	require.NoError(t, migrations.Up(t.Context(), parsed.String()))
	exec(t, parsed.String(), "SET ROLE weir_app; SELECT count(*) FROM rules; RESET ROLE; SET ROLE weir_system; SELECT secrets.counter_key FROM deployment_secrets AS secrets")
	// The epoch after a restore has effects on tables that the owner cannot write without a role.
	exec(t, parsed.String(), "UPDATE config_version SET epoch = gen_random_uuid()")
	var noted bool
	require.NoError(t, connect(t, u).QueryRow(t.Context(), `SELECT r.restored_at IS NOT NULL AND s.last_value > 1e15
		FROM restores r, counter_changes_id_seq s`).Scan(&noted))
	require.True(t, noted)
}

func TestUpUnreachable(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, migrations.Up(t.Context(), "postgres://nobody@127.0.0.1:1/none"), "connect to the database")
}
