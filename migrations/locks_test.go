package migrations_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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

// locks returns how many advisory locks sessions of the database have.
func locks(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n))
	return n
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

// The version is changed with the file, by statements that wait for no reader: a backup has a lock
// of schema_migrations for as long as it takes.
func TestUpBesideABackup(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	latest, err := migrations.Latest()
	require.NoError(t, err)
	downTo(t, u, latest-1)
	backup, err := connect(t, u).Begin(t.Context())
	require.NoError(t, err)
	_, err = backup.Exec(t.Context(), "LOCK TABLE schema_migrations IN ACCESS SHARE MODE")
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), withOptions(t, u, "-clock_timeout=10s")))
	atVersion(t, u, latest)
	require.NoError(t, migrations.Down(t.Context(), withOptions(t, u, "-clock_timeout=10s")))
	atVersion(t, u, latest-1)
}

// A login that may not create the table of versions leaves no session behind that has the lock.
func TestUpWithoutPrivileges(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	exec(t, u, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	login := "reader_" + strings.ToLower(rand.Text())
	exec(t, u, "CREATE ROLE "+login+" LOGIN PASSWORD 'plain'")
	t.Cleanup(func() { exec(t, u, "DROP ROLE "+login) })
	parsed, err := url.Parse(u)
	require.NoError(t, err)
	parsed.User = url.UserPassword(login, "plain")
	observer := connect(t, u)
	for range 2 {
		require.ErrorContains(t, migrations.Up(t.Context(), parsed.String()), "permission denied")
		require.Zero(t, locks(t, observer))
	}
}

// A pooler keeps the session when its client ends. The lock is not kept.
func TestUpThroughAPooler(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	through, _ := proxy(t, u, func(server, client net.Conn) {
		terminate, buffer := []byte("X\x00\x00\x00\x04"), make([]byte, 1<<16)
		for {
			n, err := client.Read(buffer)
			if _, _ = server.Write(bytes.TrimSuffix(buffer[:n], terminate)); err != nil {
				break
			}
		}
		<-t.Context().Done()
		_ = server.Close()
	})
	require.NoError(t, migrations.Up(t.Context(), through))
	observer := connect(t, u)
	require.Zero(t, locks(t, observer))
	require.NoError(t, migrations.Up(t.Context(), u))
}

// Every WARNING of Postgres is not a migration that waits.
func TestNotes(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	latest, err := migrations.Latest()
	require.NoError(t, err)
	downTo(t, u, latest-1)
	exec(t, u, `CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE WARNING 'something else';
			RAISE WARNING 'migration % waits', NEW.version;
			RETURN NULL;
		END $$;
		CREATE TRIGGER warn AFTER INSERT ON schema_migrations FOR EACH ROW EXECUTE FUNCTION warn()`)
	var notes []string
	require.NoError(t, migrations.UpNoting(t.Context(), u, func(text string) { notes = append(notes, text) }))
	require.Equal(t, []string{fmt.Sprintf("migration %d waits", latest)}, notes)
}

// The numbers have no gaps, so that two branches that add a migration conflict, and each file has
// its counterpart.
func TestNumbers(t *testing.T) {
	t.Parallel()
	latest, err := migrations.Latest()
	require.NoError(t, err)
	for _, direction := range []string{"up", "down"} {
		names, err := fs.Glob(migrations.FS, "*."+direction+".sql")
		require.NoError(t, err)
		slices.Sort(names)
		require.Len(t, names, latest)
		for i, name := range names {
			require.True(t, strings.HasPrefix(name, fmt.Sprintf("%06d_", i+1)), name)
		}
	}
}
