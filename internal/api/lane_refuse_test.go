package api

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/origin"
	"weir/internal/overload"
)

// crowd fills the places of an instance until the test or free ends it. Requests before may have
// their answers and not have left their places yet, so the places are added to what is there.
func (s *checkStack) crowd() (free func()) {
	s.deps.Metrics.inFlight.Add(DefaultMaxInFlight)
	return func() { s.deps.Metrics.inFlight.Add(-DefaultMaxInFlight) }
}

// Under overload, the lane refuses a request with the same answer as net/http, before it looks at
// the key or the body, and keeps the connection. Before, the first refusal passed the connection to
// net/http for good.
func TestLaneRefuses(t *testing.T) { overBoth(t, testLaneRefuses) }

func testLaneRefuses(t *testing.T, s *checkStack) {
	for _, path := range []string{"/v1/check", "/check"} {
		for _, id := range []string{"X-Request-Id: mine", ""} {
			var headers []string
			if id != "" {
				headers = append(headers, id)
			}
			request := strings.Replace(s.laneRequest(`{"subject":"full"}`, headers...), "/v1/check", path, 1)
			free := s.crowd()
			before := s.ordinary.Load()
			c := s.dial()
			c.send(request)
			got := c.receive()
			got.problem(503, codeOverloaded)
			require.Equal(t, before, s.ordinary.Load(), "the lane answered")
			require.Equal(t, decisionNone, got.header.Get(decisionHeader))
			require.Equal(t, "1", got.header.Get("Retry-After"))
			require.Contains(t, string(got.body), got.header.Get("X-Request-Id"))

			ordinary := s.dial()
			ordinary.send(strings.Replace(request, "\r\n", "\r\nX-Unknown: 1\r\n", 1))
			want := ordinary.receive()
			require.Equal(t, before+1, s.ordinary.Load())
			if id != "" {
				got.header.Del("Date")
				want.header.Del("Date")
				require.Equal(t, want.header, got.header)
				require.Equal(t, string(want.body), string(got.body))
			}

			c.send(strings.Replace(request, s.key, "nonsense", 1))
			c.receive().problem(503, codeOverloaded) // not 401: the key was not looked at
			free()
			c.send(request)
			c.receive().decision(200)
			require.Equal(t, before+1, s.ordinary.Load(), "the connection stays on the lane")
		}
	}
	require.Equal(t, int64(perSubject-4), s.remaining("full", "default"), "refused requests count nothing")
}

// A gateway is answered as the route says, also on the lane.
func TestLaneRefusesGateways(t *testing.T) { overBoth(t, testLaneRefusesGateways) }

func testLaneRefusesGateways(t *testing.T, s *checkStack) {
	open := edge()
	open.Fail = "open"
	s.addRoute(open)
	closed := edge()
	closed.Slug = "closed"
	s.addRoute(closed)
	c := s.dial()
	c.send(s.askRoute("GET", "/edge/orders/1", "X-User: ada"))
	require.Equal(t, decisionAllow, c.receive().header.Get(decisionHeader), "the routes are loaded")
	free := s.crowd()
	before := s.ordinary.Load()
	for _, ask := range []struct {
		path, method string
		status       int
	}{{"/edge/orders/1", "GET", 204}, {"/closed/orders/1", "GET", 503}, {"/closed/orders/1", "HEAD", 503}, {"", "GET", 503}} {
		c.method = ask.method
		request := s.askRoute(ask.method, ask.path, "X-User: ada", "X-Request-Id: mine")
		c.send(request)
		got := c.receive()
		require.Equal(t, ask.status, got.status, ask)
		require.Equal(t, decisionNone, got.header.Get(decisionHeader))
		require.Equal(t, before, s.ordinary.Load(), "the lane answered")

		ordinary := s.dial()
		ordinary.method = ask.method
		ordinary.send(strings.Replace(request, "\r\n", "\r\nTe: trailers\r\n", 1))
		want := ordinary.receive()
		before = s.ordinary.Load()
		got.header.Del("Date")
		want.header.Del("Date")
		require.Equal(t, want.header, got.header, ask)
		require.Equal(t, string(want.body), string(got.body))
	}
	free()
	c.method = ""
	c.send(s.askRoute("GET", "/edge/orders/1", "X-User: ada"))
	require.Equal(t, decisionAllow, c.receive().header.Get(decisionHeader))
}

// Health is answered under overload, on a connection that was refused before, too.
func TestHealthUnderOverload(t *testing.T) {
	s := newCheckStack(t)
	free := s.crowd()
	defer free()
	c := s.dial()
	c.send(s.laneRequest(`{"subject":"full"}`))
	c.receive().problem(503, codeOverloaded)
	for _, path := range []string{healthPath, readyPath} {
		c.send("GET " + path + " HTTP/1.1\r\nHost: weir\r\n\r\n")
		require.Equal(t, 200, c.receive().status)
	}
}

// If refusals use up the processors, a request that is refused waits for its answer: after it, a
// proxy would use the connection for requests of others. A listener that is closed does not wait.
func TestRefusedConnectionPauses(t *testing.T) {
	s := newCheckStack(t)
	bound := overload.New(DefaultMaxInFlight, 1, 50*time.Millisecond)
	for range 3 {
		bound.Adjust(overload.Signals{Runnable: time.Second, Refused: 1_000_000})
	}
	require.Positive(t, bound.Pause())
	s.deps.Metrics = NewMetrics(prometheusRegistry())
	s.serve(Config{Headers: bothStyles, Bound: bound}, s.deps)
	free := s.crowd()
	c := s.dial()
	start := time.Now()
	c.send(s.laneRequest(`{"subject":"full"}`))
	c.receive().problem(503, codeOverloaded)
	require.GreaterOrEqual(t, time.Since(start), bound.Pause())
	free()
	before := s.ordinary.Load()
	c.send(s.laneRequest(`{"subject":"full"}`))
	c.receive().decision(200)
	require.Equal(t, before, s.ordinary.Load())

	closed := make(chan struct{})
	close(closed)
	(&laneConn{closed: closed}).rest(time.Hour)
}

// The same is true of a connection that net/http reads, where a refusal takes as long as several on
// the lane.
func TestRefusedConnectionPausesOverNetHTTP(t *testing.T) {
	s := newCheckStack(t)
	bound := overload.New(DefaultMaxInFlight, 1, 50*time.Millisecond)
	for range 3 {
		bound.Adjust(overload.Signals{Runnable: time.Second, Refused: 1_000_000})
	}
	s.deps.Metrics = NewMetrics(prometheusRegistry())
	s.serve(Config{Headers: bothStyles, Bound: bound}, s.deps)
	free := s.crowd()
	c := s.dial()
	start := time.Now()
	c.send(s.laneRequest(`{"subject":"full"}`, "X-Unknown: 1"))
	c.receive().problem(503, codeOverloaded)
	require.GreaterOrEqual(t, time.Since(start), bound.Pause())
	free()
	c.send(s.laneRequest(`{"subject":"full"}`, "X-Unknown: 1"))
	c.receive().decision(200)
	require.EqualValues(t, netHTTPRefusals, bound.TakeRefused())
}

// An error over net/http pauses, too, while there are very many. Before, a client without
// an API key kept them from checks with 1600 streams of HTTP/2. Decisions do not pause.
func TestErrorsPause(t *testing.T) {
	s := newCheckStack(t)
	bound := overload.New(DefaultMaxInFlight, 1, 50*time.Millisecond)
	bound.Adjust(overload.Signals{Runnable: time.Second, Failed: 1_000_000})
	pause := bound.FailPause()
	require.Positive(t, pause)
	s.deps.Metrics = NewMetrics(prometheusRegistry())
	s.serve(Config{Headers: bothStyles, Bound: bound}, s.deps)
	c := s.dial()
	site, tenant := origin.Site("127.0.0.1"), s.actor.TenantID()
	for request, client := range map[string]string{
		"GET /v1/rules HTTP/1.1\r\nHost: weir\r\n\r\n":                                         site,
		"GET /nowhere HTTP/1.1\r\nHost: weir\r\n\r\n":                                          site,
		"POST /v1/check HTTP/1.1\r\nHost: weir\r\nX-Unknown: 1\r\nContent-Length: 2\r\n\r\n{}": site,
		s.laneRequest(`{"subject":""}`, "X-Unknown: 1"):                                        string(tenant[:]),
	} {
		bound.Fail(client, 1_000_000) // those with a few errors do not pause
		bound.TakeFailed()
		start := time.Now()
		c.send(request)
		require.GreaterOrEqual(t, c.receive().status, 400)
		require.GreaterOrEqual(t, time.Since(start), pause)
		require.EqualValues(t, netHTTPRefusals, bound.TakeFailed())
	}
	c.send(s.laneRequest(`{"subject":"full"}`, "X-Unknown: 1"))
	c.receive().decision(200)
	c.send(s.laneRequest(`{"subject":"full","cost":1000000}`, "X-Unknown: 1"))
	c.receive().decision(429)
	require.Zero(t, bound.TakeFailed())
	require.Zero(t, bound.TakeRefused(), "they say nothing about the bound")
}

// A tenant that has its share of the requests in flight is refused on the lane, too.
func TestLaneRefusesAboveTheShare(t *testing.T) {
	s := newCheckStack(t)
	registered := s.lane.server.Load()
	share := registered.capacity.of(s.actor.TenantID())
	share.serving.Add(DefaultMaxInFlight / 2)
	before := s.ordinary.Load()
	c := s.dial()
	c.send(s.laneRequest(`{"subject":"share"}`))
	c.receive().problem(503, codeOverloaded)
	c.send(s.askRoute("GET", "", "Weir-Subject: ada"))
	c.receive().problem(503, codeOverloaded)
	share.serving.Add(-DefaultMaxInFlight / 2)
	c.send(s.laneRequest(`{"subject":"share"}`))
	c.receive().decision(200)
	require.Equal(t, before, s.ordinary.Load())
}

// An answer that its client does not read uses no place of other clients. Before, as many
// connections as the bound could keep an instance from answering anybody for ten seconds.
func TestUnreadLaneAnswersUseNoPlaces(t *testing.T) {
	s := newCheckStack(t)
	capacity := s.lane.server.Load().capacity
	for _, refused := range []bool{false, true} {
		if refused {
			defer s.crowd()()
		}
		before := capacity.inFlight.Load()
		server, client := net.Pipe() // a write waits until all of it is read
		served := make(chan struct{})
		go func() {
			defer close(served)
			(&laneListener{lane: s.lane}).serve(&laneConn{Conn: server, inner: server, lane: s.lane})
		}()
		_, err := client.Write([]byte(s.laneRequest(`{"subject":"unread"}`)))
		require.NoError(t, err)
		_, err = client.Read(make([]byte, 1)) // the answer has begun
		require.NoError(t, err)
		require.Equal(t, before, capacity.inFlight.Load())
		require.NoError(t, client.Close())
		<-served
		require.Equal(t, before, capacity.inFlight.Load())
	}
}
