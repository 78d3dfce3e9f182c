// Package testenv gives tests a real PostgreSQL and Redis, also with a plain `go test ./...` or
// from an editor. scripts/dev.sh starts them and stops them when the test process ends: it reads
// from a pipe that the kernel then closes. Only tests and their helpers import this package.
package testenv

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// The environment variables with the servers' URLs. Set both to use other servers.
const (
	databaseVar = "WEIR_TEST_DATABASE_URL"
	redisVar    = "WEIR_TEST_REDIS_URL"
)

// DatabaseURL returns the URL of a running PostgreSQL with a superuser and an existing database.
// Tests create their own databases. It fails the test if there is none.
func DatabaseURL(tb testing.TB) string { return serverURL(tb, databaseVar) }

// RedisURL returns the URL of a running Redis that never evicts. All test processes share it, so
// use unique keys and do not flush it; StartRedis starts a private one. It fails the test if there
// is none.
func RedisURL(tb testing.TB) string { return serverURL(tb, redisVar) }

// RedisTimeout is how long checks wait for Redis in tests that are not about time. A machine that
// runs many tests can stall for seconds, and a check that is given up is counted by one instance.
const RedisTimeout = 30 * time.Second

func serverURL(tb testing.TB, name string) string {
	tb.Helper()
	urls, err := servers()
	if err != nil {
		tb.Fatalf("tests need PostgreSQL and Redis: %v", err)
	}
	return urls[name]
}

var servers = sync.OnceValues(func() (map[string]string, error) {
	urls := map[string]string{databaseVar: os.Getenv(databaseVar), redisVar: os.Getenv(redisVar)}
	if urls[databaseVar] != "" && urls[redisVar] != "" {
		return urls, nil
	}
	script := filepath.Join(Root(), "scripts", "dev.sh")
	// The command prints the URLs, and runs until its standard input is closed.
	cmd := exec.Command("bash", script, "--test", "with", "sh", "-c",
		`env | grep '^WEIR_TEST_'; echo; exec cat >/dev/null`)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	keepOpen = stdin
	for lines := bufio.NewScanner(stdout); lines.Scan() && lines.Text() != ""; {
		name, value, _ := strings.Cut(lines.Text(), "=")
		urls[name] = value
	}
	if urls[databaseVar] == "" || urls[redisVar] == "" {
		err := cmd.Wait() // stderr is complete only after Wait
		return nil, fmt.Errorf("%s: %w: %s", script, err, strings.TrimSpace(stderr.String()))
	}
	return urls, nil
})

// keepOpen keeps the pipe open: closing it, which the garbage collector would do, stops the
// servers.
var keepOpen any

// Root returns the directory of the checkout. A binary that was built with -trimpath does not know
// it: it then takes the nearest directory above the working directory that holds this package.
func Root() string { return root() }

var root = sync.OnceValue(func() string {
	_, file, _, _ := runtime.Caller(0)
	if filepath.IsAbs(file) {
		return filepath.Dir(filepath.Dir(filepath.Dir(file)))
	}
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "internal", "testenv", "testenv.go")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			panic("testenv: the working directory is not inside the checkout")
		}
		dir = filepath.Dir(dir)
	}
})
