package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants/tenantstest"
)

// secureSide is a TLS listener of a stack's lane.
type secureSide struct {
	addr   net.Addr
	trust  *tls.Config         // a client's
	server *http.Server        // gets the connections that the lane passes on
	handed chan http.ConnState // the first state of each connection that was passed on
}

// overBoth runs a test of the lane with and without TLS.
func overBoth(t *testing.T, test func(t *testing.T, s *checkStack)) {
	t.Run("HTTP", func(t *testing.T) { test(t, newCheckStack(t)) })
	t.Run("TLS", func(t *testing.T) { test(t, newSecureCheckStack(t)) })
}

// newSecureCheckStack returns a stack whose dial uses TLS.
func newSecureCheckStack(t *testing.T) *checkStack {
	s := newCheckStack(t)
	s.secure = &secureSide{handed: make(chan http.ConnState, 100)}
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			http.Error(w, "does not know of TLS", http.StatusTeapot)
			return
		}
		s.handler.ServeHTTP(w, r)
	}), s.deps.Logger)
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.secure.handed <- state
		}
	}
	s.secure.server = server
	s.secure.addr, s.secure.trust = serveTLS(t, s.lane, server)
	return s
}

// serveTLS serves with TLS through a lane until the test ends, and returns the address, and the
// configuration of a client.
func serveTLS(t testing.TB, lane *Lane, server *http.Server) (net.Addr, *tls.Config) {
	t.Helper()
	certificate := httptest.NewTLSServer(nil) // has one, and a client that trusts it
	t.Cleanup(certificate.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server.TLSConfig = PrepareTLS(&tls.Config{Certificates: certificate.TLS.Certificates})
	serveLane(t, lane, server, listener)
	return listener.Addr(), clientTLS(certificate)
}

// serveLane serves what the listener accepts, with TLS through a lane, until the test ends.
func serveLane(t testing.TB, lane *Lane, server *http.Server, listener net.Listener) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lane.ListenTLS(listener, server.TLSConfig, server.Handler)) }()
	t.Cleanup(func() {
		_ = server.Close() // connections of the test
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = lane.Shutdown(now) // closes those with HTTP/2
	})
}

// clientTLS returns a configuration that trusts a test server, without a list of protocols.
func clientTLS(s *httptest.Server) *tls.Config {
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName, config.NextProtos = "example.com", nil
	return config
}

// The handshake negotiates what the client requests, as with any other server.
func TestLaneTLSSpeaksWhatWasAgreed(t *testing.T) {
	s := newSecureCheckStack(t)
	request := s.laneRequest(`{"subject":"agreed","resource":"bulk"}`)
	s.secure.trust.NextProtos = []string{"http/1.1"}
	c := s.dial()
	c.send(request)
	c.receive().decision(200)
	require.Equal(t, "http/1.1", c.Conn.(*tls.Conn).ConnectionState().NegotiatedProtocol)
	require.Zero(t, s.ordinary.Load())

	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.secure.trust.Clone(), Protocols: protocols}}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + s.secure.addr.String() + "/healthz")
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, 2, response.ProtoMajor)
	require.EqualValues(t, 1, s.ordinary.Load())

	s.secure.trust.NextProtos = []string{"spdy/1"}
	c = s.dial()
	require.Error(t, c.Conn.(*tls.Conn).Handshake(), "nothing in common")
}

// A client that uses http instead of https gets an explanation.
func TestLaneTLSRefusesPlainText(t *testing.T) {
	s := newSecureCheckStack(t)
	c := dialTo(t, s.secure.addr, nil)
	c.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Contains(t, string(answer), "Client sent an HTTP request to an HTTPS server.")
}

// slowConn delays the last bytes of each write.
type slowConn struct {
	net.Conn
	hold bool
	held []byte
}

func (c *slowConn) Write(b []byte) (int, error) {
	if !c.hold {
		return c.Conn.Write(b)
	}
	half := len(b) / 2
	c.held = append(c.held, b[half:]...)
	if _, err := c.Conn.Write(b[:half]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// The lane's wait ends in the middle of a TLS record. net/http must get all of it.
func TestLaneTLSHandsOverAHalfRecord(t *testing.T) {
	s := newSecureCheckStack(t)
	raw, err := net.Dial("tcp", s.secure.addr.String())
	require.NoError(t, err)
	defer raw.Close()
	require.NoError(t, raw.SetDeadline(time.Now().Add(30*time.Second)))
	slow := &slowConn{Conn: raw}
	secure := tls.Client(slow, s.secure.trust)
	require.NoError(t, secure.Handshake())
	request := s.laneRequest(`{"subject":"half","resource":"bulk"}`)
	_, err = io.WriteString(secure, request[:40])
	require.NoError(t, err)
	slow.hold = true
	_, err = io.WriteString(secure, request[40:])
	require.NoError(t, err)
	<-s.secure.handed
	_, err = raw.Write(slow.held)
	require.NoError(t, err)
	c := newConn(t, secure)
	c.receive().decision(200)
	require.EqualValues(t, 1, s.ordinary.Load())
	require.EqualValues(t, 1_000_000-1, s.remaining("half", "bulk"))
}

// The listeners of a lane are closed one after the other. A connection that arrives in between, at
// the listener that is still open, must not be dropped.
func TestLaneTLSWhileAnotherListenerIsClosed(t *testing.T) {
	s := newSecureCheckStack(t)
	s.server.Close()
	c := s.dial()
	c.send(s.laneRequest(`{"subject":"between","resource":"bulk"}`))
	c.receive().decision(200)
	require.EqualValues(t, 1, s.ordinary.Load())
}

// seenBy is what a client sees of an answer, without what differs from one moment to the next.
type seenBy struct {
	status, code string
	contentType  string
	closes       bool
}

// answersTo sends bytes in two writes, ends its side, and returns the answers. complete is false if
// the connection broke, as one does that the server closes before it has read everything, or if the
// last answer says that the connection ends. An answer may say so because the server has already
// seen that the client's side has ended, and the requests behind it then have no answer.
func answersTo(t *testing.T, addr net.Addr, trust *tls.Config, sent []byte, cut int) (seen []seenBy, complete bool) {
	t.Helper()
	c := dialTo(t, addr, trust)
	defer c.Close()
	for _, part := range [][]byte{sent[:cut], sent[cut:]} {
		if _, err := c.Write(part); err != nil {
			break // the server has answered already
		}
	}
	_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
	for {
		response, err := http.ReadResponse(c.r, nil)
		if err != nil {
			require.False(t, asTimeout(err, new(net.Error)), "the connection was left open")
			complete = errors.Is(err, io.ErrUnexpectedEOF)
			if last := len(seen) - 1; last >= 0 && seen[last].closes {
				seen[last].closes, complete = false, false
			}
			return seen, complete
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return seen, false
		}
		a := seenBy{status: response.Status, contentType: response.Header.Get("Content-Type"), closes: response.Close}
		var problem struct {
			Error struct{ Code string }
		}
		if json.Unmarshal(body, &problem) == nil {
			a.code = problem.Error.Code
		}
		seen = append(seen, a)
	}
}

// Whatever a client sends, it gets the answers that it gets without TLS, wherever a record ends,
// and the instance still answers others.
func FuzzLaneTLS(f *testing.F) {
	s := &checkStack{db: tenantstest.New(f), registry: prometheusRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(f)
	deps := s.newDeps(f, memoryEngine())
	lane := NewLane()
	handler := New(Config{Headers: bothStyles, Lane: lane}, deps)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	plain := NewServer(handler, deps.Logger)
	go func() { _ = plain.Serve(lane.Listen(listener)) }()
	f.Cleanup(func() { _ = plain.Close() })
	addr, trust := serveTLS(f, lane, NewServer(handler, deps.Logger))

	body := `{"subject":"user_42","resource":"bulk"}`
	good := "POST /v1/check HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\nContent-Length: 39\r\n\r\n" + body
	for _, sent := range []string{
		good, good + good, good[:len(good)-1], good[:60],
		strings.Replace(good, "Host: weir", "Host: a,b", 1),
		strings.Replace(good, "Host: weir", "Host: weir\r\nHost: other", 1),
		strings.Replace(good, "Host: weir", "X: "+strings.Repeat("x", 5000), 1),
		strings.Replace(good, "Content-Length: 39", "Content-Length: 39\r\nContent-Length: 1", 1),
		strings.Replace(good, "Content-Length: 39\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n27\r\n", 1) + "\r\n0\r\n\r\n",
		strings.Replace(good, "HTTP/1.1", "HTTP/1.0", 1),
		"GET /v1/authorize HTTP/1.1\r\nHost: weir\r\nWeir-Key: KEY\r\nWeir-Subject: ada\r\nWeir-Resource: bulk\r\n\r\n" + good,
		"GET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n" + good,
		"\x16\x03\x01\x00\x05hello",
	} {
		f.Add([]byte(sent), uint16(len(sent)/2))
	}
	f.Fuzz(func(t *testing.T, sent []byte, cut uint16) {
		if strings.Contains(string(sent), "/live") || strings.Contains(string(sent), "PRI ") {
			return // a stream does not end, and HTTP/2 is negotiated with TLS only
		}
		sent = []byte(strings.ReplaceAll(string(sent), "KEY", s.key))
		at := min(int(cut), len(sent))
		want, wantAll := answersTo(t, listener.Addr(), nil, sent, at)
		got, gotAll := answersTo(t, addr, trust, sent, at)
		if !wantAll || !gotAll {
			n := min(len(want), len(got))
			want, got = want[:n], got[:n]
		}
		if !slices.ContainsFunc(got, func(a seenBy) bool { return a.status == "429 Too Many Requests" }) { // or the first one used the limit up
			require.Equal(t, want, got)
		}
		alive, _ := answersTo(t, addr, trust, []byte(strings.Replace(good, "KEY", s.key, 1)), 0)
		require.Len(t, alive, 1)
		require.Equal(t, "200 OK", alive[0].status)
	})
}
