package api

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
func serveTLS(t *testing.T, lane *Lane, server *http.Server) (net.Addr, *tls.Config) {
	t.Helper()
	certificate := httptest.NewTLSServer(nil) // has one, and a client that trusts it
	t.Cleanup(certificate.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server.TLSConfig = PrepareTLS(&tls.Config{Certificates: certificate.TLS.Certificates})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lane.ListenTLS(listener, server.TLSConfig, server.Handler)) }()
	t.Cleanup(func() {
		_ = server.Close() // connections of the test
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = lane.Shutdown(now) // closes those with HTTP/2
	})
	return listener.Addr(), clientTLS(certificate)
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
