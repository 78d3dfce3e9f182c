package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// laneRequest is a request in the lane's form.
func (s *checkStack) laneRequest(body string, headers ...string) string {
	return s.head(append(headers, "Content-Length: "+itoa(int64(len(body))))...) + body
}

// A client cannot distinguish the lane from net/http.
func TestLaneAnswersLikeNetHTTP(t *testing.T) { overBoth(t, testLaneAnswersLikeNetHTTP) }

func testLaneAnswersLikeNetHTTP(t *testing.T, s *checkStack) {
	for _, c := range []struct {
		body    string
		headers []string
		status  int
	}{
		{`{"subject":"new","cost":0}`, nil, 200},
		{`{"subject":"new","resource":"bulk","cost":0,"plan":"pro","explain":true}`, nil, 200},
		{`{"subject":"paying","resource":"orders:create","cost":0}`, nil, 200},
		{`{"subject":"quote \"me\"","resource":"none","attributes":{"ip":"::1"}}`, nil, 200},
		{`{"subject":"new","resource":"costly","cost":11}`, nil, 429},
		{`{"subject":"new","resource":"costly","cost":11}`, []string{"Weir-Denied-Status: 200"}, 200},
		{`{"subject":"blocked"}`, []string{"weir-denied-status: 429"}, 429},
		{`{"subject":"exempt","resource":"costly","cost":11}`, nil, 200},
	} {
		headers := append([]string{"X-Request-Id: abc.1"}, c.headers...)
		both := func() (got, want answer) {
			before := s.ordinary.Load()
			short := s.dial()
			short.send(s.laneRequest(c.body, headers...))
			got = short.receive()
			require.Equal(t, before, s.ordinary.Load(), "the lane has answered %s", c.body)
			require.Equal(t, c.status, got.status)

			ordinary := s.dial()
			ordinary.send(s.laneRequest(c.body, append(headers, "X-Unknown: 1")...))
			want = ordinary.receive()
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

// Not even by the order of the headers.
func TestLaneOrdersHeadersLikeNetHTTP(t *testing.T) {
	overBoth(t, testLaneOrdersHeadersLikeNetHTTP)
}

func testLaneOrdersHeadersLikeNetHTTP(t *testing.T, s *checkStack) {
	body := `{"subject":"order","resource":"one"}`
	names := func(headers ...string) (names []string) {
		c := s.dial()
		c.send(s.laneRequest(body, headers...))
		for {
			line, err := c.r.ReadString('\n')
			require.NoError(t, err)
			if line == "\r\n" {
				return names
			}
			name, _, _ := strings.Cut(line, ":")
			names = append(names, name)
		}
	}
	s.check(body).decision(200) // the one that there is
	want := names("X-Unknown: 1")
	require.Contains(t, want, "Retry-After")
	before := s.ordinary.Load()
	require.Equal(t, want, names())
	require.Equal(t, before, s.ordinary.Load(), "the lane has answered")
}

// A request that is not in the lane's form is passed to net/http on the same connection. The answer
// is that of a server without a lane, and nothing is lost, repeated or counted twice.
func TestLaneHandsOver(t *testing.T) { overBoth(t, testLaneHandsOver) }

func testLaneHandsOver(t *testing.T, s *checkStack) {
	without := httptest.NewUnstartedServer(nil)
	without.Config = NewServer(New(Config{Headers: bothStyles}, s.deps), s.deps.Logger)
	var trust *tls.Config
	if s.secure == nil {
		without.Start()
	} else {
		without.StartTLS()
		trust = clientTLS(without)
	}
	t.Cleanup(without.Close)
	body := `{"subject":"over","resource":"bulk"}`
	length := "Content-Length: " + itoa(int64(len(body)))
	good := s.laneRequest(body)
	chunked := "24\r\n" + body + "\r\n0\r\n\r\n"
	counted := int64(0)
	for name, sent := range map[string]string{
		"another path":             "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"another method":           "GET /v1/check HTTP/1.1\r\nHost: x\r\n\r\n",
		"a query":                  strings.Replace(good, "/v1/check ", "/v1/check?a=1 ", 1),
		"absolute form":            strings.Replace(good, "/v1/check ", "http://x/v1/check ", 1),
		"HTTP/1.0":                 strings.Replace(good, "HTTP/1.1", "HTTP/1.0", 1),
		"HTTP/2's preface":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"lines without CR":         strings.ReplaceAll(good, "\r\n", "\n"),
		"a folded header":          s.head(length, "X-A: b\r\n c") + body,
		"a space before the colon": s.head(length, "Accept : */*") + body,
		"a control character":      s.head(length, "Accept: \x01") + body,
		"an unknown header":        s.head(length, "X-Unknown: yes") + body,
		"no host":                  strings.Replace(good, "Host: ", "Accept: ", 1),
		"two hosts":                s.head(length, "Host: y") + body,
		"a strange host":           strings.Replace(good, "Host: ", "Host: <", 1),
		"two lengths":              s.head(length, "Content-Length: 1") + body,
		"a signed length":          s.head("Content-Length: +"+itoa(int64(len(body)))) + body,
		"no length":                s.head(),
		"chunks":                   s.head("Transfer-Encoding: chunked") + chunked,
		"expecting":                s.head(length, "Expect: 100-continue") + body,
		"an encoding":              s.head(length, "Content-Encoding: identity") + body,
		"closing":                  s.head(length, "Connection: close") + body,
		"upgrading":                s.head(length, "Connection: upgrade", "Upgrade: h2c") + body,
		"a wrong key":              strings.Replace(good, s.key, s.key[:len(s.key)-1]+"?", 1),
		"two keys":                 s.head(length, "Authorization: Bearer x") + body,
		"another scheme":           strings.Replace(good, "Bearer ", "Basic ", 1),
		"another type":             strings.Replace(good, "application/json", "application/json; charset=utf-8", 1),
		"a long body":              s.laneRequest(body + strings.Repeat(" ", 9_000)),
		"a mistake":                s.laneRequest(`{"subject":1}`),
		"no JSON":                  s.laneRequest(`{`),
		"an unknown plan":          s.laneRequest(`{"subject":"over","plan":"gold"}`),
		"a wrong status":           s.laneRequest(body, "Weir-Denied-Status: 204"),
	} {
		t.Run(name, func(t *testing.T) {
			ask := func(c *conn) answer {
				c.t = t
				// An earlier check by the lane, on the same connection, sent together with it.
				c.send(s.laneRequest(`{"subject":"before","resource":"bulk","cost":0}`) + sent)
				c.receive().decision(200)
				a := c.receive()
				if a.status == http.StatusContinue {
					a = c.receive()
				}
				if a.status == 200 && name != "another path" {
					counted++
				}
				return a
			}
			want, before := ask(dialTo(t, without.Listener.Addr(), trust)), s.ordinary.Load()
			got := ask(s.dial())
			require.Equal(t, want.status, got.status)
			require.Equal(t, want.header.Get("Connection"), got.header.Get("Connection"))
			if got.status != http.StatusBadRequest && got.status != http.StatusHTTPVersionNotSupported { // net/http itself may have refused
				require.Equal(t, before+1, s.ordinary.Load())
			}
		})
	}
	require.GreaterOrEqual(t, counted, int64(2*10))
	require.Equal(t, 1_000_000-counted, s.remaining("over", "bulk"))
}

// A request may arrive in pieces, and several may arrive together.
func TestLanePieces(t *testing.T) { overBoth(t, testLanePieces) }

func testLanePieces(t *testing.T, s *checkStack) {
	request := s.laneRequest(`{"subject":"pieces","resource":"bulk"}`, "X-Request-Id: 1")
	c := s.dial()
	for i := range request {
		c.send(request[i : i+1])
	}
	c.receive().decision(200)
	c.send(strings.Repeat(request, 30) + request[:100])
	for range 30 {
		require.Equal(t, "1", c.receive().header.Get("X-Request-Id"))
	}
	c.send(request[100:])
	c.receive().decision(200)
	require.Zero(t, s.ordinary.Load())
	require.EqualValues(t, 1_000_000-32, s.remaining("pieces", "bulk"))

	// A client that disconnects during a request has sent no check.
	c = s.dial()
	c.send(request[:len(request)-1])
	require.NoError(t, c.Conn.(interface{ CloseWrite() error }).CloseWrite())
	c.receive().problem(400, "MALFORMED_JSON")
	require.EqualValues(t, 1_000_000-32, s.remaining("pieces", "bulk"))
}

// An instance that stops answers what it has received, and closes idle connections.
func TestLaneDrainsAndEnds(t *testing.T) {
	s := newCheckStack(t)
	lane := NewLane()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := NewServer(New(Config{Headers: bothStyles, Lane: lane}, s.deps), s.deps.Logger)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lane.Listen(listener)) }()
	request := s.laneRequest(`{"subject":"last","resource":"bulk"}`)
	idle, drained := dialTo(t, listener.Addr(), nil), dialTo(t, listener.Addr(), nil)
	for _, c := range []*conn{idle, drained} {
		c.send(request)
		c.receive().decision(200)
	}
	lane.Drain()
	drained.send(request)
	drained.receive().decision(200)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, server.Shutdown(ctx))
	require.NoError(t, lane.Shutdown(ctx))
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
	idle.closed()
	drained.closed()
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err)
}

// If the lane accepts a request, net/http must parse it in the same way, so that no proxy can be
// made to see another request.
func FuzzLaneHead(f *testing.F) {
	head := "POST /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
	f.Add([]byte(head + "\r\n{}"))
	f.Add([]byte(head + "Connection: keep-alive\r\nX-Request-Id: a\r\nAccept:\r\n\r\n{}POST"))
	f.Add([]byte(strings.ReplaceAll(head, "Host: x", "host:x:1") + "weir-denied-status:  200\r\n\r\n{}"))
	for _, host := range []string{"[::1]:8080", "a,b", "x\r\nHost: y", "user@x", "x/..", "", " x ", "x y", "%00", "xn--bcher-kva.example:443"} {
		f.Add([]byte(strings.ReplaceAll(head, "Host: x", "Host: "+host) + "\r\n{}"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		h, verdict := readLaneHead(b)
		require.Equal(t, before, b)
		if verdict != laneCheck {
			if verdict == lanePartial {
				require.Less(t, bytes.Count(b, []byte("\r\n\r\n")), 2)
			}
			return
		}
		in := bufio.NewReader(bytes.NewReader(b))
		r, err := http.ReadRequest(in)
		require.NoError(t, err)
		require.Equal(t, http.MethodPost, r.Method)
		require.Contains(t, []string{"/v1/check", "/check"}, r.RequestURI)
		require.Equal(t, string(h.host), r.Host)
		require.Len(t, r.Header["Host"], 0)
		require.False(t, r.Close)
		require.Nil(t, r.TransferEncoding)
		require.EqualValues(t, len(h.body), r.ContentLength)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, string(h.body), string(body))
		rest, err := io.ReadAll(in)
		require.NoError(t, err)
		require.Equal(t, b[h.size:], rest)
		require.Len(t, r.Header["Authorization"], 1)
		key, p := bearer(r.Header["Authorization"])
		require.Nil(t, p)
		require.Equal(t, string(h.key), key)
		require.Nil(t, jsonBody(r.Header))
		status, p := deniedStatusOf(r.Header)
		require.Nil(t, p)
		require.Equal(t, h.deniedStatus, status)
		require.Equal(t, string(h.requestID), r.Header.Get("X-Request-Id"))
	})
}
