// Package harness starts the real program for tests that observe it from outside. Each server
// process has its own settings and database.
package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Patience is the timeout of all waits. It is long, because test machines are slow at times, and
// passing tests do not wait that long.
const Patience = 3 * time.Minute

// Tick is the polling interval for changes without a signal.
const Tick = 10 * time.Millisecond

var programs struct {
	mu     sync.Mutex
	folder string
	built  map[string]string // by name
}

// Main is for TestMain: it runs the tests, closes what they shared, and returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	shared.end()
	return code
}

// Outside runs f for a command that is not a test, closes what it shared, and returns its exit
// code.
func Outside(f func(t testing.TB) int) int {
	code := f(shared)
	shared.end()
	return code
}

// Server returns the path of the server's program, as Program.
func Server(t testing.TB) string {
	t.Helper()
	return Program(t, "", "./cmd/server")
}

// Program builds a main package in a folder of the checkout, once for all tests of a package, and
// returns the program's path. It uses the race detector if the tests do, not only to find races:
// the packages that it shares with the tests are then compiled already.
func Program(t testing.TB, folder, main string) string {
	t.Helper()
	programs.mu.Lock()
	defer programs.mu.Unlock()
	name := filepath.Base(main)
	if program := programs.built[name]; program != "" {
		return program
	}
	if programs.folder == "" {
		folder, err := os.MkdirTemp("", "weir-tests-")
		require.NoError(t, err)
		shared.Cleanup(func() { _ = os.RemoveAll(folder) })
		programs.folder, programs.built = folder, map[string]string{}
	}
	program := filepath.Join(programs.folder, name)
	args := []string{"build", "-o", program}
	if raceDetector {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, main)...)
	cmd.Dir = filepath.Join(testenv.Root(), folder)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go build: %s", out)
	programs.built[name] = program
	return program
}

// Settings are variables of a server's environment.
type Settings map[string]string

// With returns a copy of the settings, with those in more added or replaced.
func (s Settings) With(more Settings) Settings {
	all := Settings{}
	for name, value := range s {
		all[name] = value
	}
	for name, value := range more {
		all[name] = value
	}
	return all
}

// Environ returns the environment of this process without variables that configure a server, and
// with the settings.
func (s Settings) Environ() []string {
	var environ []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WEIR_") {
			environ = append(environ, variable)
		}
	}
	for name, value := range s {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// NewSettings returns the settings of a new installation: a database of the test with the newest
// schema and no rows, the shared Redis, and free ports. The Redis timeout is long, so that checks
// on a busy machine are not degraded.
func NewSettings(t testing.TB) Settings {
	t.Helper()
	return Settings{
		"WEIR_DATABASE_URL":    newInstallation(t),
		"WEIR_ALLOW_SUPERUSER": "true", // the owner of the test's database
		"WEIR_REDIS_URL":       testenv.RedisURL(t),
		"WEIR_REDIS_TIMEOUT":   "10s",
		"WEIR_HTTP_ADDR":       "127.0.0.1:0",
		"WEIR_INTERNAL_ADDR":   "127.0.0.1:0",
		"WEIR_DRAIN":           "0s",
	}
}

// NewDatabase creates an empty database, which is dropped after the test, and returns its owner's
// URL.
func NewDatabase(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "template1")
}

// newDatabase creates a copy of a database, which is dropped after the test, and returns its
// owner's URL.
func newDatabase(t testing.TB, template string) string {
	t.Helper()
	owner := testenv.DatabaseURL(t)
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	name := "weir_system_" + hex.EncodeToString(random[:])
	Exec(t, owner, "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY file_copy") // cheaper than the log, for a server that does not sync
	t.Cleanup(func() { Exec(t, owner, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(owner)
	require.NoError(t, err)
	u.Path = "/" + name
	return u.String()
}

var schema struct {
	once     sync.Once
	database string
}

// newInstallation creates a database with the newest schema, which is dropped after the test, and
// returns its owner's URL. It copies one that all tests of the process share, which takes a
// fraction of the time of the migrations, and gives the copy the random values of its own that the
// migrations would.
func newInstallation(t testing.TB) string {
	t.Helper()
	schema.once.Do(func() {
		owner := NewDatabase(shared)
		_, stderr, code := Run(shared, Settings{"WEIR_DATABASE_URL": owner}, "migrate", "up")
		require.Zero(shared, code, stderr)
		u, err := url.Parse(owner)
		require.NoError(shared, err)
		schema.database = strings.TrimPrefix(u.Path, "/")
	})
	owner := newDatabase(t, schema.database)
	Exec(t, owner, `UPDATE deployment_secrets SET counter_key = uuid_send(gen_random_uuid()),
		cursor_key = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())`)
	Exec(t, owner, `UPDATE config_version SET epoch = gen_random_uuid()`)
	return owner
}

// Exec runs one statement on a database.
func Exec(t testing.TB, databaseURL, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	require.NoError(t, err)
	defer conn.Close(ctx)
	for {
		_, err = conn.Exec(ctx, statement)
		var failed *pgconn.PgError
		if !errors.As(err, &failed) || failed.Code != "55006" && failed.Code != "40P01" {
			break
		}
		// A session that was told to end has not ended yet, on a machine that is busy, or a server
		// that is running has locked the same tables in another order.
		_, err = conn.Exec(ctx, "SELECT pg_sleep(0.05)")
		require.NoError(t, err)
	}
	require.NoError(t, err, statement)
}
