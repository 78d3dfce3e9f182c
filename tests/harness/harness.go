// Package harness starts the real program for tests that observe it from outside. Each server
// process has its own settings and database.
package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
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

var binary struct {
	once sync.Once
	path string
	err  error
}

// Main is for TestMain: it runs the tests, closes what they shared, and returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	shared.end()
	if binary.path != "" {
		_ = os.RemoveAll(filepath.Dir(binary.path))
	}
	return code
}

// Outside runs f for a command that is not a test, closes what it shared, and returns its exit
// code.
func Outside(f func(t testing.TB) int) int {
	code := f(shared)
	shared.end()
	if binary.path != "" {
		_ = os.RemoveAll(filepath.Dir(binary.path))
	}
	return code
}

// Server builds the program, once for all tests of a package, and returns its path. It uses the
// race detector if the tests do.
func Server(t testing.TB) string {
	t.Helper()
	binary.once.Do(func() {
		dir, err := os.MkdirTemp("", "weir-tests-")
		if err != nil {
			binary.err = err
			return
		}
		binary.path = filepath.Join(dir, "server")
		args := []string{"build", "-o", binary.path}
		if raceDetector {
			args = append(args, "-race")
		}
		cmd := exec.Command("go", append(args, "./cmd/server")...)
		cmd.Dir = testenv.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			binary.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	require.NoError(t, binary.err)
	return binary.path
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
	Exec(t, owner, "CREATE DATABASE "+name+" TEMPLATE "+template)
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
		var inUse *pgconn.PgError
		if !errors.As(err, &inUse) || inUse.Code != "55006" {
			break
		}
		// A session that was told to end has not ended yet, on a machine that is busy.
		_, err = conn.Exec(ctx, "SELECT pg_sleep(0.05)")
		require.NoError(t, err)
	}
	require.NoError(t, err, statement)
}
