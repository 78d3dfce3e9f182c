package api

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// ListenTLS is Listen for TLS connections. The lane makes the handshake with config. It keeps a
// connection that negotiated HTTP/2: its checks are answered directly, and handler answers all
// other requests. A connection whose handshake failed is passed to the accepting server
// immediately, as a *tls.Conn with that error.
func (l *Lane) ListenTLS(inner net.Listener, config *tls.Config, handler http.Handler) net.Listener {
	server := l.newHTTP2(handler)
	l.mu.Lock()
	l.http2 = append(l.http2, server)
	l.mu.Unlock()
	return l.listen(inner, config.Clone(), server) // net/http changes the configuration of its server
}

// PrepareTLS returns a copy of config that offers HTTP/2 and HTTP/1.1, for ListenTLS and for the
// server that accepts from it.
func PrepareTLS(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	return config
}

// tlsOutcome is what a handshake led to.
type tlsOutcome uint8

const (
	tlsFailed tlsOutcome = iota
	tlsHTTP1
	tlsHTTP2
)

// secure makes the handshake.
func (c *laneConn) secure(config *tls.Config) tlsOutcome {
	by := time.Now().Add(readHeaderTimeout)
	_ = c.SetWriteDeadline(by) // the handshake of a closed connection returns an error
	c.waitUntil(by)
	return c.shake(config)
}

// secureForNetHTTP makes the handshake of a connection that the lane may not serve.
func (c *laneConn) secureForNetHTTP(config *tls.Config) {
	_ = c.SetDeadline(time.Now().Add(readHeaderTimeout)) // as in secure
	c.shake(config)
}

// shake makes the handshake within the deadlines of the connection.
func (c *laneConn) shake(config *tls.Config) tlsOutcome {
	below := c.inner.(*handshakeConn)
	conn, err := serverHandshake(below, config)
	c.Conn = conn
	if err != nil {
		return tlsFailed // the connection keeps the error, and net/http will find it
	}
	c.Conn = &secureConn{conn, below}
	_ = conn.SetWriteDeadline(time.Time{})
	if conn.ConnectionState().NegotiatedProtocol == "h2" {
		return tlsHTTP2
	}
	return tlsHTTP1
}

// tls returns the TLS connection after its handshake, or nil.
func (c *laneConn) tls() *tls.Conn {
	secure, ok := c.Conn.(*secureConn)
	if !ok {
		return nil
	}
	return secure.Conn.(*tls.Conn)
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
	failed, ok := c.Conn.(*tls.Conn)
	if ok {
		return failed
	}
	secure := c.tls()
	switch {
	case secure == nil:
		return &handedConn{Conn: c.Conn, lane: c.lane, rest: c.in, headBy: c.headBy}
	case len(c.in) == 0 && secure.ConnectionState().NegotiatedProtocol == "h2": // as without a lane
		return secure
	}
	return &handedTLSConn{handedConn: handedConn{Conn: c.Conn, lane: c.lane, rest: c.in, headBy: c.headBy}, tls: secure}
}
