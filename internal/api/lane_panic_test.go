package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
)

// faults panics once at the stage that it is set to.
type faults struct {
	stage  atomic.Value
	client atomic.Value // the address of the client at whose connection it panics
}

// arm sets a fault of one connection. Other connections read and write at the same time.
func (f *faults) arm(stage string, client net.Conn) {
	f.client.Store(client.LocalAddr().String())
	f.stage.Store(stage)
}

func (f *faults) at(stage string) {
	if f.stage.CompareAndSwap(stage, "") {
		panic("a fault during " + stage)
	}
}

// now panics when authentication reads the clock: for a known key in the goroutine of the
// connection, for an unknown one in that of the lookup, which reads it a second time.
func (f *faults) now() time.Time {
	f.at("authentication")
	f.at("lookup")
	f.stage.CompareAndSwap("before lookup", "lookup")
	return time.Now()
}

func (f *faults) clock() time.Time {
	f.at("quota")
	return time.Now()
}

// faultySource is a PolicySource.
type faultySource struct {
	*tenants.Store
	faults *faults
}

func (s faultySource) LoadPolicy(ctx context.Context, tenant limit.TenantID) (check.PolicyData, error) {
	s.faults.at("policy")
	return s.Store.LoadPolicy(ctx, tenant)
}

type faultyEngine struct {
	engine.Engine
	faults *faults
}

func (e faultyEngine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	e.faults.at("check")
	e.Engine.Evaluate(ctx, calls...)
}

type faultyListener struct {
	net.Listener
	faults *faults
}

func (l faultyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &faultyConn{Conn: c, faults: l.faults}, err
}

type faultyConn struct {
	net.Conn
	faults *faults
}

func (c *faultyConn) at(stage string) {
	if c.faults.client.Load() == c.Conn.RemoteAddr().String() {
		c.faults.at(stage)
	}
}

func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.at("head")
	return n, err
}

func (c *faultyConn) Write(b []byte) (int, error) {
	c.at("answer")
	return c.Conn.Write(b)
}

func (c *faultyConn) SetDeadline(t time.Time) error {
	c.at("handover")
	return c.Conn.SetDeadline(t)
}

func (c *faultyConn) RemoteAddr() net.Addr {
	c.at("address")
	return c.Conn.RemoteAddr()
}

func (c *faultyConn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// faultStack is a stack with parts that panic on demand, and that serves two concurrent requests.
type faultStack struct {
	*checkStack
	faults    faults
	ordinarys *http.Server
	ended     chan error
}

func newFaultStack(t *testing.T, secure bool) *faultStack {
	s := &faultStack{checkStack: &checkStack{t: t, registry: prometheus.NewRegistry()}, ended: make(chan error, 1)}
	s.faults.stage.Store("")
	s.db = tenantstest.NewWith(t, tenants.Config{Now: s.faults.now})
	s.ready.Store(&Readiness{})
	s.prepare(t)
	client := testenv.RedisClient(t)
	s.deps = s.newDeps(t, engine.NewMemory(engine.MemoryOptions{}))
	s.deps.Checker = checktest.New(t, checktest.Options{
		Keys: check.NewKeys([16]byte{7}), Clock: s.faults.clock,
		Shared: faultyEngine{redisengine.New(client, redisengine.Options{Deadline: testenv.RedisTimeout}), &s.faults},
	}).Checker
	s.deps.Policies = check.NewPolicies(faultySource{s.db.Store, &s.faults}, check.NewKeys([16]byte{7}), s.deps.Logger,
		check.NewMetrics(prometheus.NewRegistry()))
	platform, err := s.db.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	quota := hourly("quota", check.QuotaResource, 1_000_000, "subject")
	_, err = s.db.Store.CreateRule(t.Context(), tenants.AsSystem(platform.ID, "test"), quota)
	require.NoError(t, err)
	s.deps.Quota = check.NewQuota(s.deps.Checker, s.deps.Policies, platform.ID)
	s.listen(secure)
	return s
}

func (s *faultStack) listen(secure bool) {
	s.lane = NewLane()
	handler := New(Config{Headers: bothStyles, Lane: s.lane, MaxInFlight: 2}, s.deps)
	s.ordinarys = NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ordinary.Add(1)
		handler.ServeHTTP(w, r)
	}), s.deps.Logger)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	inner = faultyListener{inner, &s.faults}
	s.secure = &secureSide{addr: inner.Addr()}
	listener := net.Listener(nil)
	if secure {
		certificate := httptest.NewTLSServer(nil)
		s.t.Cleanup(certificate.Close)
		s.secure.trust = clientTLS(certificate)
		s.ordinarys.TLSConfig = PrepareTLS(&tls.Config{
			Certificates: certificate.TLS.Certificates,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				s.faults.at("handshake")
				return nil, nil
			},
		})
		listener = s.lane.ListenTLS(inner, s.ordinarys.TLSConfig, s.ordinarys.Handler)
	} else {
		listener = s.lane.Listen(inner)
	}
	go func() { s.ended <- s.ordinarys.Serve(listener) }()
	s.t.Cleanup(func() { _ = s.ordinarys.Close() })
}

// panicked asserts the total number of panics, and that the last one is logged and holds no slot.
func (s *faultStack) panicked(panics int, logged string) {
	s.t.Helper()
	require.EqualValues(s.t, panics, testutil.ToFloat64(s.deps.Metrics.panics))
	require.Empty(s.t, s.faults.stage.Load(), "nothing panicked")
	require.Contains(s.t, s.log.String(), logged)
	require.Contains(s.t, s.log.String(), `"stack":"goroutine `)
	require.NotContains(s.t, s.log.String(), s.key)
	// An earlier request may have its answer already, and not have left its slot yet.
	require.Eventually(s.t, func() bool { return s.deps.Metrics.inFlight.Load() == 0 }, time.Minute, 10*time.Millisecond,
		"the panic leaked an in-flight slot")
}

// shutDown asserts that the instance can shut down.
func (s *faultStack) shutDown() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(s.t, s.ordinarys.Shutdown(ctx))
	require.NoError(s.t, s.lane.Shutdown(ctx))
	require.ErrorIs(s.t, <-s.ended, http.ErrServerClosed)
}

// fault asserts that the answer is the 500 of a panic. With path, it must name the request's path.
func (a answer) fault(path bool) {
	a.t.Helper()
	require.Equal(a.t, 500, a.status)
	require.Equal(a.t, "application/problem+json", a.header.Get("Content-Type"))
	var p Problem
	require.NoError(a.t, json.Unmarshal(a.body, &p))
	require.Equal(a.t, codeInternal, p.Code)
	require.Equal(a.t, a.header.Get("X-Request-Id"), p.RequestID)
	if path {
		require.Equal(a.t, "/v1/check", p.Instance)
	}
}

// overPlainAndTLS runs a test on plain connections and on TLS connections.
func overPlainAndTLS(t *testing.T, test func(t *testing.T, secure bool)) {
	t.Run("HTTP", func(t *testing.T) { test(t, false) })
	t.Run("TLS", func(t *testing.T) { test(t, true) })
}

// A panic closes the connection of one request. The process continues, and other connections are
// served.
func TestLanePanics(t *testing.T) { overPlainAndTLS(t, testLanePanics) }

func testLanePanics(t *testing.T, secure bool) {
	s := newFaultStack(t, secure)
	title := problemTitles[codeMalformedJSON]
	t.Cleanup(func() { problemTitles[codeMalformedJSON] = title })
	good := s.laneRequest(`{"subject":"a","resource":"bulk"}`)
	beside := s.dial()
	beside.send(good)
	beside.receive().decision(200)
	panics := 0
	for stage, request := range map[string]string{
		"head":           good,
		"authentication": good,
		"before lookup":  strings.Replace(good, s.key, tenants.NewKey(tenants.TenantKey).Secret(), 1),
		"decoding":       s.laneRequest(`{"subject"`),
		"policy":         good,
		"quota":          good,
		"check":          good,
	} {
		t.Run(stage, func(t *testing.T) {
			// More panics than there are slots for requests in flight and for policy loads.
			for range 4 {
				c := s.dial()
				c.t = t
				c.send(good)
				c.receive().decision(200)
				logged := "a fault during " + stage
				switch stage {
				case "before lookup":
					logged = "a fault during lookup"
				case "decoding":
					logged = "problem code without a title"
				case "policy":
					s.deps.Policies.Gone(s.actor.TenantID())
				}
				if stage == "decoding" { // which has nothing else that could fail
					delete(problemTitles, codeMalformedJSON)
				} else {
					s.faults.arm(stage, c)
				}
				// The second request is not read. The answer must still reach the client.
				c.send(request + good)
				a := c.receive()
				problemTitles[codeMalformedJSON] = title
				panics++
				a.fault(stage != "head")
				require.NotContains(t, string(a.body), "fault during")
				require.Equal(t, "close", a.header.Get("Connection"))
				require.NotEmpty(t, a.header.Get("Date"))
				require.Contains(t, s.log.String(), a.header.Get("X-Request-Id"))
				c.closed()
				s.panicked(panics, logged)
				beside.send(good)
				beside.receive().decision(200)
			}
		})
	}
	require.Zero(t, s.ordinary.Load(), "a request that panicked must not be handed over")
	s.shutDown()
}

// The answer and the log carry the request ID that the client sent.
func TestLanePanicsKeepTheRequestID(t *testing.T) {
	s := newFaultStack(t, false)
	s.faults.stage.Store("authentication")
	c := s.dial()
	c.send(s.laneRequest(`{"subject":"a"}`, "X-Request-Id: the-id"))
	a := c.receive()
	p := a.problem(500, codeInternal)
	require.Equal(t, "/v1/check", p.Instance)
	require.Equal(t, "the-id", p.RequestID)
	require.Contains(t, s.log.String(), `"request_id":"the-id"`)
}

// Before the TLS handshake is complete and after an answer has begun, no 500 can be sent. The
// connection is closed.
func TestLanePanicsWithoutAnswer(t *testing.T) { overPlainAndTLS(t, testLanePanicsWithoutAnswer) }

func testLanePanicsWithoutAnswer(t *testing.T, secure bool) {
	s := newFaultStack(t, secure)
	good := s.laneRequest(`{"subject":"a","resource":"bulk"}`)
	panics := 0
	stages := map[string]string{"answer": good}
	if secure {
		stages["handshake"] = ""
	}
	for stage, request := range stages {
		t.Run(stage, func(t *testing.T) {
			c := s.dial()
			c.t = t
			if request != "" {
				c.send(good)
				c.receive().decision(200)
			}
			s.faults.arm(stage, c)
			if secure && request == "" {
				require.Error(t, c.Conn.(*tls.Conn).Handshake())
			} else {
				c.send(request)
			}
			c.closed()
			panics++
			s.panicked(panics, "a fault during "+stage)
			beside := s.dial()
			beside.send(good)
			beside.receive().decision(200)
		})
	}
	s.shutDown()
}

// If passing a connection to net/http panics, the lane answers 500.
func TestLanePanicsAtTheHandover(t *testing.T) { overPlainAndTLS(t, testLanePanicsAtTheHandover) }

func testLanePanicsAtTheHandover(t *testing.T, secure bool) {
	s := newFaultStack(t, secure)
	c := s.dial()
	s.faults.arm("handover", c)
	c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	c.receive().fault(false)
	c.closed()
	s.panicked(1, "a fault during handover")
	c = s.dial()
	c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	require.Equal(t, 200, c.receive().status)
	s.shutDown()
}

// Keys and policies are loaded in separate goroutines, in which net/http recovers nothing.
func TestPanicsWhileLoadingForSeveralRequests(t *testing.T) {
	s := newFaultStack(t, false)
	request := s.laneRequest(`{"subject":"a","resource":"bulk"}`, "X-Unknown: 1")
	for range 4 {
		for stage, request := range map[string]string{
			"before lookup": strings.Replace(request, s.key, tenants.NewKey(tenants.TenantKey).Secret(), 1),
			"policy":        request,
		} {
			s.deps.Policies.Gone(s.actor.TenantID())
			s.faults.stage.Store(stage)
			c := s.dial()
			c.send(request)
			c.receive().problem(500, codeInternal)
		}
	}
	s.panicked(8, "a fault during policy")
	c := s.dial()
	c.send(request)
	c.receive().decision(200)
	require.EqualValues(t, 9, s.ordinary.Load())
	s.shutDown()
}

// If the quota cannot be loaded, no check is denied.
func TestPanicWhileLoadingTheQuota(t *testing.T) {
	s := newFaultStack(t, false)
	require.NoError(t, s.deps.Policies.Preload(t.Context(), s.actor.TenantID()))
	s.faults.stage.Store("policy")
	c := s.dial()
	c.send(s.laneRequest(`{"subject":"a","resource":"bulk"}`))
	c.receive().decision(200)
	require.Empty(t, s.faults.stage.Load())
	require.Zero(t, testutil.ToFloat64(s.deps.Metrics.panics))
}
