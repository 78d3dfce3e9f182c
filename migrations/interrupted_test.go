package migrations_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/migrations"
)

// downTo undoes migrations until the schema is at a version.
func downTo(t *testing.T, databaseURL string, target int) {
	t.Helper()
	for version := 0; version != target; {
		require.NoError(t, migrations.Down(t.Context(), databaseURL))
		var err error
		version, _, err = migrations.Version(t.Context(), databaseURL)
		require.NoError(t, err)
	}
}

// atVersion requires a version that is not marked dirty.
func atVersion(t *testing.T, databaseURL string, want int) {
	t.Helper()
	version, dirty, err := migrations.Version(t.Context(), databaseURL)
	require.NoError(t, err)
	require.Equal(t, want, version)
	require.False(t, dirty)
}

// connect opens a connection, closed with the test.
func connect(t *testing.T, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// readMetering begins a transaction that reads metering_state, as an export does.
func readMetering(t *testing.T, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	export, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = export.Exec(t.Context(), "SELECT sealed_until FROM metering_state")
	require.NoError(t, err)
	return export
}

// waitsForMetering waits until a backend waits for a lock of metering_state, and returns its pid.
func waitsForMetering(t *testing.T, conn *pgx.Conn) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT coalesce((SELECT l.pid FROM pg_locks l
			WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
				AND l.relation = 'metering_state'::regclass AND NOT l.granted LIMIT 1), 0)`).Scan(&pid))
		return pid != 0
	}, time.Minute, time.Millisecond)
	return pid
}

// A migration whose connection is killed changes nothing, and the next start carries it out.
func TestUpAfterAKill(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	downTo(t, u, 65)
	export := readMetering(t, connect(t, u))
	killer := connect(t, u)
	done := make(chan error, 1)
	go func() { done <- migrations.Up(t.Context(), u) }()
	_, err := killer.Exec(t.Context(), "SELECT pg_terminate_backend($1)", waitsForMetering(t, killer))
	require.NoError(t, err)
	require.Error(t, <-done)
	atVersion(t, u, 65)

	require.NoError(t, export.Rollback(t.Context()))
	require.NoError(t, migrations.Up(t.Context(), u))
	latest, err := migrations.Latest()
	require.NoError(t, err)
	atVersion(t, u, latest)
}

// A server that is killed while a migration waits leaves a backend that carries it out. The next
// start waits for that one, and continues behind it.
func TestUpBehindAnOrphan(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	downTo(t, u, 65)
	export := readMetering(t, connect(t, u))
	observer := connect(t, u)
	through, cut := proxy(t, u, func(server, client net.Conn) {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	done := make(chan error, 1)
	noted := make(chan string, 100)
	note := func(text string) { noted <- text }
	go func() { done <- migrations.UpNoting(t.Context(), through, note) }()
	require.Contains(t, <-noted, "migration 66 waits") // it writes nothing to the client until it ends
	pid := waitsForMetering(t, observer)
	cut()
	require.Error(t, <-done)
	atVersion(t, u, 65)

	next := make(chan error, 1)
	go func() { next <- migrations.UpNoting(t.Context(), u, note) }()
	require.Contains(t, <-noted, fmt.Sprint(pid))
	require.NoError(t, export.Rollback(t.Context()))
	require.NoError(t, <-next)
	latest, err := migrations.Latest()
	require.NoError(t, err)
	atVersion(t, u, latest)
}

// proxy returns the URL of a database behind a proxy, and a function that cuts all its connections,
// as the end of the client's process does. What clients send is passed on by send.
func proxy(t *testing.T, databaseURL string, send func(server, client net.Conn)) (through string, cut func()) {
	t.Helper()
	config, err := pgx.ParseConfig(databaseURL)
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	clients := make(chan net.Conn, 10)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
			if err != nil {
				_ = client.Close()
				return
			}
			clients <- client
			go send(server, client)
			go func() { _, _ = io.Copy(client, server) }()
		}
	}()
	parsed, err := url.Parse(databaseURL)
	require.NoError(t, err)
	parsed.Host = listener.Addr().String()
	query := parsed.Query()
	query.Del("host")
	parsed.RawQuery = query.Encode()
	return parsed.String(), func() {
		_ = listener.Close() // pgx would cancel the statement through another connection
		for len(clients) > 0 {
			_ = (<-clients).Close()
		}
	}
}

// While another process migrates, a start says for what it waits, and a signal ends the wait.
func TestUpCancelledBesideAnother(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	other := connect(t, u)
	var name string
	require.NoError(t, other.QueryRow(t.Context(), "SELECT current_database()").Scan(&name))
	lock, err := database.GenerateAdvisoryLockId(name, "public", "schema_migrations")
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), "SELECT pg_advisory_lock("+lock+")")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var notes []string
	err = migrations.UpNoting(ctx, u, func(text string) {
		notes = append(notes, text)
		cancel()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], fmt.Sprint(other.PgConn().PID()))
}

// A migration that waits for others says so, and after a while fails without having changed
// anything. A later start carries it out.
func TestWaitsOfMigrationsEnd(t *testing.T) {
	t.Parallel()
	for number, used := range map[int]string{
		66: "SELECT sealed_until FROM metering_state", // as an export
		70: "LOCK TABLE config_version IN ROW EXCLUSIVE MODE",
		72: "LOCK TABLE rules IN ROW EXCLUSIVE MODE",
	} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			t.Parallel()
			u := newDatabase(t)
			require.NoError(t, migrations.Up(t.Context(), u))
			downTo(t, u, number-1)
			user := connect(t, u)
			tx, err := user.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), used)
			require.NoError(t, err)
			var notes []string
			err = migrations.UpNoting(t.Context(), withOptions(t, u, "-cweir.lock_attempts=2"), func(text string) { notes = append(notes, text) })
			pid := fmt.Sprint(user.PgConn().PID())
			require.ErrorContains(t, err, fmt.Sprint("migration ", number))
			require.ErrorContains(t, err, pid)
			var failed *migrations.FailedError
			require.NotErrorAs(t, err, &failed, "it is tried again")
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], pid)
			atVersion(t, u, number-1)

			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, migrations.Up(t.Context(), u))
			latest, err := migrations.Latest()
			require.NoError(t, err)
			atVersion(t, u, latest)
		})
	}
}

// A migration that waits for all statements on a table holds up none of them: not those that come
// while it waits, and not for longer than a moment.
func TestWaitingForTablesHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	const tables = "tenants, counter_changes, ended_meters, portal_links, sessions"
	for _, number := range []int{68, 69, 73, 75, 76} {
		u := newDatabase(t)
		require.NoError(t, migrations.Up(t.Context(), u))
		downTo(t, u, number-1)
		reader := connect(t, u)
		backup, err := reader.Begin(t.Context())
		require.NoError(t, err)
		_, err = backup.Exec(t.Context(), "LOCK TABLE "+tables+" IN ACCESS SHARE MODE")
		require.NoError(t, err)
		waits, done := make(chan string, 1), make(chan error, 1)
		go func() { done <- migrations.UpNoting(t.Context(), u, func(text string) { waits <- text }) }()
		require.Contains(t, <-waits, fmt.Sprint(reader.PgConn().PID()))

		other := connect(t, u)
		_, err = other.Exec(t.Context(), "SET lock_timeout = '10s'")
		require.NoError(t, err)
		for range 10 {
			_, err := other.Exec(t.Context(), "SELECT FROM "+tables)
			require.NoError(t, err)
		}
		require.Empty(t, done)
		require.NoError(t, backup.Rollback(t.Context()))
		require.NoError(t, <-done)
	}
}

// A migration that the database refuses changes nothing, and a repetition is of no use.
func TestUpFails(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	downTo(t, u, 65)
	exec(t, u, "ALTER TABLE metering_state ADD COLUMN pushes_until timestamptz")
	for range 2 {
		var failed *migrations.FailedError
		require.ErrorAs(t, migrations.Up(t.Context(), u), &failed)
		require.Equal(t, 66, failed.Version)
		require.ErrorContains(t, failed, "already exists")
		require.NotContains(t, failed.Error(), "CREATE FUNCTION", "the text of the file")
		atVersion(t, u, 65)
	}
	exec(t, u, "ALTER TABLE metering_state DROP COLUMN pushes_until")
	require.NoError(t, migrations.Up(t.Context(), u))
}

// Every file is one transaction, in which the version is set, too.
func TestFilesAreTransactions(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.FS, "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	own := regexp.MustCompile(`(?im)^\s*(BEGIN|COMMIT|ROLLBACK|START TRANSACTION|END|SET (SESSION )?ROLE \w+|VACUUM\b.*)\s*;|\bCONCURRENTLY\b`)
	comment, body := regexp.MustCompile(`(?m)--.*$`), regexp.MustCompile(`(?s)\$\$.*?\$\$`)
	for _, name := range names {
		text, err := fs.ReadFile(migrations.FS, name)
		require.NoError(t, err)
		statements := body.ReplaceAllString(comment.ReplaceAllString(string(text), ""), "")
		require.Empty(t, strings.TrimSpace(own.FindString(statements)), name)
	}
}
