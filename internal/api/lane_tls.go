package api

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"
)

// ListenTLS returns a listener as Listen does, for connections that speak TLS. The lane makes the
// handshake, as config says. Who agreed on HTTP/2, and who failed, goes right to the server that
// accepts: it finds a *tls.Conn whose handshake is over, and says all there is to say. For HTTP/2
// its TLSConfig has to name h2, as config does (PrepareTLS).
func (l *Lane) ListenTLS(inner net.Listener, config *tls.Config) net.Listener {
	return l.listen(inner, config.Clone()) // net/http changes its server's
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
	_ = conn.SetWriteDeadline(by) // a connection that is closed says so in the handshake
	c.waitUntil(by)
	if conn.HandshakeContext(context.Background()) != nil {
		return false // the error stays with the connection, and net/http will find it
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return slices.Contains([]string{"", "http/1.1"}, conn.ConnectionState().NegotiatedProtocol)
}

// handedTLSConn is a handedConn of which net/http can see that it is secure.
type handedTLSConn struct {
	handedConn
	tls *tls.Conn
}

// ConnectionState is what net/http gives to a request as its TLS.
func (c *handedTLSConn) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }

// handed is the connection as net/http is to get it.
func (c *laneConn) handed() net.Conn {
	secure, ok := c.Conn.(*tls.Conn)
	switch {
	case !ok:
		return &handedConn{Conn: c.Conn, lane: c.lane, rest: c.in}
	case len(c.in) == 0: // as it would be without a lane
		return secure
	}
	return &handedTLSConn{handedConn: handedConn{Conn: secure, lane: c.lane, rest: c.in}, tls: secure}
}
