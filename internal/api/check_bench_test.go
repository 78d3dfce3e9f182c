package api

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/route"
	"weir/internal/tenants/tenantstest"
)

// discard is a ResponseWriter that records only the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkHandler measures a check from the parsed head of a request to its written answer, with
// counters in memory: the cost of HTTP.
func BenchmarkHandler(b *testing.B) {
	s := &checkStack{db: tenantstest.New(b), registry: prometheusRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(b)
	h := New(Config{Headers: bothStyles}, s.newDeps(b, memoryEngine()))
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"allowed": {`{"subject":"user_42","resource":"bulk","cost":0}`, 200},
		"denied":  {`{"subject":"user_42","resource":"costly","cost":11}`, 429},
		"refused": {`{"subject":"user_42","resource":"bulk","cost":-1}`, 422},
	} {
		b.Run(name, func(b *testing.B) {
			body := strings.NewReader(c.body)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/check", nil)
			r.Header.Set("Authorization", "Bearer "+s.key)
			r.Header.Set("Content-Type", "application/json")
			r.Body, r.ContentLength = io.NopCloser(body), body.Size()
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(c.body)
				clear(w.header)
				h.ServeHTTP(w, r)
			}
			require.Equal(b, c.status, w.status)
		})
	}
}

// BenchmarkBatch measures a batch of a hundred checks, with counters in memory.
func BenchmarkBatch(b *testing.B) {
	s := &checkStack{db: tenantstest.New(b), registry: prometheusRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(b)
	h := New(Config{Headers: bothStyles}, s.newDeps(b, memoryEngine()))
	text := `{"checks":[`
	for i := range 100 {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(`{"subject":"user_%05d","resource":"bulk","cost":1}`, i)
	}
	text += "]}"
	body := strings.NewReader(text)
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/check/batch", nil)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	r.Body, r.ContentLength = io.NopCloser(body), body.Size()
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(text)
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	require.Equal(b, http.StatusOK, w.status)
}

// BenchmarkLane measures a check on the lane, from the bytes of the request to the bytes of the
// answer, with counters in memory.
func BenchmarkLane(b *testing.B) {
	s := &checkStack{db: tenantstest.New(b), registry: prometheusRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(b)
	edge := route.New("edge")
	edge.Subject = []string{"header:X-User"}
	edge.Resources = []route.Template{{Match: "GET /health"}, {Match: "GET /orders/{id}", Resource: "bulk", Cost: new(int64)}}
	_, err := s.db.Store.CreateRoute(b.Context(), s.actor, edge)
	require.NoError(b, err)
	lane := NewLane()
	New(Config{Headers: bothStyles, Lane: lane}, s.newDeps(b, memoryEngine()))
	headers := []string{"Accept: */*", "User-Agent: bench"}
	for name, request := range map[string]string{
		"allowed":   s.laneRequest(`{"subject":"user_42","resource":"bulk","cost":0}`, headers...),
		"denied":    s.laneRequest(`{"subject":"user_42","resource":"costly","cost":11}`, headers...),
		"route":     strings.Replace(s.ask("GET", append(headers, "X-User: user_42", "X-Forwarded-Method: GET", "X-Forwarded-Uri: /orders/7?a=b")...), authorizePath, authorizePath+"/edge", 1),
		"authorize": s.ask("GET", append(headers, "Weir-Subject: user_42", "Weir-Resource: bulk", "Weir-Cost: 0")...),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.ResetTimer()
			c := &repeatedConn{request: []byte(request), left: b.N, done: make(chan struct{})}
			listener := lane.Listen(&oneListener{conn: c})
			<-c.done
			b.StopTimer()
			require.Equal(b, b.N, c.answers)
			require.NoError(b, listener.Close())
			lane.closed.Store(false) // for the next run
			lane.empty = make(chan struct{})
		})
	}
}

// oneListener accepts one connection.
type oneListener struct{ conn net.Conn }

func (l *oneListener) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return nil }

// repeatedConn is a connection that delivers the same request repeatedly.
type repeatedConn struct {
	net.Conn
	request []byte
	left    int
	answers int
	done    chan struct{}
}

func (c *repeatedConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.left--
	return copy(b, c.request), nil
}
func (c *repeatedConn) Write(b []byte) (int, error)        { c.answers++; return len(b), nil }
func (c *repeatedConn) Close() error                       { close(c.done); return nil }
func (c *repeatedConn) SetReadDeadline(t time.Time) error  { return nil }
func (c *repeatedConn) SetWriteDeadline(t time.Time) error { return nil }
func (c *repeatedConn) SetDeadline(t time.Time) error      { return nil }
