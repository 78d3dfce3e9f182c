package api

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/once"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
)

// checkStack is the API as it runs: with a real database for keys and policies, a real Redis for
// counters, and a real listener with the limits of the public one.
type checkStack struct {
	t        *testing.T
	db       *tenantstest.Database
	actor    tenants.Actor // of the tenant that asks, as system
	key      string        // its key with all scopes
	other    string        // another tenant's
	log      lockedBuffer
	registry *prometheus.Registry
	deps     Deps
	contract *adminStack // holds answers against the OpenAPI document
	ready    atomic.Pointer[Readiness]
	server   *httptest.Server
	lane     *Lane
	handler  http.Handler
	secure   *secureSide  // what dial connects to; nil: server
	ordinary atomic.Int64 // requests that the lane did not answer

	observers []check.Observer // of the checker
}

// hourly returns a rule whose window begins with the first check, so that it does not end during a
// test.
func hourly(slug, resource string, lim int64, by ...string) limit.Rule {
	return limit.Rule{
		Slug: slug, Name: slug, Resource: resource, Algorithm: limit.FixedWindowFirstHit, Limit: lim,
		Window: limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}, By: by,
	}
}

const perSubject = 5 // the limit of the rule on "default" with the plan free

func testRules() []limit.Rule {
	shadow := hourly("tried-out", "shadow", 1, "subject")
	shadow.Mode = limit.Shadow
	off := hourly("switched-off", "*", 1, "subject")
	off.Mode = limit.Off
	queue := hourly("queue", "queue", 1, "subject")
	queue.Algorithm, queue.Burst = limit.LeakyBucketQueue, 3
	warned := hourly("warned", "warned", 10, "subject")
	warned.WarnAt = limit.PortionOrNone(new(0.8))
	paid := hourly("paid", "paid", 5, "subject")
	paid.Overage = limit.OverageAllow
	return []limit.Rule{
		warned, paid,
		hourly("per-subject", "default", 100, "subject"),
		hourly("orders", "orders:*", 3, "subject", "resource"),
		hourly("bulk", "bulk", 1_000_000, "subject"),
		hourly("by-ip", "ip", 3, "attributes.ip"),
		hourly("one", "one", 1, "subject"),
		hourly("costly", "costly", 10, "subject"),
		shadow, off, queue,
	}
}

// newCheckStack also runs the test in parallel with others. It has its own database, and no other
// test has its tenants, which separate the counters in the shared Redis.
func newCheckStack(t *testing.T) *checkStack {
	t.Helper()
	t.Parallel()
	s := &checkStack{t: t, db: tenantstest.New(t), registry: prometheus.NewRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(t)
	s.deps = s.redisDeps(t, 20*time.Second)
	s.serve(Config{Headers: bothStyles}, s.deps)
	return s
}

// redisDeps returns the parts of one instance, with its own Redis client. A repeat of an idempotent
// check waits for the first request for up to wait.
func (s *checkStack) redisDeps(t testing.TB, wait time.Duration) Deps {
	t.Helper()
	client := testenv.RedisClient(t)
	// The timeout is long for slow test machines. The tests of the engine test timeouts.
	deps := s.newDeps(t, redisengine.New(client, redisengine.Options{Deadline: testenv.RedisTimeout}))
	deps.Once = once.New(once.Options{Client: client, Timeout: testenv.RedisTimeout, Wait: wait})
	return deps
}

// prepare writes the configuration of the tests.
func (s *checkStack) prepare(t testing.TB) {
	t.Helper()
	ctx, store := t.Context(), s.db.Store
	operator := tenants.AsOperator("test")
	tenant, _, key, err := store.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "acme", Name: "Acme"})
	require.NoError(t, err)
	other, _, otherKey, err := store.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "other", Name: "Other"})
	require.NoError(t, err)
	s.actor, s.key, s.other = tenants.AsSystem(tenant.ID, "test"), key.Secret(), otherKey.Secret()
	for _, r := range testRules() {
		_, err := store.CreateRule(ctx, s.actor, r)
		require.NoError(t, err)
	}
	for _, p := range []tenants.Plan{
		{Slug: "free", Name: "Free", Default: true, Limits: map[string]limit.Limit{"per-subject": {Limit: perSubject}}},
		{Slug: "pro", Name: "Pro", Limits: map[string]limit.Limit{"per-subject": {Limit: 50}}},
		{Slug: "boundless", Name: "Boundless", Limits: map[string]limit.Limit{"per-subject": {Unlimited: true}}},
	} {
		_, err := store.CreatePlan(ctx, s.actor, p)
		require.NoError(t, err)
	}
	_, err = store.CreatePlan(ctx, tenants.AsSystem(other.ID, "test"), tenants.Plan{Slug: "theirs", Name: "Theirs", Default: true})
	require.NoError(t, err)
	for _, subject := range []tenants.Subject{
		{Subject: "blocked", State: check.Blocked}, {Subject: "exempt", State: check.Exempt}, {Subject: "paying", Plan: "pro"},
	} {
		_, _, err := store.PutSubject(ctx, s.actor, subject, tenants.Match{})
		require.NoError(t, err)
	}
}

func (s *checkStack) newDeps(tb testing.TB, eng engine.Engine) Deps {
	logger := slog.New(slog.NewJSONHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	keys := check.NewKeys([16]byte{7})
	parts := checktest.New(tb, checktest.Options{Keys: keys, Shared: eng, Registry: s.registry, Observers: s.observers})
	return Deps{
		Store: s.db.Store, Authenticator: tenants.NewAuthenticator(s.db.Store),
		Policies: check.NewPolicies(s.db.Store, keys, logger, parts.Metrics), Checker: parts.Checker, Instances: parts.Peers.Count,
		Logger: logger, Metrics: NewMetrics(s.registry), Readiness: func() Readiness { return *s.ready.Load() },
	}
}

// serve starts a server with a lane, for the calls that follow.
func (s *checkStack) serve(cfg Config, deps Deps) {
	cfg.Lane = NewLane()
	s.server = httptest.NewUnstartedServer(nil)
	handler := New(cfg, deps)
	s.lane, s.handler = cfg.Lane, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ordinary.Add(1)
		handler.ServeHTTP(w, r)
	})
	s.server.Config = NewServer(cfg.Proxies.Handler(s.handler), deps.Logger)
	s.server.Listener = cfg.Lane.Listen(s.server.Listener)
	s.server.Start()
	s.t.Cleanup(s.server.Close)
	s.contract = &adminStack{t: s.t, url: s.server.URL, doc: loadDocument(s.t)}
}

// post sends a body unchanged, with the stack's key, and compares the answer with the description
// of the API.
func (s *checkStack) post(path, body string, headers ...header) answer {
	s.t.Helper()
	return s.contract.call(s.key, http.MethodPost, path, body, headers...)
}

func (s *checkStack) check(body string, headers ...header) answer {
	s.t.Helper()
	return s.post("/v1/check", body, headers...)
}

// decision returns the decoded answer to a check.
func (a answer) decision(status int) CheckAnswer {
	a.t.Helper()
	require.Equal(a.t, status, a.status, "%s", a.body)
	require.Equal(a.t, "application/json", a.header.Get("Content-Type"))
	require.Equal(a.t, "no-store", a.header.Get("Cache-Control"))
	var d CheckAnswer
	require.NoError(a.t, json.Unmarshal(a.body, &d), "%s", a.body)
	return d
}

// remaining returns what remains for a subject on a resource, without consuming.
func (s *checkStack) remaining(subject, resource string) int64 {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"subject": subject, "resource": resource, "cost": 0})
	require.NoError(s.t, err)
	d := s.check(string(body)).decision(200)
	require.NotNil(s.t, d.Remaining, "no rule limits %s on %s", subject, resource)
	return *d.Remaining
}

// untouched asserts that nothing was counted for a subject on the default resource.
func (s *checkStack) untouched(subject string) {
	s.t.Helper()
	require.Equal(s.t, int64(perSubject), s.remaining(subject, "default"), "a refused request has consumed of %s's quota", subject)
}

// conn is a connection for arbitrary bytes.
type conn struct {
	net.Conn
	t      *testing.T
	r      *bufio.Reader
	method string // of the request that receive reads the answer to; "": one whose answer has a body
}

func (s *checkStack) dial() *conn {
	s.t.Helper()
	if s.secure != nil {
		return dialTo(s.t, s.secure.addr, s.secure.trust)
	}
	return dialTo(s.t, s.server.Listener.Addr(), nil)
}

// dialTo connects to an address, with TLS if trust is not nil.
func dialTo(t *testing.T, addr net.Addr, trust *tls.Config) *conn {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	if trust != nil {
		c = tls.Client(c, trust)
	}
	return newConn(t, c)
}

func newConn(t *testing.T, c net.Conn) *conn { return &conn{Conn: c, t: t, r: bufio.NewReader(c)} }

func (c *conn) send(text string) {
	c.t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(c.t, err)
}

// receive reads one answer.
func (c *conn) receive() answer {
	c.t.Helper()
	var request *http.Request
	if c.method != "" {
		request = &http.Request{Method: c.method}
	}
	response, err := http.ReadResponse(c.r, request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	if response.Close { // the header itself is taken out
		response.Header.Set("Connection", "close")
	}
	return answer{t: c.t, status: response.StatusCode, header: response.Header, body: body}
}

// closed asserts that the server has closed the connection.
func (c *conn) closed() {
	c.t.Helper()
	_, err := c.r.ReadByte()
	require.Error(c.t, err)
	var timeout net.Error
	require.False(c.t, asTimeout(err, &timeout), "the connection was left open")
}

func asTimeout(err error, to *net.Error) bool {
	e, ok := err.(net.Error) // of a plain connection
	if ok {
		*to = e
	}
	return ok && e.Timeout()
}

// head returns the head of a check's request, without its Content-Length.
func (s *checkStack) head(lines ...string) string {
	return "POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer " + s.key + "\r\nContent-Type: application/json\r\n" +
		strings.Join(append(lines, "", ""), "\r\n")
}
