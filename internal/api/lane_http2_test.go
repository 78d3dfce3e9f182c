package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2/hpack"

	"weir/internal/h2"
	"weir/internal/origin"
)

// http2Client returns a client that uses one HTTP/2 connection to the stack's TLS listener.
func (s *checkStack) http2Client() *http.Client {
	s.t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: s.secure.trust.Clone(), Protocols: protocols, MaxConnsPerHost: 1, DisableCompression: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// http2Send sends a request over HTTP/2. A header is "Name: value".
func (s *checkStack) http2Send(client *http.Client, method, path string, body io.Reader, headers ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "https://"+s.secure.addr.String()+path, body)
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	response, err := client.Do(r)
	require.NoError(s.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, 2, response.ProtoMajor)
	return answer{t: s.t, status: response.StatusCode, header: response.Header, body: text}
}

// http2Check sends a check over HTTP/2.
func (s *checkStack) http2Check(client *http.Client, body string, headers ...string) answer {
	s.t.Helper()
	return s.http2Send(client, http.MethodPost, "/v1/check", strings.NewReader(body), headers...)
}

// A client cannot distinguish checks that are answered on the HTTP/2 connection from those of the
// handler, which are like those over HTTP/1.1.
func TestHTTP2AnswersLikeNetHTTP(t *testing.T) {
	s := newSecureCheckStack(t)
	client := s.http2Client()
	for _, c := range []struct {
		body    string
		headers []string
		status  int
	}{
		{`{"subject":"new","cost":0}`, nil, 200},
		{`{"subject":"new","resource":"bulk","cost":0,"plan":"pro","explain":true}`, nil, 200},
		{`{"subject":"paying","resource":"orders:create","cost":0}`, []string{"Host: api.example.com"}, 200},
		{`{"subject":"quote \"me\"","resource":"none","attributes":{"ip":"::1"}}`, nil, 200},
		{`{"subject":"new","resource":"costly","cost":11}`, nil, 429},
		{`{"subject":"new","resource":"costly","cost":11}`, []string{"Weir-Denied-Status: 200"}, 200},
		{`{"subject":"blocked"}`, []string{"weir-denied-status: 429"}, 429},
		{`{"subject":"exempt","resource":"costly","cost":11}`, []string{"Accept: */*", "Traceparent: 00-1-2-3"}, 200},
	} {
		headers := append([]string{"X-Request-Id: abc.1"}, c.headers...)
		both := func() (got, want answer) {
			before := s.ordinary.Load()
			got = s.http2Check(client, c.body, headers...)
			require.Equal(t, before, s.ordinary.Load(), "answered on the connection: %s", c.body)
			require.Equal(t, c.status, got.status)
			want = s.http2Check(client, c.body, append(headers, "X-Unknown: 1")...)
			require.Equal(t, before+1, s.ordinary.Load())
			require.NotEmpty(t, got.header.Get("Date"))
			got.header.Del("Date")
			want.header.Del("Date")
			return got, want
		}
		got, want := both()
		for range 5 { // times in the answers, in seconds, differ if a second ended between the two
			if reflect.DeepEqual(got.header, want.header) && string(got.body) == string(want.body) {
				break
			}
			got, want = both()
		}
		require.Equal(t, want.status, got.status)
		require.Equal(t, want.header, got.header, c.body)
		require.Equal(t, string(want.body), string(got.body))
	}
}

// Under overload, checks are refused on the HTTP/2 connection, with the same answer as by the
// handler, and each refusal is counted once. Before, the handler decided them again.
func TestHTTP2Refuses(t *testing.T) {
	s := newSecureCheckStack(t)
	client := s.http2Client()
	share := s.lane.server.Load().capacity.of(s.actor.TenantID())
	for name, crowd := range map[string]func(n int64){
		"all places":   func(n int64) { s.deps.Metrics.inFlight.Add(n) },
		"the tenant's": func(n int64) { share.serving.Add(n) },
	} {
		crowd(DefaultMaxInFlight)
		ordinary, shed := s.ordinary.Load(), testutil.ToFloat64(s.deps.Metrics.shed)
		got := s.http2Check(client, `{"subject":"full"}`, "X-Request-Id: abc.1")
		require.Equal(t, ordinary, s.ordinary.Load(), name)
		require.InDelta(t, shed+1, testutil.ToFloat64(s.deps.Metrics.shed), 0, name)
		want := s.http2Check(client, `{"subject":"full"}`, "X-Request-Id: abc.1", "X-Unknown: 1")
		require.Equal(t, ordinary+1, s.ordinary.Load(), name)
		require.InDelta(t, shed+2, testutil.ToFloat64(s.deps.Metrics.shed), 0, name)
		crowd(-DefaultMaxInFlight)
		got.problem(503, codeOverloaded)
		got.header.Del("Date")
		want.header.Del("Date")
		require.Equal(t, want.header, got.header, name)
		require.Equal(t, string(want.body), string(got.body), name)
	}
	require.Equal(t, int64(perSubject), s.remaining("full", "default"), "refused requests count nothing")
}

// A request in another form, and a check that cannot be decided, are answered as without a lane.
// Nothing is counted twice, and the connection stays.
func TestHTTP2HandsOver(t *testing.T) {
	s := newSecureCheckStack(t)
	client := s.http2Client()
	body := `{"subject":"over","resource":"bulk"}`
	long := `{"subject":"over","attributes":{"a":"` + strings.Repeat("x", maxCheckBody) + `"}}`
	slow := func(text string) io.Reader { // two frames, with a pause between them
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, text[:5])
			_, _ = io.WriteString(w, text[5:])
			_ = w.Close()
		}()
		return r
	}
	for name, c := range map[string]struct {
		method, path string
		body         io.Reader
		headers      []string
		status       int
		code         string // of the problem
		direct       bool
	}{
		"a check":               {"POST", "/v1/check", strings.NewReader(body), nil, 200, "", true},
		"the short path":        {"POST", "/check", strings.NewReader(body), nil, 200, "", true},
		"a body in two parts":   {"POST", "/v1/check", slow(body), nil, 200, "", true},
		"an idempotency key":    {"POST", "/v1/check", strings.NewReader(body), []string{"Idempotency-Key: k-1"}, 200, "", true},
		"a forwarded check":     {"POST", "/v1/check", strings.NewReader(body), []string{"X-Forwarded-For: 10.0.0.1"}, 200, "", true},
		"an unknown header":     {"POST", "/v1/check", strings.NewReader(body), []string{"Cookie: a=b"}, 200, "", false},
		"another content type":  {"POST", "/v1/check", strings.NewReader(body), []string{"Content-Type: text/plain"}, 415, codeUnsupportedMediaType, false},
		"no JSON":               {"POST", "/v1/check", strings.NewReader("{"), nil, 400, codeMalformedJSON, false},
		"nothing":               {"POST", "/v1/check", nil, nil, 400, codeMalformedJSON, false},
		"a wrong field":         {"POST", "/v1/check", strings.NewReader(`{"subject":"a","cost":-1}`), nil, 422, codeInvalidRequest, false},
		"too long":              {"POST", "/v1/check", strings.NewReader(long), nil, 413, codeBodyTooLarge, false},
		"a wrong key":           {"POST", "/v1/check", strings.NewReader(body), []string{"Authorization: Bearer x"}, 401, codeMalformedKey, false},
		"a wrong denied status": {"POST", "/v1/check", strings.NewReader(body), []string{"Weir-Denied-Status: 500"}, 400, codeInvalidHeader, false},
		"a query":               {"POST", "/v1/check?x=1", strings.NewReader(body), nil, 400, codeUnknownParameter, false},
		"another method":        {"GET", "/v1/check", nil, nil, 405, codeMethodNotAllowed, false},
		"another path":          {"GET", "/healthz", nil, nil, 200, "", false},
		"a batch":               {"POST", "/v1/check/batch", strings.NewReader(`{"checks":[` + body + `]}`), nil, 200, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			before := s.ordinary.Load()
			a := s.http2Send(client, c.method, c.path, c.body, c.headers...)
			require.Equal(t, c.status, a.status, "%s", a.body)
			if c.code != "" {
				a.problem(c.status, c.code)
			}
			want := before + 1
			if c.direct {
				want = before
			}
			require.Equal(t, want, s.ordinary.Load())
		})
	}
	require.EqualValues(t, 1_000_000-7, s.remaining("over", "bulk"))
}

// Concurrent checks on one connection are all decided, and the limit is exact.
func TestHTTP2IsExact(t *testing.T) {
	s := newSecureCheckStack(t)
	client := s.http2Client()
	var callers sync.WaitGroup
	var allowed atomic.Int64
	for range 60 {
		callers.Go(func() {
			if s.http2Check(client, `{"subject":"crowd"}`).status == 200 {
				allowed.Add(1)
			}
		})
	}
	callers.Wait()
	require.EqualValues(t, perSubject, allowed.Load())
	require.Zero(t, s.ordinary.Load())
}

// A panic is answered 500, as over HTTP/1.1, and the connection stays open.
func TestHTTP2Panics(t *testing.T) {
	s := newFaultStack(t, true)
	client := s.http2Client()
	s.http2Check(client, `{"subject":"a","resource":"bulk"}`).decision(200)
	for i, stage := range []string{"authentication", "policy", "quota", "check"} {
		if stage == "policy" {
			s.deps.Policies.Gone(s.actor.TenantID())
		}
		s.faults.stage.Store(stage)
		a := s.http2Check(client, `{"subject":"a","resource":"bulk"}`, "X-Request-Id: the-id")
		a.fault(true)
		require.Equal(t, "the-id", a.header.Get("X-Request-Id"))
		require.NotContains(t, string(a.body), "fault during")
		s.panicked(i+1, "a fault during "+stage)
		s.http2Check(client, `{"subject":"a","resource":"bulk"}`).decision(200)
	}
	require.Zero(t, s.ordinary.Load())
	s.shutDown()
}

// While the instance drains, clients are asked to connect elsewhere, and all checks are answered.
func TestHTTP2Drains(t *testing.T) {
	s := newSecureCheckStack(t)
	client := s.http2Client()
	s.http2Check(client, `{"subject":"a","resource":"bulk"}`).decision(200)
	s.lane.Drain()
	s.http2Check(client, `{"subject":"a","resource":"bulk"}`).decision(200)
	require.EqualValues(t, 1, s.ordinary.Load(), "the handler can ask the client to leave")

	arrived, released := make(chan struct{}), make(chan struct{})
	handler := s.handler
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-released
		handler.ServeHTTP(w, r)
	})
	answered := make(chan answer, 1)
	go func() { answered <- s.http2Check(client, `{"subject":"a","resource":"bulk"}`) }()
	<-arrived
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		stopped <- s.lane.Shutdown(ctx)
	}()
	select {
	case err := <-stopped:
		t.Fatalf("stopped before the check was answered: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	close(released)
	(<-answered).decision(200)
	require.NoError(t, <-stopped)
}

// The count of answered requests, and their statuses, are those of all transports.
func TestHTTP2IsCounted(t *testing.T) {
	s := newSecureCheckStack(t)
	client := s.http2Client()
	count := func() float64 { return testutil.ToFloat64(s.deps.Metrics.hotRequests[routeCheck][statusClass(200)]) }
	before := count()
	s.http2Check(client, `{"subject":"a","resource":"bulk"}`).decision(200)
	s.http2Check(client, `{"subject":"a","resource":"bulk"}`, "X-Unknown: 1").decision(200)
	require.Equal(t, before+2, count())
	require.False(t, bytes.Contains([]byte(s.log.String()), []byte(s.key)))
}

// The clients of a trusted proxy count one by one for the requests that a network may have in
// progress. Others cannot choose what they count for.
func TestHTTP2ClientsBehindProxies(t *testing.T) {
	t.Parallel()
	l := NewLane()
	client := func(remote string, forwarded ...string) string {
		head := &h2.Head{Fields: []hpack.HeaderField{{Name: "via", Value: "203.0.113.1"}}}
		for _, value := range forwarded {
			head.Fields = append(head.Fields, hpack.HeaderField{Name: "x-forwarded-for", Value: value})
		}
		return l.newHTTP2(http.NotFoundHandler()).Client(netip.MustParseAddr(remote), head).String()
	}
	require.Equal(t, "10.0.0.5", client("10.0.0.5", "192.0.2.7"), "before the start, none is trusted")
	l.server.Store(&server{})
	require.Equal(t, "10.0.0.5", client("10.0.0.5", "192.0.2.7"))
	l.server.Store(&server{proxies: origin.Proxies{netip.MustParsePrefix("10.0.0.0/8")}})
	require.Equal(t, "192.0.2.7", client("10.0.0.5", "198.51.100.1, 192.0.2.7"))
	require.Equal(t, "192.0.2.7", client("::ffff:10.0.0.5", "192.0.2.7", "10.0.0.6"))
	require.Equal(t, "10.0.0.5", client("10.0.0.5"), "a proxy that does not report")
	require.Equal(t, "192.0.2.8", client("192.0.2.8", "192.0.2.7"), "no proxy")
}
