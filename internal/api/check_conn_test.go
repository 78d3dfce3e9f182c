package api

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A body of the maximum size is read. A body with one byte more is refused, and the connection is
// closed.
func TestBodySizes(t *testing.T) {
	s := newCheckStack(t)
	full := `{"subject":"full"}` + strings.Repeat(" ", maxCheckBody)
	s.check(full[:maxCheckBody]).decision(200)

	c := s.dial()
	c.send(s.head("Content-Length: " + itoa(maxCheckBody+1)))
	a := c.receive() // before a byte of the body was sent
	a.problem(413, "BODY_TOO_LARGE")
	require.Equal(t, "close", a.header.Get("Connection"))
	c.closed()

	c = s.dial()
	c.send(s.head("Content-Length: "+itoa(1<<30), "Expect: 100-continue"))
	c.receive().problem(413, "BODY_TOO_LARGE")
	c.closed()

	// Endless chunks: the server must stop reading.
	c = s.dial()
	c.send(s.head("Transfer-Encoding: chunked"))
	chunk := "1000\r\n" + strings.Repeat(" ", 0x1000) + "\r\n"
	for range maxCheckBody/0x1000 + 1 {
		c.send(chunk)
	}
	c.receive().problem(413, "BODY_TOO_LARGE")
	c.closed()

	c = s.dial()
	c.send(s.head("Transfer-Encoding: chunked") + "f\r\n{\"subject\":\"c\"}\r\n0\r\n\r\n")
	c.receive().decision(200)
	require.Equal(t, int64(perSubject-1), s.remaining("full", "default"))
}

// A client that reads only after it has sent its whole body still gets the answer that it was too
// large.
func TestAnswerAfterALargeBody(t *testing.T) {
	s := newCheckStack(t)
	c := s.dial()
	require.NoError(t, c.Conn.(*net.TCPConn).SetWriteBuffer(4096))
	const size = 1 << 20 // more than the buffers of both sides hold before the server reads
	c.send(s.head("Content-Length: " + itoa(size)))
	c.send(strings.Repeat(" ", size))
	c.receive().problem(413, "BODY_TOO_LARGE")
	c.closed()
}

// A body whose length differs from the declared one is refused.
func TestBodyLengths(t *testing.T) {
	s := newCheckStack(t)
	// Too short, and the client has disconnected.
	c := s.dial()
	c.send(s.head("Content-Length: 100") + `{"subject":"a"}`)
	require.NoError(t, c.Conn.(*net.TCPConn).CloseWrite())
	a := c.receive()
	a.problem(400, "MALFORMED_JSON")
	require.Equal(t, "close", a.header.Get("Connection"))
	c.closed()

	// Too long: the rest is parsed as a request, and is invalid.
	c = s.dial()
	c.send(s.head("Content-Length: 14") + `{"subject":"a"}` + "\r\n\r\n")
	c.receive().problem(400, "MALFORMED_JSON")
	require.Equal(t, 400, c.receive().status)
	c.closed()

	// Both kinds of length, two lengths, an invalid chunk: request smuggling.
	for _, lines := range [][]string{
		{"Content-Length: 15", "Content-Length: 16"}, {"Content-Length: -1"}, {"Content-Length: +15"}, {"Transfer-Encoding: gzip, chunked"},
	} {
		c = s.dial()
		c.send(s.head(lines...) + `{"subject":"a"}`)
		require.GreaterOrEqual(t, c.receive().status, 400, lines)
		c.closed()
	}
	c = s.dial()
	c.send(s.head("Transfer-Encoding: chunked") + "zz\r\n{\"subject\":\"a\"}\r\n0\r\n\r\n")
	c.receive().problem(400, "MALFORMED_JSON")
	c.closed()
	s.untouched("a")
}

// Ten thousand pipelined requests on one connection are answered in order, and each consumes its
// own units.
func TestPipelining(t *testing.T) {
	s := newCheckStack(t)
	s.registry = prometheusRegistry()
	s.serve(Config{Headers: bothStyles}, s.newDeps(t, memoryEngine()))
	const n = 10_000
	c := s.dial()
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Minute))) // a machine may be slow; a missing answer is still found
	go func() {
		var b strings.Builder
		for i := range n {
			body := fmt.Sprintf(`{"subject":"p","resource":"bulk","cost":%d}`, i%3)
			b.WriteString(s.head("Content-Length: "+itoa(int64(len(body))), fmt.Sprintf("X-Request-Id: r%d", i)) + body)
		}
		_, _ = io.WriteString(c, b.String()) // a failure shows as an answer that is missing
	}()
	used := int64(0)
	for i := range n {
		a := c.receive()
		require.Equal(t, fmt.Sprintf("r%d", i), a.header.Get("X-Request-Id"))
		used += int64(i % 3)
		if i%1000 == 0 {
			require.Equal(t, 1_000_000-used, *a.decision(200).Remaining)
		}
	}
	require.Equal(t, 1_000_000-used, s.remaining("p", "bulk"))
}

// A client whose body is late gets an answer, although the time for the answer began with that for
// the body.
func TestSlowBodies(t *testing.T) {
	s := newCheckStack(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config = NewServer(New(Config{Headers: bothStyles}, s.deps), s.deps.Logger)
	server.Config.ReadTimeout, server.Config.WriteTimeout = 2*time.Second, 2*time.Second
	var conns []*conn
	for _, path := range []string{"/v1/check", "/v1/simulate"} {
		c := dialTo(t, server.Listener.Addr(), nil)
		c.send(strings.Replace(s.head("Content-Length: 15"), "/v1/check", path, 1) + `{"subject":`)
		conns = append(conns, c)
	}
	server.Start() // only now: on a busy machine the time could be over before the header was sent
	t.Cleanup(server.Close)
	for _, c := range conns {
		a := c.receive()
		a.problem(408, "REQUEST_TIMEOUT")
		require.Equal(t, "close", a.header.Get("Connection"))
		c.closed()
	}
	s.untouched("a")
}

// A client that disconnects after its request is counted at most once, and does not affect others.
func TestDisconnects(t *testing.T) {
	s := newCheckStack(t)
	const n = 50
	for i := range n {
		body := `{"subject":"gone","resource":"bulk"}`
		if i%2 == 0 { // before all of it is there
			body = body[:20]
		}
		c := s.dial()
		c.send(s.head("Content-Length: 36") + body)
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return s.deps.Metrics.inFlight.Load() == 0 }, time.Minute, 10*time.Millisecond)
	left := s.remaining("gone", "bulk")
	require.LessOrEqual(t, left, int64(1_000_000))
	require.GreaterOrEqual(t, left, int64(1_000_000-n/2))
	require.NotContains(t, s.log.String(), "panic")
}

// Headers that are too large are refused before they fill the memory.
func TestHeaderLimits(t *testing.T) {
	s := newCheckStack(t)
	for _, lines := range []string{
		"X-Long: " + strings.Repeat("x", 64<<10), strings.Repeat("X-Many: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n", 500) + "X: y",
	} {
		c := s.dial()
		c.send(s.head("Content-Length: 15", lines) + `{"subject":"a"}`)
		require.Equal(t, 431, c.receive().status)
		c.closed()
	}
	c := s.dial()
	c.send("GET /" + strings.Repeat("u", 1<<20))
	require.Equal(t, 431, c.receive().status)
	s.untouched("a")
}

// The same over TLS, with HTTP/2 if the client supports it. HTTP/2 without TLS is not supported.
func TestHTTP2(t *testing.T) {
	s := newCheckStack(t)
	server := httptest.NewUnstartedServer(nil)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	server.Config = NewServer(New(Config{Headers: bothStyles}, deps), deps.Logger)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for _, proto := range []string{"HTTP/2.0", "HTTP/1.1"} {
		transport := &http.Transport{TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig.Clone(), ForceAttemptHTTP2: proto == "HTTP/2.0"}
		if proto == "HTTP/1.1" {
			transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
			transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
		}
		client := &http.Client{Transport: transport}
		post := func(body string) answer {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/check", strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+s.key)
			r.Header.Set("Content-Type", "application/json")
			response, err := client.Do(r)
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, proto, response.Proto)
			data, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			return answer{t: t, status: response.StatusCode, header: response.Header, body: data}
		}
		a := post(`{"subject":"` + proto + `"}`)
		require.Equal(t, int64(perSubject-1), *a.decision(200).Remaining)
		require.NotEmpty(t, a.header.Get("RateLimit"))
		post(`{"subject":"a","subject":"b"}`).problem(400, "DUPLICATE_FIELD")
		post(strings.Repeat(" ", maxCheckBody+1)).problem(413, "BODY_TOO_LARGE")
		post(`{"subject":"` + proto + `","cost":5}`).decision(429)
		client.CloseIdleConnections()
	}
	c := s.dial()
	c.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	require.GreaterOrEqual(t, c.receive().status, 400)
}

// The server does not wait long for a late body, and closes its connection.
func TestLateBody(t *testing.T) {
	s := newCheckStack(t)
	c := s.dial()
	c.send(s.head("Content-Length: 20"))
	c.receive().problem(http.StatusRequestTimeout, codeRequestTimeout)
	c.closed()
}
