package weir

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

type guardCase struct {
	Name       string       `json:"name"`
	Why        string       `json:"why"`
	Options    suiteOptions `json:"options"`
	Middleware struct {
		Subject        string   `json:"subject"`
		Resource       string   `json:"resource"`
		Cost           int64    `json:"cost"`
		Skip           []string `json:"skip"`
		OnDeniedStatus int      `json:"on_denied_status"`
		OnMisuseStatus int      `json:"on_misuse_status"`
	} `json:"middleware"`
	Server         []action          `json:"server"`
	HandlerHeaders map[string]string `json:"handler_headers"`
	Request        struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
	} `json:"request"`
	Expect struct {
		Status        int                `json:"status"`
		Headers       map[string]*string `json:"headers"`
		Body          any                `json:"body"`
		HandlerCalled *bool              `json:"handler_called"`
		Requests      *int               `json:"requests"`
		Request       *requestPattern    `json:"request"`
		SleptMS       *[]int64           `json:"slept_ms"`
		ErrorsLogged  *int               `json:"errors_logged"`
	} `json:"expect"`
}

func TestSuiteMiddleware(t *testing.T) {
	fixtures := readFixtures(t)
	var table struct {
		Cases []guardCase `json:"cases"`
	}
	readSuite(t, "middleware.json", &table)
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			playGuard(t, fixtures, &c)
		})
	}
}

func playGuard(t *testing.T, fixtures map[string]fixture, c *guardCase) {
	p := newPlay(t, fixtures, suiteCase{Options: c.Options, Server: c.Server})
	logged := &countingHandler{}
	guard := c.guard(p.client, slog.New(logged))
	called := false
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		called = true
		for name, value := range c.HandlerHeaders {
			w.Header().Set(name, value)
		}
		_, _ = io.WriteString(w, "ok")
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", handler)
	mux.Handle("GET /healthz", handler)
	r := httptest.NewRequest(c.Request.Method, c.Request.Path, nil)
	for name, value := range c.Request.Headers {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)

	e := &c.Expect
	if w.Code != e.Status {
		t.Errorf("status %d, want %d: %s", w.Code, e.Status, w.Body)
	}
	for name, value := range e.Headers {
		values := w.Result().Header.Values(name)
		if value == nil && len(values) > 0 || value != nil && !slices.Equal(values, []string{*value}) {
			t.Errorf("header %s is %q", name, values)
		}
	}
	compareBody(t, e.Body, w.Body.String())
	if e.HandlerCalled != nil && called != *e.HandlerCalled {
		t.Errorf("the handler was called: %t", called)
	}
	if e.SleptMS != nil && !slices.Equal(p.clock.slept(), *e.SleptMS) {
		t.Errorf("slept %v ms", p.clock.slept())
	}
	if e.ErrorsLogged != nil && logged.count(slog.LevelError) != *e.ErrorsLogged {
		t.Errorf("%d errors logged, want %d", logged.count(slog.LevelError), *e.ErrorsLogged)
	}
	p.compare("request", &expectation{Requests: e.Requests, Request: e.Request}, nil)
	if n := p.server.Unmet(); n > 0 {
		t.Errorf("%d actions of the script met no request", n)
	}
}

func (c *guardCase) guard(client *Client, logger *slog.Logger) Guard {
	m := &c.Middleware
	g := Guard{Checker: client, Logger: logger}
	name := strings.TrimPrefix(m.Subject, "header:")
	g.Subject = func(r *http.Request) string { return r.Header.Get(name) }
	if m.Resource != "" {
		g.Resource = func(*http.Request) string { return m.Resource }
	}
	if m.Cost != 0 {
		g.Cost = func(*http.Request) int64 { return m.Cost }
	}
	if m.Skip != nil {
		g.Skip = func(r *http.Request) bool { return slices.Contains(m.Skip, r.URL.Path) }
	}
	if m.OnDeniedStatus != 0 {
		g.OnDenied = func(w http.ResponseWriter, _ *http.Request, d Decision) {
			if d.Allowed {
				panic("OnDenied was called with an allowed decision")
			}
			w.WriteHeader(m.OnDeniedStatus)
			_, _ = io.WriteString(w, "custom")
		}
	}
	if m.OnMisuseStatus != 0 {
		g.OnMisuse = func(w http.ResponseWriter, _ *http.Request, err error) {
			if err == nil {
				panic("OnMisuse was called without an error")
			}
			w.WriteHeader(m.OnMisuseStatus)
			_, _ = io.WriteString(w, "custom misuse")
		}
	}
	return g
}

func compareBody(t *testing.T, want any, got string) {
	t.Helper()
	switch want := want.(type) {
	case nil:
	case string:
		if got != want {
			t.Errorf("the body is %q, want %q", got, want)
		}
	default:
		var document any
		must(t, json.Unmarshal([]byte(got), &document))
		subset(t, "body", want, document)
	}
}

// With two limiters, the customer gets the headers of the stricter one.
func TestTwoGuardsLeaveTheStricterHeaders(t *testing.T) {
	p := newPlay(t, readFixtures(t), suiteCase{Server: []action{
		{Use: "delayed", Body: json.RawMessage(`{"delay_ms": 0}`)}, {Use: "allowed"},
	}})
	guard := Guard{Checker: p.client, Subject: func(*http.Request) string { return "user_42" }}
	inner := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w := httptest.NewRecorder()
	guard.Handler(inner).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if left := w.Header().Get("X-RateLimit-Remaining"); left != "3" {
		t.Errorf("X-RateLimit-Remaining is %s: 3 of 5 are fewer than 99 of 100", left)
	}
	if draft := w.Header().Get("RateLimit"); draft != "" {
		t.Errorf("RateLimit is %s, of the other limiter", draft)
	}
}

// Handlers send headers in many ways; no answer may mix the headers of two limiters.
func TestGuardSettlesHeadersBeforeTheyAreSent(t *testing.T) {
	laxer := func(h http.Header) { h.Add("X-RateLimit-Limit", "1000"); h.Add("X-RateLimit-Remaining", "1000") }
	for name, handle := range map[string]http.HandlerFunc{
		"nothing":     func(w http.ResponseWriter, _ *http.Request) { laxer(w.Header()) },
		"WriteHeader": func(w http.ResponseWriter, _ *http.Request) { laxer(w.Header()); w.WriteHeader(http.StatusCreated) },
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			laxer(w.Header())
			_, _ = io.WriteString(w, "ok")
		},
		"ReadFrom": func(w http.ResponseWriter, _ *http.Request) {
			laxer(w.Header())
			_, _ = io.Copy(w, strings.NewReader("ok"))
		},
		"Flush": func(w http.ResponseWriter, _ *http.Request) { laxer(w.Header()); w.(http.Flusher).Flush() },
		"controller": func(w http.ResponseWriter, _ *http.Request) {
			laxer(w.Header())
			_ = http.NewResponseController(w).Flush()
		},
		"Hijack": func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 99\r\nContent-Length: 0\r\n\r\n")
				_ = connection.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, readFixtures(t), suiteCase{Server: []action{{Use: "allowed"}}})
			guard := Guard{Checker: p.client, Subject: func(*http.Request) string { return "user_42" }}
			server := httptest.NewServer(guard.Handler(handle))
			defer server.Close()
			response, err := server.Client().Get(server.URL)
			must(t, err)
			defer func() { _ = response.Body.Close() }()
			for header, want := range map[string]string{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "99"} {
				if got := response.Header.Values(header); !slices.Equal(got, []string{want}) {
					t.Errorf("%s is %q, want %s alone", header, got, want)
				}
			}
		})
	}
}

// A handler must not be offered what the server cannot do.
func TestGuardOffersWhatTheServerCan(t *testing.T) {
	p := newPlay(t, readFixtures(t), suiteCase{Server: []action{{Use: "allowed"}}})
	guard := Guard{Checker: p.client, Subject: func(*http.Request) string { return "user_42" }}
	guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, hijacks := w.(http.Hijacker); hijacks {
			t.Error("a recorder cannot be hijacked")
		}
		if _, flushes := w.(http.Flusher); !flushes {
			t.Error("a recorder can be flushed")
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
}

// The path of a request must not become a resource, because each new path would be a new counter.
func TestRouteIsNeverThePath(t *testing.T) {
	r := httptest.NewRequest("GET", "/orders/7", nil)
	if got := Route(r); got != "GET" {
		t.Errorf("before routing: %q", got)
	}
	for pattern, want := range map[string]string{"GET /orders/{id}": "GET /orders/{id}", "/orders/": "GET /orders/", "example.com/orders/{id}": "GET /orders/{id}"} {
		r.Pattern = pattern
		if got := Route(r); got != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
	for method, want := range map[string]string{"HEAD": "GET /orders/{id}", "PATCH": "PATCH /orders/{id}", "get": "OTHER /orders/{id}", "FOO1": "OTHER /orders/{id}"} {
		r := httptest.NewRequest(method, "/orders/7", nil)
		r.Pattern = "/orders/{id}"
		if got := Route(r); got != want {
			t.Errorf("%s: %q, want %q", method, got, want)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(http.ResponseWriter, *http.Request) {})
	if got := RouteOf(mux)(httptest.NewRequest("HEAD", "/orders/7", nil)); got != "GET /orders/{id}" {
		t.Errorf("HEAD of a mux: %q", got)
	}
	if got := RouteOf(mux)(r); got != "GET /orders/{id}" {
		t.Errorf("of a mux: %q", got)
	}
	if got := RouteOf(mux)(httptest.NewRequest("GET", "/elsewhere", nil)); got != "GET" {
		t.Errorf("of a path without a route: %q", got)
	}
}

func TestGuardAsksWithPlanAndAttributes(t *testing.T) {
	p := newPlay(t, readFixtures(t), suiteCase{Server: []action{{Use: "allowed"}}})
	guard := Guard{Checker: p.client, Subject: func(*http.Request) string { return "user_42" },
		Plan:       func(*http.Request) string { return "pro" },
		Attributes: func(*http.Request) map[string]string { return map[string]string{"region": "eu"} }}
	guard.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	p.compareRequest("request", &requestPattern{Body: json.RawMessage(`{"subject": "user_42", "resource": "GET", "plan": "pro", "attributes": {"region": "eu"}}`)}, 0)
}

// An outgoing request waits until it is allowed, and is not sent if the wait would be too long.
func TestTransport(t *testing.T) {
	p := newPlay(t, readFixtures(t), suiteCase{Server: []action{
		{Use: "allowed"}, {Use: "denied_shortly"}, {Use: "allowed"}, {Use: "delayed"}, {Use: "denied"}, {Use: "unknown_key"},
	}, Options: suiteOptions{DenialMemory: new(bool)}})
	p.clock.now = time.Now() // the deadline of the wait uses the real time
	sent := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent++ }))
	defer upstream.Close()
	transport := &Transport{Checker: p.client, Base: upstream.Client().Transport}
	caller := &http.Client{Transport: transport}
	post := func() error {
		response, err := caller.Post(upstream.URL, "text/plain", strings.NewReader("hello"))
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	for i := range 3 { // allowed; denied and allowed 300 ms later; allowed after a delay
		must(t, post())
		if sent != i+1 {
			t.Fatalf("%d requests were sent, want %d", sent, i+1)
		}
	}
	if !slices.Equal(p.clock.slept(), []int64{300, 998}) {
		t.Errorf("slept %v ms", p.clock.slept())
	}
	host := strings.TrimPrefix(upstream.URL, "http://")
	body, _ := json.Marshal(map[string]string{"subject": host, "resource": "POST " + host})
	p.compareRequest("defaults", &requestPattern{Body: body}, 0)

	transport.MaxWait = -1
	transport.Subject = func(*http.Request) string { return "upstream" }
	transport.Resource = func(*http.Request) string { return "calls" }
	transport.Cost = func(*http.Request) int64 { return 3 }
	var denied *DeniedError
	if err := post(); !errors.As(err, &denied) || denied.Decision.Allowed {
		t.Errorf("denied: %v", err)
	}
	p.compareRequest("own values", &requestPattern{Body: json.RawMessage(`{"subject": "upstream", "resource": "calls", "cost": 3}`)}, 0)
	var misuse *MisuseError
	if err := post(); !errors.As(err, &misuse) || misuse.Status != http.StatusUnauthorized {
		t.Errorf("misuse: %v", err)
	}
	if sent != 3 {
		t.Errorf("%d requests were sent, want 3", sent)
	}
}
