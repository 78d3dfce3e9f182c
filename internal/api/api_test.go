package api

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/accesslog"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/places"
)

func prometheusRegistry() *prometheus.Registry { return prometheus.NewRegistry() }

func memoryEngine() engine.Engine { return engine.NewMemory(engine.MemoryOptions{}) }

// A balancer sends checks to instances that can serve them, and a process is not restarted because
// of other parts.
func TestHealthAndReadiness(t *testing.T) {
	s := newCheckStack(t)
	get := func(path string) answer { return s.contract.call("", http.MethodGet, path, nil) }
	require.JSONEq(t, `{"status":"ok"}`, string(get("/healthz").ok(200).body))
	require.JSONEq(t, `{"status":"ready","degraded":[]}`, string(get("/readyz").ok(200).body))

	s.ready.Store(&Readiness{Degraded: []string{"redis", "postgres"}})
	require.JSONEq(t, `{"status":"ready","degraded":["redis","postgres"]}`, string(get("/readyz").ok(200).body))

	s.ready.Store(&Readiness{
		Degraded: []string{"redis"}, Causes: []Cause{{"redis", "wrong_credentials"}, {"postgres", "timeout"}}, Warnings: []string{"redis_eviction", "other"},
	})
	require.JSONEq(t, `{"status":"ready","degraded":["redis"],"causes":{"redis":"wrong_credentials","postgres":"timeout"},"warnings":["redis_eviction","other"]}`,
		string(get("/readyz").ok(200).body))

	s.ready.Store(&Readiness{Reason: "The server is shutting down."})
	a := get("/readyz")
	require.Equal(t, "The server is shutting down.", a.problem(503, "NOT_READY").Detail)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	get("/healthz").ok(200)
	s.check(`{"subject":"a"}`).decision(200) // requests that come while it drains are served

	for _, path := range []string{"/healthz", "/readyz"} {
		require.Empty(t, s.contract.call("", http.MethodHead, path, nil).body)
		a := s.contract.call("", http.MethodPost, path, "")
		a.problem(405, "METHOD_NOT_ALLOWED")
		require.Equal(t, "GET, HEAD", a.header.Get("Allow"))
		require.Equal(t, "no-store", get(path).header.Get("Cache-Control"))
	}
	// Internal paths are not public.
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/vars", "/debug/pprof/heap"} {
		get(path).problem(404, "NOT_FOUND")
	}
}

func TestInternal(t *testing.T) {
	registry := prometheusRegistry()
	m := NewMetrics(registry)
	m.observe(routeCheck, "", 429, 0)
	h := NewInternal(registry, nil)
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	require.Contains(t, get("/metrics").Body.String(), `weir_http_requests_total{code="429",route="/v1/check"} 1`)
	require.Equal(t, 200, get("/debug/pprof/").Code)
	require.Equal(t, 200, get("/debug/pprof/goroutine").Code)
	require.Equal(t, 404, get("/v1/check").Code)
}

// If there are too many concurrent requests, further ones are refused immediately, but monitoring
// still works. A request whose body has not arrived does not count.
func TestShedding(t *testing.T) {
	s := newCheckStack(t)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	h := New(Config{MaxInFlight: 8}, deps)
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	check := func(body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", body)
		r.Header.Set("Authorization", "Bearer "+s.key)
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
		return w
	}
	go func() {
		defer close(done)
		check(blockingBody{inside, leave})
	}()
	<-inside
	require.Equal(t, 200, check(strings.NewReader(`{"subject":"ada"}`)).Code, "beside one that is being read")
	close(leave)
	<-done

	deps.Metrics.inFlight.Add(8) // as many as may be served
	w := check(strings.NewReader(`{"subject":"ada"}`))
	answer{t: t, status: w.Code, header: w.Header(), body: w.Body.Bytes()}.problem(503, "OVERLOADED")
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	for _, path := range []string{"/healthz", "/readyz"} {
		w = httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		require.Equal(t, 200, w.Code)
	}
	require.Equal(t, 1.0, testutil.ToFloat64(deps.Metrics.shed))
	deps.Metrics.inFlight.Add(-8)
	require.Equal(t, 200, check(strings.NewReader(`{"subject":"ada"}`)).Code, "the place is free again")
	require.Zero(t, deps.Metrics.inFlight.Load())
}

// A client that opens many streams without bodies affects nobody else, and itself only up to its
// share.
func TestBodiesThatNeverCome(t *testing.T) {
	s := newCheckStack(t)
	h := New(Config{MaxInFlight: 40}, s.deps)
	check := func(key string, body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", body)
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
		return w
	}
	leave := make(chan struct{})
	var waiting sync.WaitGroup
	for range 10 { // a quarter of 40
		inside := make(chan struct{})
		waiting.Go(func() { check(s.key, blockingBody{inside, leave}) })
		<-inside
	}
	require.Equal(t, 503, check(s.key, strings.NewReader(`{"subject":"ada"}`)).Code, "the tenant's own")
	require.Equal(t, 200, check(s.other, strings.NewReader(`{"subject":"ada"}`)).Code, "another tenant's")
	close(leave)
	waiting.Wait()
	require.Equal(t, 200, check(s.key, strings.NewReader(`{"subject":"ada"}`)).Code)
}

// One tenant can use at most half of the concurrent requests.
func TestShareOfATenant(t *testing.T) {
	t.Parallel()
	a := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(10), places.NewProcessors(2))
	one, two := limit.TenantID{1}, limit.TenantID{2}
	first, second := a.of(one), a.of(two)
	if first == second {
		second = a.of(limit.TenantID{3})
	}
	for range 5 {
		require.True(t, a.serve(first, one))
	}
	require.False(t, a.serve(first, one))
	require.True(t, a.serve(second, two))
	first.done()
	require.True(t, a.serve(first, one))
}

// blockingBody reports when it is read, and blocks until it is released.
type blockingBody struct{ inside, leave chan struct{} }

func (b blockingBody) Read([]byte) (int, error) {
	close(b.inside)
	<-b.leave
	return 0, context.Canceled
}

// A panic affects one request only: it is answered and logged, and the next request is served.
func TestPanics(t *testing.T) {
	var log lockedBuffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	s := &server{logger: logger, access: accesslog.New(logger), metrics: NewMetrics(prometheusRegistry())}
	s.capacity = newCapacity(s.metrics, overload.Fixed(10), places.NewProcessors(2))
	serve := func(h http.HandlerFunc) (*httptest.ResponseRecorder, any) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x", nil)
		r.Header.Set("X-Request-Id", "the-id")
		var fault any
		func() {
			defer func() { fault = recover() }()
			s.track(h).ServeHTTP(w, r)
		}()
		return w, fault
	}
	w, fault := serve(func(http.ResponseWriter, *http.Request) { panic("secret of ours") })
	require.Nil(t, fault)
	a := answer{t: t, status: w.Code, header: w.Header(), body: w.Body.Bytes()}
	a.problem(500, "INTERNAL")
	require.NotContains(t, string(a.body), "secret of ours")
	require.Contains(t, log.String(), "secret of ours")
	require.Contains(t, log.String(), `"request_id":"the-id"`)
	require.Equal(t, 1.0, testutil.ToFloat64(s.metrics.panics))

	// Half an answer cannot be recalled: the client must see that it is incomplete.
	_, fault = serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic("x")
	})
	require.Equal(t, http.ErrAbortHandler, fault)
	_, fault = serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	require.Equal(t, http.ErrAbortHandler, fault)
	require.Equal(t, int64(0), s.metrics.inFlight.Load())
}

// A request can be found by its id, and a client cannot forge log lines with an id.
func TestRequestIDs(t *testing.T) {
	s := newCheckStack(t)
	a := s.check(`{"subject":"a"}`, header{"X-Request-Id", "abc-1.2:Z_9"})
	require.Equal(t, "abc-1.2:Z_9", a.header.Get("X-Request-Id"))
	seen := map[string]bool{}
	for _, bad := range [][]header{
		nil, {{"X-Request-Id", ""}}, {{"X-Request-Id", "a b"}}, {{"X-Request-Id", `a"b`}}, {{"X-Request-Id", "é"}}, {{"X-Request-Id", strings.Repeat("x", 129)}},
		{{"X-Request-Id", "a"}, {"X-Request-Id", "b"}},
	} {
		id := s.check(`{"subject":"a","cost":0}`, bad...).header.Get("X-Request-Id")
		require.Regexp(t, "^[0-9a-f]{32}$", id)
		require.False(t, seen[id])
		seen[id] = true
	}
}

// The log contains what happened, but no subjects.
func TestAccessLog(t *testing.T) {
	s := newCheckStack(t)
	before := s.log.String()
	s.check(`{"subject":"person@example.com"}`).decision(200)
	s.check(`{"subject":"person@example.com","x":1}`)
	require.Equal(t, before, s.log.String(), "the path of a check writes nothing")

	s.contract.call(s.key, "GET", "/v1/subjects/person@example.com?token=hidden", nil, header{"X-Request-Id", "find-me"})
	s.contract.call("", "GET", "/nothing/here?token=hidden", nil)
	s.contract.call("", "GET", "/healthz", nil)
	var lines []map[string]any
	for line := range strings.Lines(s.log.String()) {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		if v["msg"] == "request" {
			lines = append(lines, v)
		}
	}
	require.Len(t, lines, 2)
	require.Equal(t, "find-me", lines[0]["request_id"])
	require.Equal(t, "/v1/subjects/{subject}", lines[0]["route"])
	require.Equal(t, s.actor.TenantID().String(), lines[0]["tenant_id"])
	require.Equal(t, "none", lines[1]["route"])
	require.Equal(t, 404.0, lines[1]["status"])
	for _, secret := range []string{"hidden", "person@example.com", s.key, "nothing/here"} {
		require.NotContains(t, s.log.String(), secret)
	}
}

func TestMetrics(t *testing.T) {
	s := newCheckStack(t)
	s.check(`{"subject":"m","cost":5}`)
	s.post("/check", `{"subject":"m"}`)
	s.check(`{"subject":"m","cost":-1}`)
	s.post("/v1/check/batch", `{"checks":[{"subject":"m"}]}`)
	s.contract.call("", "GET", "/no/such/path", nil)
	s.contract.call("", "CHECK", "/v1/check", nil)
	m := s.deps.Metrics
	for labels, want := range map[[2]string]float64{
		{"/v1/check", "2xx"}: 1, {"/v1/check", "429"}: 1, {"/v1/check", "4xx"}: 1, {"/v1/check/batch", "2xx"}: 1, {"none", "4xx"}: 2,
	} {
		require.Equal(t, want, testutil.ToFloat64(m.requests.WithLabelValues(labels[0], labels[1])), labels)
	}
	require.Equal(t, 1.0, testutil.ToFloat64(m.problems.WithLabelValues("INVALID_REQUEST")))
	problems, err := testutil.GatherAndLint(s.registry, "weir_http_requests_total", "weir_http_request_duration_seconds",
		"weir_http_check_problems_total", "weir_http_shed_total", "weir_http_panics_total", "weir_http_in_flight")
	require.NoError(t, err)
	require.Empty(t, problems)
}

// A browser that opens an answer of the admin API must not guess its type.
func TestBrowserHeaders(t *testing.T) {
	s := newCheckStack(t)
	h := New(Config{}, s.deps)
	get := func(target string) http.Header {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
		return w.Header()
	}
	for _, path := range []string{"/v1/rules", "/v1/check", authorizePath} {
		require.Equal(t, "nosniff", get("https://weir.example"+path).Get("X-Content-Type-Options"))
		require.Equal(t, "max-age=31536000", get("https://weir.example"+path).Get("Strict-Transport-Security"))
	}
	require.Empty(t, get("https://localhost:8443/v1/rules").Get("Strict-Transport-Security"))
	require.Empty(t, get("http://weir.example/v1/rules").Get("Strict-Transport-Security"))
}

// Answers of the lane have the same headers for browsers.
func TestBrowserHeadersOfTheLane(t *testing.T) { overBoth(t, testBrowserHeadersOfTheLane) }

func testBrowserHeadersOfTheLane(t *testing.T, s *checkStack) {
	c := s.dial()
	for _, host := range []string{"weir", "localhost:8443", "weir"} {
		c.send(strings.Replace(s.laneRequest(`{"subject":"browser","resource":"bulk"}`), "Host: weir", "Host: "+host, 1))
		a := c.receive()
		a.decision(200)
		require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
		require.Equal(t, s.secure != nil && host == "weir", a.header.Get("Strict-Transport-Security") == "max-age=31536000", host)
	}
	c.send("GET /v1/check HTTP/1.1\r\nno colon\r\n\r\n")
	require.Equal(t, "nosniff", c.receive().header.Get("X-Content-Type-Options"))
}

// A web page that points its own name at this machine cannot read the internal address.
func TestInternalHosts(t *testing.T) {
	server := httptest.NewServer(NewInternal(prometheus.NewRegistry(), []string{"Metrics.Example"}))
	t.Cleanup(server.Close)
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "localhost:9090": 200, "[::1]:9090": 200, "evil.example": 421, "evil.example:9090": 421, "127.0.0.1.evil.example": 421,
		"metrics.example": 200, "metrics.example:9090": 200,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics", nil)
		require.NoError(t, err)
		r.Host = host
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, want, response.StatusCode, host)
	}
}

// An internal address that others can reach answers to addresses, to names without a dot, which
// only the own network resolves, and to the configured names.
func TestInternalHostsOfTheNetwork(t *testing.T) {
	h := NewInternal(prometheus.NewRegistry(), []string{"metrics.example"})
	for host, want := range map[string]int{
		"10.0.0.7:9090": 200, "[fd00::7]:9090": 200, "weir:9090": 200, "localhost": 200, "metrics.example:9090": 200,
		"evil.example:9090": 421, "10.0.0.7.evil.example": 421, "weir.": 421, "": 421,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Host = host
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 9090})))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, host)
	}
}
