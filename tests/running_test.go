package tests

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

func TestStartCheckStop(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	i := start(t, s).AwaitReady()
	require.Equal(t, http.StatusOK, status(i.URL()+"/healthz"))
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":2,"window":"1h","algorithm":"fixed_window_first_hit"}`, i)
	for _, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, want)
	}
	require.Zero(t, i.Stop())
	for _, line := range strings.Split(i.Log(), "\n") {
		require.True(t, json.Valid([]byte(line)) || line == "(process ended)", "not a line of JSON: %s", line)
	}
	for _, secret := range []string{tenant.key, s["WEIR_DATABASE_URL"], s["WEIR_REDIS_URL"]} {
		require.NotContains(t, i.Log(), secret)
	}

	// The configuration and the counters survive a restart.
	i = start(t, s).AwaitReady()
	tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, http.StatusTooManyRequests)
	require.Zero(t, i.Stop())
}

// variables returns all settings in the program's source.
func variables(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(testenv.Root(), "cmd", "server", "config.go"))
	require.NoError(t, err)
	found := regexp.MustCompile(`env:"(WEIR_[A-Z_]+)"`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, found)
	var names []string
	for _, match := range found {
		names = append(names, match[1])
	}
	return names
}

// Every variable is in --help and in the manual.
func TestEveryVariableIsDocumented(t *testing.T) {
	t.Parallel()
	printed := help(t)
	manual, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "operations.md"))
	require.NoError(t, err)
	for _, name := range variables(t) {
		require.Contains(t, printed, "$"+name)
		require.Contains(t, string(manual), "`"+name+"`")
	}
	for _, fallback := range []string{`":8080"`, `"127.0.0.1:9090"`, "50ms", "5s", `"draft,x"`, `"info"`} {
		require.Contains(t, printed, "="+fallback)
	}
	// Help output is often pasted into tickets.
	stdout, _, code := runServer(t, settings{"WEIR_DATABASE_URL": "postgres://u:hunter2@h/d"}, "--help")
	require.Zero(t, code)
	require.NotContains(t, stdout, "hunter2")
}

func TestInvalidSettingIsOneLine(t *testing.T) {
	t.Parallel()
	good := settings{
		"WEIR_DATABASE_URL": "postgres://u:hunter2@127.0.0.1:1/d", "WEIR_REDIS_URL": "redis://u:hunter2@127.0.0.1:1/0",
		"WEIR_HTTP_ADDR": "127.0.0.1:0", "WEIR_INTERNAL_ADDR": "127.0.0.1:0",
	}
	cert := t.TempDir()
	writeCertificate(t, cert, "one")
	garbage := filepath.Join(cert, "garbage.pem")
	require.NoError(t, os.WriteFile(garbage, []byte("garbage"), 0o600))
	https := settings{"WEIR_HTTPS_ADDR": "127.0.0.1:0", "WEIR_TLS_CERT": filepath.Join(cert, "cert.pem"), "WEIR_TLS_KEY": filepath.Join(cert, "key.pem")}

	for _, c := range []struct {
		name  string // the variable that the line must name
		wrong settings
	}{
		{"WEIR_DATABASE_URL", settings{"WEIR_DATABASE_URL": ""}},
		{"WEIR_DATABASE_URL", settings{"WEIR_DATABASE_URL": "mysql://u:hunter2@h/d"}},
		{"WEIR_DATABASE_URL", settings{"WEIR_DATABASE_URL": "postgres://u:hunter2@h:port/d"}},
		{"WEIR_DATABASE_URL", settings{"WEIR_DATABASE_URL": "postgres://u:hunter2%zz@h/d"}},
		{"WEIR_DATABASE_URL", settings{"WEIR_DATABASE_URL": "postgres://u:hunter2@h/d?pool_max_conns=many"}},
		{"WEIR_MIGRATE_DATABASE_URL", settings{"WEIR_MIGRATE_DATABASE_URL": "hunter2"}},
		{"WEIR_DATABASE_LISTEN_URL", settings{"WEIR_DATABASE_LISTEN_URL": "hunter2"}},
		{"WEIR_REDIS_URL", settings{"WEIR_REDIS_URL": ""}},
		{"WEIR_REDIS_URL", settings{"WEIR_REDIS_URL": "http://u:hunter2@h"}},
		{"WEIR_REDIS_URL", settings{"WEIR_REDIS_URL": "redis://u:hunter2@h:1/zero"}},
		{"WEIR_REDIS_TIMEOUT", settings{"WEIR_REDIS_TIMEOUT": "-5ms"}},
		{"WEIR_REDIS_TIMEOUT", settings{"WEIR_REDIS_TIMEOUT": "11s"}},
		{"WEIR_REDIS_TIMEOUT", settings{"WEIR_REDIS_TIMEOUT": "fast"}},
		{"WEIR_INSTANCES", settings{"WEIR_INSTANCES": "0"}},
		{"WEIR_INSTANCES", settings{"WEIR_INSTANCES": "three"}},
		{"WEIR_HTTP_ADDR", settings{"WEIR_HTTP_ADDR": "8080"}},
		{"WEIR_HTTP_ADDR", settings{"WEIR_HTTP_ADDR": ":99999"}},
		{"WEIR_HTTPS_ADDR", settings{"WEIR_HTTPS_ADDR": "https"}},
		{"WEIR_GRPC_ADDR", settings{"WEIR_GRPC_ADDR": "8081"}},
		{"WEIR_GRPC_TLS", settings{"WEIR_GRPC_TLS": "true"}},
		{"WEIR_TLS_CERT", settings{"WEIR_GRPC_ADDR": "127.0.0.1:0", "WEIR_GRPC_TLS": "true"}},
		{"WEIR_INTERNAL_ADDR", settings{"WEIR_INTERNAL_ADDR": "localhost"}},
		{"WEIR_TLS_CERT", https.With(settings{"WEIR_TLS_CERT": ""})},
		{"WEIR_TLS_CERT", https.With(settings{"WEIR_TLS_CERT": "/nowhere/cert.pem"})},
		{"WEIR_TLS_CERT", https.With(settings{"WEIR_TLS_CERT": garbage})},
		{"WEIR_TLS_KEY", https.With(settings{"WEIR_TLS_KEY": ""})},
		{"WEIR_TLS_KEY", https.With(settings{"WEIR_TLS_KEY": "/nowhere/key.pem"})},
		{"WEIR_TLS_CERT", https.With(settings{"WEIR_HTTPS_ADDR": ""})},
		{"WEIR_HTTP_ADDR", settings{"WEIR_HTTP_ADDR": "off"}},
		{"WEIR_HEADERS", settings{"WEIR_HEADERS": "draft,y"}},
		{"WEIR_MAX_CONFIG_AGE", settings{"WEIR_MAX_CONFIG_AGE": "1s"}},
		{"WEIR_MAX_IN_FLIGHT", settings{"WEIR_MAX_IN_FLIGHT": "0"}},
		{"WEIR_DRAIN", settings{"WEIR_DRAIN": "-1s"}},
		{"WEIR_DRAIN", settings{"WEIR_DRAIN": "1h"}},
		{"WEIR_LOG_LEVEL", settings{"WEIR_LOG_LEVEL": "loud"}},
		{"WEIR_MIGRATE", settings{"WEIR_MIGRATE": "perhaps"}},
	} {
		stdout, stderr, code := runServer(t, good.With(c.wrong))
		require.NotZero(t, code, "%v", c.wrong)
		require.Empty(t, stdout)
		require.Equal(t, 1, strings.Count(stderr, "\n"), "one line, for %v: %s", c.wrong, stderr)
		require.Contains(t, stderr, c.name)
		require.NotContains(t, stderr, "hunter2")
	}
}

// A misspelled name is reported at startup, not found in production.
func TestUnknownVariableIsNamed(t *testing.T) {
	t.Parallel()
	i := start(t, newSettings(t).With(settings{"WEIR_REDIS_TIMOUT": "hunter2"})).AwaitReady()
	require.Contains(t, i.Log(), "WEIR_REDIS_TIMOUT")
	require.NotContains(t, i.Log(), "hunter2")
}

func TestPortInUseIsNamed(t *testing.T) {
	t.Parallel()
	for _, variable := range []string{"WEIR_HTTP_ADDR", "WEIR_INTERNAL_ADDR"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		taken := listener.Addr().String()
		_, stderr, code := runServer(t, newSettings(t).With(settings{variable: taken}))
		require.NoError(t, listener.Close())
		require.Equal(t, 1, code)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.Contains(t, stderr, variable)
		require.Contains(t, stderr, taken)
	}
}

func TestMigrateCommand(t *testing.T) {
	t.Parallel()
	s := settings{"WEIR_DATABASE_URL": harness.NewDatabase(t)}
	version := func() string {
		stdout, stderr, code := runServer(t, s, "migrate", "version")
		require.Zero(t, code, stderr)
		return strings.TrimSpace(stdout)
	}
	require.Regexp(t, `^0 `, version())
	_, stderr, code := runServer(t, s, "migrate", "up")
	require.Zero(t, code, stderr)
	newest := version()
	require.NotRegexp(t, `^0 `, newest)
	_, stderr, code = runServer(t, s, "migrate", "down")
	require.Zero(t, code, stderr)
	require.NotEqual(t, newest, version())

	// A server that may not migrate reports the missing migrations, and does not serve with an old
	// schema.
	i := start(t, newSettings(t).With(s).With(settings{"WEIR_MIGRATE": "false"}))
	i.AwaitLog("schema")
	require.Equal(t, http.StatusServiceUnavailable, status(i.URL()+"/readyz"))
	_, stderr, code = runServer(t, s, "migrate", "up")
	require.Zero(t, code, stderr)
	i.AwaitReady()
}

// Several instances are commonly started at the same time on a new database.
func TestInstancesStartedTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_DATABASE_URL": harness.NewDatabase(t)})
	instances := []*instance{start(t, s), start(t, s), start(t, s)}
	for _, i := range instances {
		i.AwaitReady()
	}
}

// If the database becomes available after startup, no restart is needed.
func TestPostgresDownAtStart(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	u, err := url.Parse(s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	door := newDoor(t, u.Host)
	u.Host = door.addr
	i := start(t, s.With(settings{"WEIR_DATABASE_URL": u.String()}))
	require.Equal(t, http.StatusOK, status(i.URL()+"/healthz"))
	require.Equal(t, http.StatusServiceUnavailable, status(i.URL()+"/readyz"))
	require.Equal(t, http.StatusServiceUnavailable, status(i.URL()+"/v1/check"))
	i.AwaitLog("WARN")
	door.open()
	i.AwaitReady()

	// Once it has started, checks continue without the database.
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":1000,"window":"1h"}`, i)
	door.close()
	for range 5 {
		tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, http.StatusOK)
	}
	require.Equal(t, http.StatusOK, status(i.URL()+"/readyz"))
	require.Zero(t, i.Stop())
}

// A service that waits for its database stops immediately.
func TestStopsWhilePostgresIsDown(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	u, err := url.Parse(s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	u.Host = newDoor(t, u.Host).addr
	i := start(t, s.With(settings{"WEIR_DATABASE_URL": u.String(), "WEIR_DRAIN": "5m"}))
	i.AwaitLog("WARN")
	require.Zero(t, i.Stop())
}

func TestMetricsAndProfilesAreInternal(t *testing.T) {
	t.Parallel()
	// Its own Redis, because instances of other tests would be counted.
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": testenv.StartRedis(t).URL})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":1,"window":"1h"}`, i)
	tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, http.StatusOK)
	tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, http.StatusTooManyRequests)

	metrics := i.Metrics()
	for _, name := range []string{
		`weir_checks_total{decision="allowed"}`, `weir_checks_total{decision="RATE_LIMIT_EXCEEDED"} 1`,
		"weir_rule_evaluation_seconds_count", "weir_redis_seconds_count", "weir_config_age_seconds", "weir_degraded 0",
		"weir_http_requests_total", "weir_instances 1", "weir_build_info", "go_goroutines", "process_open_fds",
	} {
		require.Contains(t, metrics, name)
	}
	for _, word := range []string{"user_42", "acme"} {
		require.NotContains(t, metrics, word, "a label with unbounded values")
	}
	require.Equal(t, http.StatusOK, status(i.InternalURL()+"/debug/pprof/goroutine"))
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/goroutine"} {
		require.Equal(t, http.StatusNotFound, status(i.URL()+path))
	}
}

// drain is longer than a busy machine may stall between two requests of a test.
const drain = "20s"

// During a rolling restart no request fails, even from a client that never repeats one. The client
// keeps its connection until it is asked to close it.
func TestDrainFailsNoRequest(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_DRAIN": drain})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":1000000,"window":"1h"}`, i)
	checkURL, readyURL := i.URL()+"/check", i.URL()+"/readyz"

	const clients = 8
	var wg sync.WaitGroup
	running := make(chan struct{}, clients)
	failures := make(chan string, clients)
	for range clients {
		wg.Go(func() {
			c := newClient(t, tenant.key) // its own connection
			for n := 0; ; n++ {
				got, err := c.try(http.MethodPost, checkURL, `{"subject":"user_42","resource":"api"}`)
				switch {
				case err != nil:
					failures <- err.Error()
					return
				case got.status != http.StatusOK:
					failures <- string(got.body)
					return
				case got.last:
					return
				case n == 10:
					running <- struct{}{}
				}
			}
		})
	}
	for range clients {
		<-running
	}
	i.Signal(syscall.SIGTERM)
	i.AwaitLog("draining")
	require.Equal(t, http.StatusServiceUnavailable, status(readyURL), "load balancers must send requests elsewhere")
	tenant.do(http.MethodPost, checkURL, `{"subject":"user_42","resource":"api"}`, http.StatusOK)
	wg.Wait()
	close(failures)
	for failure := range failures {
		t.Error(failure)
	}
	require.Zero(t, i.Exit())
}

func TestSecondSignalStopsImmediately(t *testing.T) {
	t.Parallel()
	i := start(t, newSettings(t).With(settings{"WEIR_DRAIN": "5m"})).AwaitReady()
	i.Signal(os.Interrupt)
	i.AwaitLog("draining")
	i.Signal(os.Interrupt)
	require.Equal(t, 1, i.Exit())
}

// The container's health check is this command alone.
func TestHealthcheckCommand(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	i := start(t, s).AwaitReady()
	_, stderr, code := runServer(t, settings{"WEIR_HTTP_ADDR": i.Address("WEIR_HTTP_ADDR")}, "healthcheck")
	require.Zero(t, code, stderr)
	i.Stop()
	_, stderr, code = runServer(t, settings{"WEIR_HTTP_ADDR": i.Address("WEIR_HTTP_ADDR")}, "healthcheck")
	require.Equal(t, 1, code)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

// door is an address that forwards to a server while it is open, and refuses connections while it
// is closed.
type door struct {
	t    testing.TB
	addr string

	mu       sync.Mutex
	target   string
	listener net.Listener
	conns    []net.Conn
}

// newDoor returns a closed door to target.
func newDoor(t testing.TB, target string) *door {
	t.Helper()
	d := &door{t: t, addr: "127.0.0.1:" + testenv.FreePort(t), target: target}
	t.Cleanup(d.close)
	return d
}

// leadTo makes the door forward new connections to target.
func (d *door) leadTo(target string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.target = target
}

func (d *door) open() {
	d.t.Helper()
	listener, err := net.Listen("tcp", d.addr)
	require.NoError(d.t, err)
	d.mu.Lock()
	d.listener = listener
	d.mu.Unlock()
	go func() {
		for {
			outer, err := listener.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			target := d.target
			d.mu.Unlock()
			inner, err := net.Dial("tcp", target)
			if err != nil {
				_ = outer.Close()
				continue
			}
			d.mu.Lock()
			d.conns = append(d.conns, outer, inner)
			d.mu.Unlock()
			go func() { _, _ = io.Copy(inner, outer); _ = inner.Close() }()
			go func() { _, _ = io.Copy(outer, inner); _ = outer.Close() }()
		}
	}()
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		_ = d.listener.Close()
	}
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.listener, d.conns = nil, nil
}
