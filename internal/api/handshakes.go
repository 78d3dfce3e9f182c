package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"runtime"
	"time"

	"weir/internal/origin"
	"weir/internal/places"
)

// handshakeRounds are places for the computations of TLS handshakes, by network.
type handshakeRounds = places.Rounds[netip.Prefix]

// maxHandshakesWaiting is the number of handshakes that wait for a place: about as many as one core
// makes before the last one has waited for too long.
const maxHandshakesWaiting = 4096

// handshakes are the places of all listeners of the process. A handshake needs no key and costs
// many times what a check costs: the server creates a key and signs, for a message that a client
// has prepared once. So handshakes use half of the processors, and checks on open connections have
// the other half. Networks take turns, so that one that opens very many connections keeps out no
// other one.
var handshakes = newHandshakeRounds(runtime.GOMAXPROCS(0) / 2)

func newHandshakeRounds(most int) *handshakeRounds {
	return places.NewRounds[netip.Prefix](most, maxHandshakesWaiting)
}

// handshakeAhead is how many bytes a handshake reads at once. The TLS library reads a message in
// parts of several hundred bytes, and a hello with a key for after quantum computers has 1,500 or
// more.
const handshakeAhead = 4096

// handshakeConn is a connection below TLS. During the handshake, it has a place, except while it
// reads or writes: a client may never send anything, and never read. It has one again after each
// write, because the client may have sent all its messages at once, and the next one is then
// processed without another read. A read of what has arrived already keeps the place: with a turn
// for each part of a message, a client would wait for several before the server signs.
type handshakeConn struct {
	net.Conn
	rounds   *handshakeRounds
	networks origin.Networks
	ctx      context.Context // of the handshake: at most its time limit
	giveUp   context.CancelFunc
	placed   bool // it has a place
	done     bool // the handshake has ended, and the connection needs no place

	records tlsRecords // of reads, which one goroutine at a time makes

	// ahead has what was read and not used yet. nil: nothing, and reads are those of Conn.
	ahead *bufio.Reader
}

// unplacedReader reads from a connection without a place, which it has after that.
type unplacedReader struct{ *handshakeConn }

// Read implements io.Reader.
func (r unplacedReader) Read(b []byte) (int, error) { return r.without(r.Conn.Read, b) }

// newHandshakeConn returns a connection whose handshake ends within limit.
func newHandshakeConn(conn net.Conn, rounds *handshakeRounds, limit time.Duration) *handshakeConn {
	c := &handshakeConn{Conn: conn, rounds: rounds}
	c.ctx, c.giveUp = context.WithTimeout(context.Background(), limit)
	return c
}

// shake calls handshake, which reads and writes with c. Reads and writes after it take no place.
func (c *handshakeConn) shake(handshake func() error) error {
	c.ahead = bufio.NewReaderSize(unplacedReader{c}, handshakeAhead)
	defer func() {
		c.leave()
		c.done = true
		c.records.complete = 0 // those of the handshake
		c.giveUp()
		if c.ahead.Buffered() == 0 {
			c.ahead = nil
		}
	}()
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		c.networks = origin.Within(tcp.AddrPort().Addr())
	}
	return handshake()
}

// Read implements net.Conn. It waits, or fails, if the client sends very many records without data.
func (c *handshakeConn) Read(b []byte) (n int, err error) {
	if c.done {
		if n := c.records.empty(); n > 0 {
			if err := parts.wait(c.RemoteAddr(), emptyRecordParts*n); err != nil {
				return 0, err
			}
		}
	}
	if c.ahead != nil {
		n, err = c.readAhead(b)
	} else {
		n, err = c.Conn.Read(b)
	}
	c.records.arrived(b[:n])
	return n, err
}

// readAhead reads what was read before, and during the handshake what comes next.
func (c *handshakeConn) readAhead(b []byte) (int, error) {
	if !c.done {
		return c.ahead.Read(b)
	}
	n, err := c.ahead.Read(b[:min(len(b), c.ahead.Buffered())])
	if c.ahead.Buffered() == 0 {
		c.ahead = nil
	}
	return n, err
}

// Write implements net.Conn.
func (c *handshakeConn) Write(b []byte) (int, error) {
	if c.done {
		return c.Conn.Write(b)
	}
	return c.without(c.Conn.Write, b)
}

// without calls transfer without a place. If it has transferred something, the caller computes
// next, and has a place.
func (c *handshakeConn) without(transfer func([]byte) (int, error), b []byte) (int, error) {
	c.leave()
	n, err := transfer(b)
	if n == 0 {
		return 0, err
	}
	if full := c.rounds.Take(c.ctx, c.networks[:]...); full != nil {
		return 0, full
	}
	c.placed = true
	return n, err
}

// leave frees the place.
func (c *handshakeConn) leave() {
	if c.placed {
		c.placed = false
		c.rounds.Leave()
	}
}

// Close implements net.Conn. A handshake that waits for a place ends.
func (c *handshakeConn) Close() error {
	c.giveUp()
	return c.Conn.Close()
}

// handshakeListener returns connections for handshakes.
type handshakeListener struct {
	net.Listener
	rounds *handshakeRounds
	limit  time.Duration
}

// Accept implements net.Listener.
func (l *handshakeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newHandshakeConn(conn, l.rounds, l.limit), nil
}

// serverHandshake makes the handshake of conn within the limit of its places.
func serverHandshake(conn *handshakeConn, config *tls.Config) (*tls.Conn, error) {
	secure := tls.Server(conn, config)
	return secure, conn.shake(func() error { return secure.HandshakeContext(context.Background()) })
}
