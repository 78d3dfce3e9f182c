package api

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"
)

// ListenTLS is Listen for TLS connections. The lane makes the handshake with config. A connection
// that negotiated HTTP/2, or whose handshake failed, is passed to the accepting server immediately.
// The server gets a *tls.Conn with a completed handshake. For HTTP/2, its TLSConfig must contain
// h2, as config does (PrepareTLS).
func (l *Lane) ListenTLS(inner net.Listener, config *tls.Config) net.Listener {
	return l.listen(inner, config.Clone()) // net/http changes the configuration of its server
}

// PrepareTLS returns a copy of config that offers HTTP/2 and HTTP/1.1, for ListenTLS and for the
// server that accepts from it.
func PrepareTLS(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	return config
}

// secure makes the handshake, and reports whether the lane can serve the connection.
func (c *laneConn) secure(config *tls.Config) bool {
	conn := tls.Server(c.Conn, config)
	c.Conn = conn
	by := time.Now().Add(readHeaderTimeout)
	_ = conn.SetWriteDeadline(by) // the handshake of a closed connection returns an error
	c.waitUntil(by)
	if conn.HandshakeContext(context.Background()) != nil {
		return false // the connection keeps the error, and net/http will find it
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return slices.Contains([]string{"", "http/1.1"}, conn.ConnectionState().NegotiatedProtocol)
}

// handedTLSConn is a handedConn with the TLS state of its connection.
type handedTLSConn struct {
	handedConn
	tls *tls.Conn
}

// ConnectionState returns the state that net/http adds to requests.
func (c *handedTLSConn) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }

// handed returns the connection in the form for net/http.
func (c *laneConn) handed() net.Conn {
	secure, ok := c.Conn.(*tls.Conn)
	switch {
	case !ok:
		return &handedConn{Conn: c.Conn, lane: c.lane, rest: c.in, headBy: c.headBy}
	case len(c.in) == 0: // as without a lane
		return secure
	}
	return &handedTLSConn{handedConn: handedConn{Conn: secure, lane: c.lane, rest: c.in, headBy: c.headBy}, tls: secure}
}
