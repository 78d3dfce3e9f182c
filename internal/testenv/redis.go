package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Redis is a server of one test, which the test may kill, pause and restart. It stores nothing on
// disk: after Kill and Start it is empty.
type Redis struct {
	URL string // redis://127.0.0.1:PORT/0, the same after every Start

	tb       testing.TB
	port     string
	settings []string
	dir      string
	cmd      *exec.Cmd // nil while it does not run
}

// StartRedis starts a private Redis on a free loopback port, with additional lines of
// configuration, and stops it after the test. It needs the program redis-server or valkey-server,
// and fails the test without it.
func StartRedis(tb testing.TB, settings ...string) *Redis {
	tb.Helper()
	port := FreePort(tb)
	r := &Redis{URL: "redis://127.0.0.1:" + port + "/0", tb: tb, port: port, settings: settings, dir: tb.TempDir()}
	tb.Cleanup(func() {
		if r.cmd != nil {
			r.Kill()
		}
	})
	r.Start()
	return r
}

// Start starts an empty server, and returns when it answers.
func (r *Redis) Start() {
	r.tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		binary, err = exec.LookPath("valkey-server")
	}
	require.NoError(r.tb, err, "this test kills and pauses its own Redis: install redis-server")
	cmd := exec.Command(binary, "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf("port %s\nbind 127.0.0.1\nsave \"\"\nappendonly no\nmaxmemory-policy noeviction\n%s\n",
		r.port, strings.Join(r.settings, "\n")))
	cmd.Dir = r.dir
	var output lastOutput
	cmd.Stdout, cmd.Stderr = &output, &output
	EndWithParent(cmd)
	require.NoError(r.tb, cmd.Start())
	r.cmd = cmd
	client := adminOf("127.0.0.1:" + r.port)
	defer client.Close()
	require.Eventually(r.tb, func() bool { return client.Ping(context.Background()).Err() == nil },
		clusterPatience, 10*time.Millisecond, "Redis did not start: %s", &output)
}

// RedisClient returns a client of the Redis that all tests share, for code that takes a client as
// it is. It is patient, and sends nothing twice.
func RedisClient(tb testing.TB) *redis.Client {
	tb.Helper()
	options, err := redis.ParseURL(RedisURL(tb))
	require.NoError(tb, err)
	options.MaxRetries = -1
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = RedisTimeout, RedisTimeout, RedisTimeout, RedisTimeout
	client := redis.NewClient(options)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// adminOf returns a client for the test itself. It is patient: a machine that runs many tests may
// not schedule a server for longer than the default timeouts.
func adminOf(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: RedisTimeout, ReadTimeout: RedisTimeout,
		WriteTimeout: RedisTimeout, PoolTimeout: RedisTimeout})
}

// Kill ends the server with SIGKILL, without closing its sockets or saving its data.
func (r *Redis) Kill() {
	r.tb.Helper()
	require.NoError(r.tb, r.cmd.Process.Kill())
	_ = r.cmd.Wait() // it reports only the signal
	r.cmd = nil
}

// Pause stops the process: until Resume, its sockets stay open and it does not answer.
func (r *Redis) Pause() {
	r.tb.Helper()
	require.NoError(r.tb, r.cmd.Process.Signal(syscall.SIGSTOP))
}

// Resume resumes a paused server, which then answers the pending requests.
func (r *Redis) Resume() {
	r.tb.Helper()
	require.NoError(r.tb, r.cmd.Process.Signal(syscall.SIGCONT))
}

// lastOutput keeps the end of what a server writes, for the error of a test that could not start
// it.
type lastOutput struct {
	mu   sync.Mutex
	text []byte
}

func (o *lastOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	o.text = o.text[max(0, len(o.text)-2000):]
	return len(p), nil
}

func (o *lastOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// replicationField returns one field of INFO replication, or "" if the server does not answer.
func replicationField(ctx context.Context, client *redis.Client, name string) string {
	info := client.Info(ctx, "replication").Val()
	_, rest, _ := strings.Cut(info, "\r\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}
