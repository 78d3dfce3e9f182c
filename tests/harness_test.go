// Package tests looks at the running system from outside: real server processes, real Postgres
// and Redis, HTTP and TLS. What one package promises by itself is tested beside it.
package tests

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// patience is how long anything may take that is awaited. It is long, because machines that
// run tests are slow at times, and no test that passes waits for all of it.
const patience = 60 * time.Second

// tick is how often something is looked at that cannot say when it changes.
const tick = 10 * time.Millisecond

var binary struct {
	once sync.Once
	path string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if binary.path != "" {
		_ = os.RemoveAll(filepath.Dir(binary.path))
	}
	os.Exit(code)
}

// server builds the real program, once for all tests, and returns its path.
func server(t testing.TB) string {
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

// settings are variables of a server's environment.
type settings map[string]string

func (s settings) with(more settings) settings {
	all := settings{}
	for name, value := range s {
		all[name] = value
	}
	for name, value := range more {
		all[name] = value
	}
	return all
}

// environ is ours without anything that would configure the server, and then the settings.
func (s settings) environ() []string {
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

// newSettings are for servers of one new installation: an empty database of the test's own,
// the shared Redis, free ports. The deadline of Redis is long, so that a busy machine does not
// turn a test of counting into one of degraded mode.
func newSettings(t testing.TB) settings {
	t.Helper()
	return settings{
		"WEIR_DATABASE_URL":  newDatabase(t),
		"WEIR_REDIS_URL":     testenv.RedisURL(t),
		"WEIR_REDIS_TIMEOUT": "1s",
		"WEIR_HTTP_ADDR":     "127.0.0.1:0",
		"WEIR_INTERNAL_ADDR": "127.0.0.1:0",
		"WEIR_DRAIN":         "0s",
	}
}

func newDatabase(t testing.TB) string {
	t.Helper()
	owner := testenv.DatabaseURL(t)
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	name := "weir_system_" + hex.EncodeToString(random[:])
	execSQL(t, owner, "CREATE DATABASE "+name)
	t.Cleanup(func() { execSQL(t, owner, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(owner)
	require.NoError(t, err)
	u.Path = "/" + name
	return u.String()
}

func execSQL(t testing.TB, databaseURL, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	require.NoError(t, err)
}

// instance is a server process.
type instance struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	out  syncBuffer    // what it wrote to standard output

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced with each line
	lines     []string      // what it wrote to standard error
	addresses map[string]string
}

// start starts a server process. It returns at once; the process ends with the test.
func start(t testing.TB, s settings, args ...string) *instance {
	t.Helper()
	i := &instance{t: t, cmd: exec.Command(server(t), args...), done: make(chan struct{}),
		changed: make(chan struct{}), addresses: map[string]string{}}
	i.cmd.Env = s.environ()
	i.cmd.Stdout = &i.out
	stderr, err := i.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, i.cmd.Start())
	go func() {
		defer close(i.done)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			i.heard(lines.Text())
		}
		_ = i.cmd.Wait() // tests read the state
		i.heard("(process ended)")
	}()
	t.Cleanup(func() {
		_ = i.cmd.Process.Kill() // an error says that it has ended
		<-i.done
		if t.Failed() {
			t.Logf("log of the server:\n%s", i.log())
		}
	})
	return i
}

func (i *instance) heard(line string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lines = append(i.lines, line)
	var entry struct{ Msg, Variable, Address string }
	if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
		i.addresses[entry.Variable] = entry.Address
	}
	close(i.changed)
	i.changed = make(chan struct{})
}

func (i *instance) log() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return strings.Join(i.lines, "\n")
}

// await returns when holds does, which is asked after each line that the server writes.
func (i *instance) await(what string, holds func() bool) {
	i.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		i.mu.Lock()
		changed := i.changed
		ok := holds()
		i.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-i.done:
			i.mu.Lock()
			ok := holds()
			i.mu.Unlock()
			require.True(i.t, ok, "the server ended before: %s", what)
			return
		case <-timeout.C:
			require.Fail(i.t, "not in time: "+what)
		}
	}
}

// awaitLog returns when the server has written a line that contains text.
func (i *instance) awaitLog(text string) {
	i.t.Helper()
	i.await("a line with "+text, func() bool {
		for _, line := range i.lines {
			if strings.Contains(line, text) {
				return true
			}
		}
		return false
	})
}

// address is where the server listens by this variable.
func (i *instance) address(variable string) string {
	i.t.Helper()
	i.await("listening by "+variable, func() bool { return i.addresses[variable] != "" })
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.addresses[variable]
}

func (i *instance) url() string         { return "http://" + i.address("WEIR_HTTP_ADDR") }
func (i *instance) httpsURL() string    { return "https://" + i.address("WEIR_HTTPS_ADDR") }
func (i *instance) internalURL() string { return "http://" + i.address("WEIR_INTERNAL_ADDR") }

// awaitReady returns when /readyz says so.
func (i *instance) awaitReady() *instance {
	i.t.Helper()
	readyz := i.url() + "/readyz"
	require.Eventually(i.t, func() bool {
		return status(readyz) == http.StatusOK
	}, patience, tick, "the server does not get ready")
	return i
}

// status asks for a URL over a connection of its own; 0: no answer.
func status(url string) int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

func (i *instance) signal(s os.Signal) {
	i.t.Helper()
	require.NoError(i.t, i.cmd.Process.Signal(s))
}

// stop ends the server by SIGTERM and returns its exit code.
func (i *instance) stop() int {
	i.t.Helper()
	i.signal(syscall.SIGTERM)
	return i.exit()
}

// exit waits for the end of the process and returns its exit code; -1 after a signal.
func (i *instance) exit() int {
	i.t.Helper()
	select {
	case <-i.done:
	case <-time.After(patience):
		require.Fail(i.t, "the server does not end")
	}
	return i.cmd.ProcessState.ExitCode()
}

// runServer runs a command of the server to its end.
func runServer(t testing.TB, s settings, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	program := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = s.environ()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// help is what `server --help` prints.
func help(t testing.TB) string {
	t.Helper()
	stdout, stderr, code := runServer(t, nil, "--help")
	require.Zero(t, code, stderr)
	return stdout
}

// client speaks to one installation with one key. It never repeats a request.
type client struct {
	t    testing.TB
	key  string
	http *http.Client
}

func newClient(t testing.TB, key string) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, key: key, http: &http.Client{Transport: transport, Timeout: patience}}
}

type answer struct {
	status int
	header http.Header
	body   []byte
	last   bool // the server wants the connection used no more
}

// decision is what tests read of a check's answer.
type decision struct {
	Allowed      bool   `json:"allowed"`
	Degraded     bool   `json:"degraded"`
	Rule         string `json:"rule"`
	Limit        int64  `json:"limit"`
	Remaining    *int64 `json:"remaining"`
	ResetAfterMS int64  `json:"reset_after_ms"`
	Error        *struct {
		Code string `json:"code"`
	} `json:"error"`
}

// check asks for one decision. It may be used from any goroutine.
func (c *client) check(url, body string) (answer, decision, error) {
	var d decision
	got, err := c.try(http.MethodPost, url, body)
	if err == nil {
		err = json.Unmarshal(got.body, &d)
	}
	return got, d, err
}

// try sends one request and returns what the network says.
func (c *client) try(method, url, body string) (answer, error) {
	return c.tryWith(method, url, body, nil)
}

// tryWith is try with further headers.
func (c *client) tryWith(method, url, body string, header http.Header) (answer, error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.GetBody = nil // without it, net/http has no means to repeat a request
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	return answer{status: response.StatusCode, header: response.Header, body: read, last: response.Close}, err
}

// do sends one request, whose answer must have this status.
func (c *client) do(method, url, body string, want int) answer {
	c.t.Helper()
	got, err := c.try(method, url, body)
	require.NoError(c.t, err)
	require.Equal(c.t, want, got.status, "%s %s: %s", method, url, got.body)
	return got
}

// newTenant makes a tenant by way of the operator's API and returns a client with its first key.
func newTenant(t testing.TB, s settings, i *instance) *client {
	t.Helper()
	stdout, stderr, code := runServer(t, s, "operator-key", "create", "tests")
	require.Zero(t, code, stderr)
	operator := newClient(t, strings.TrimSpace(stdout))
	var made struct {
		Key struct{ Secret string } `json:"key"`
	}
	got := operator.do(http.MethodPost, i.url()+"/v1/tenants", `{"slug":"acme","name":"Acme"}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &made))
	require.NotEmpty(t, made.Key.Secret)
	return newClient(t, made.Key.Secret)
}

// putRule makes or replaces a rule and returns when every one of the instances answers by it.
func (c *client) putRule(slug, fields string, instances ...*instance) {
	c.t.Helper()
	got, err := c.try(http.MethodPut, instances[0].url()+"/v1/rules/"+slug, fields)
	require.NoError(c.t, err)
	require.Contains(c.t, []int{http.StatusOK, http.StatusCreated}, got.status, "%s", got.body)
	for _, i := range instances {
		require.Eventually(c.t, func() bool {
			peek, err := c.try(http.MethodPost, i.url()+"/v1/check", `{"subject":"peek","resource":"`+slug+`","cost":0}`)
			return err == nil && strings.Contains(string(peek.body), `"rule":"`+slug+`"`)
		}, patience, tick, "the rule does not arrive")
	}
}
