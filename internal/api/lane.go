package api

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/h2"
)

// Lane answers checks in the usual form directly on the connection, without net/http. net/http
// takes several times as long to read a request and to write an answer as Weir takes to decide.
//
// A Lane is strict. It reads one form of request (lane_head.go), and writes one kind of answer, a
// decision. For anything else on a connection (another path, an unknown header, a wrong key, an
// invalid body) it passes the connection, with everything that was read of that request, to
// net/http for good. Errors are therefore handled in one place, and nothing is counted twice,
// because a request is passed on before it is counted or not at all. See
// docs/decisions/0006-a-lane-for-checks.md.
//
// A Lane serves HTTP/1.1, with and without TLS. Over TLS it also has HTTP/2 (lane_http2.go).
type Lane struct {
	server   atomic.Pointer[server] // nil: everything is passed to net/http
	draining atomic.Bool            // everything is passed to net/http

	handshakes *handshakeRounds

	mu     sync.Mutex
	open   map[*laneConn]struct{}
	http2  []*h2.Server
	closed atomic.Bool   // changed under the lock
	empty  chan struct{} // closed when closed is set and no connection is open
}

// NewLane returns a lane that passes everything to net/http until it is in the Config of New.
func NewLane() *Lane {
	return &Lane{handshakes: handshakes, open: map[*laneConn]struct{}{}, empty: make(chan struct{})}
}

// Drain passes all further requests to net/http, which tells clients that the connection is about
// to be closed.
func (l *Lane) Drain() { l.draining.Store(true) }

// Shutdown waits until every request that the lane has read is answered, or ctx ends. The listeners
// must be closed before.
func (l *Lane) Shutdown(ctx context.Context) error {
	l.mu.Lock()
	l.close()
	servers := l.http2
	l.mu.Unlock()
	for _, server := range servers {
		if err := server.Shutdown(ctx); err != nil {
			return err
		}
	}
	select {
	case <-l.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends all connections after their current request. The caller holds the lock.
func (l *Lane) close() {
	if l.closed.Swap(true) {
		return
	}
	for c := range l.open {
		_ = c.inner.SetReadDeadline(longAgo) // a goroutine that waits for a request wakes
		if shaking, ok := c.inner.(*handshakeConn); ok {
			shaking.giveUp() // and one that waits for a place
		}
	}
	if len(l.open) == 0 {
		close(l.empty)
	}
}

// add reports whether the lane may serve c.
func (l *Lane) add(c *laneConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.open[c] = struct{}{}
	return true
}

func (l *Lane) remove(c *laneConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	if l.closed.Load() && len(l.open) == 0 {
		close(l.empty)
	}
}

// Listen returns a listener whose Accept returns the connections that the lane passes on. Closing
// it closes inner.
func (l *Lane) Listen(inner net.Listener) net.Listener { return l.listen(inner, nil, nil) }

func (l *Lane) listen(inner net.Listener, config *tls.Config, http2 *h2.Server) net.Listener {
	listener := &laneListener{
		Listener: inner, lane: l, tls: config, http2: http2,
		handed: make(chan net.Conn), failed: make(chan error), done: make(chan struct{}),
	}
	go listener.accept()
	return listener
}

type laneListener struct {
	net.Listener
	lane   *Lane
	tls    *tls.Config // nil: without TLS
	http2  *h2.Server  // nil: without TLS
	handed chan net.Conn
	failed chan error
	once   sync.Once
	done   chan struct{}
}

func (l *laneListener) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			if l.tls != nil {
				conn = newHandshakeConn(conn, l.lane.handshakes, readHeaderTimeout)
			}
			go l.serve(&laneConn{Conn: conn, inner: conn, lane: l.lane})
			continue
		}
		// The caller of Accept knows which errors are temporary, and waits before it retries.
		select {
		case l.failed <- err:
		case <-l.done:
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Accept implements net.Listener.
func (l *laneListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.handed:
		return conn, nil
	case err := <-l.failed:
		return nil, err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The lane's connections end after their current request.
func (l *laneListener) Close() error {
	l.once.Do(func() { close(l.done) })
	l.lane.mu.Lock()
	l.lane.close()
	l.lane.mu.Unlock()
	return l.Listener.Close()
}

const (
	// laneBuffer is the maximum size of the head and body of one request. Larger ones are passed
	// on.
	laneBuffer = 4 << 10
	// lanePatience is how long to wait for the rest of a request before net/http does.
	lanePatience = time.Second
	// laneLastLook is how long to look for a request when the deadline of an idle connection is
	// over.
	laneLastLook = time.Millisecond
	// laneSlack is the maximum delay of a deadline. Setting a deadline costs more than the rest of
	// reading, so it is moved only after this time.
	laneSlack = 5 * time.Second
)

var longAgo = time.Unix(1, 0)

// laneConn is a connection of the lane.
type laneConn struct {
	net.Conn
	// inner is the connection below TLS, a *handshakeConn. Other goroutines use it, because the
	// handshake replaces Conn.
	inner   net.Conn
	lane    *Lane
	in      []byte   // read but not yet answered
	head    laneHead // of the current request
	key     string   // of the last request, because the next one usually has the same
	readBy  time.Time
	writeBy time.Time
	// headBy is the end of readHeaderTimeout for the current request; zero: it has just begun.
	headBy time.Time
	host   string // of the last request
	remote bool   // host is not this machine

	timer  *time.Timer     // of pauses; nil: there was none
	closed <-chan struct{} // closed with the listener

	startedAt  time.Time // when the request in head had arrived; zero: it has not
	unanswered bool      // nothing has been written for the current request
	// asked is the question of a gateway that is being decided; nil: none is.
	asked *authorizeQuestion
	// scratch is the memory of the current request; nil: it needs none any more.
	scratch *scratch
	// within is where the current request is in flight; nil: nowhere.
	within *capacity
}

// leave ends that the current request counts among those of other clients.
func (c *laneConn) leave() {
	if c.within != nil {
		c.within.leave()
		c.within = nil
	}
}

// serve answers requests one after the other.
func (l *laneListener) serve(c *laneConn) {
	keep := false
	defer func() {
		if !keep {
			_ = c.Close()
		}
	}()
	added := l.lane.add(c)
	leave := func() {
		if added {
			added = false
			l.lane.remove(c)
		}
	}
	defer func() { leave() }()
	defer c.recovered()
	if !added { // another listener of the lane was closed before
		if l.tls != nil {
			c.secureForNetHTTP(l.tls)
		}
		keep = l.passToNetHTTP(c)
		return
	}
	if l.tls != nil {
		switch c.secure(l.tls) {
		case tlsHTTP2:
			leave()
			if c.SetDeadline(time.Time{}) == nil {
				l.serveHTTP2(c)
			}
			return
		case tlsFailed:
			keep = l.passToNetHTTP(c)
			return
		}
	}
	c.in, c.closed = make([]byte, 0, laneBuffer), l.done
	c.headBy = time.Now().Add(readHeaderTimeout)
	c.waitUntil(c.headBy)
	for first := true; ; first = false {
		c.startedAt, c.unanswered = time.Time{}, true
		verdict := c.next(first)
		s := l.lane.server.Load()
		switch {
		case verdict == laneGone:
			return
		case verdict == laneOther || s == nil || l.lane.draining.Load() || !s.answerLane(c):
			keep = l.passToNetHTTP(c)
			return
		case c.in == nil: // it could not be answered
			return
		}
		if l.lane.closed.Load() {
			return
		}
	}
}

// passToNetHTTP passes the connection to net/http, and reports whether it was accepted.
func (l *laneListener) passToNetHTTP(c *laneConn) bool {
	if c.SetDeadline(time.Time{}) != nil {
		return false
	}
	select {
	case l.handed <- c.handed():
		return true
	case <-l.done:
		return false
	}
}

// next reads until the next request is complete, and stores it in c.head.
func (c *laneConn) next(first bool) (verdict laneVerdict) {
	if !first {
		c.headBy = time.Time{}
		if now := time.Now(); c.readBy.Sub(now) < idleTimeout {
			c.waitUntil(now.Add(idleTimeout + laneSlack))
		}
	}
	begun := false  // waiting for the rest of a request
	looked := false // for a request after the deadline
	for {
		c.head, verdict = readLaneHead(c.in)
		if verdict != lanePartial || len(c.in) == cap(c.in) {
			if verdict == lanePartial {
				verdict = laneOther
			}
			return verdict
		}
		if len(c.in) > 0 && !begun {
			begun = true
			now := time.Now()
			if c.headBy.IsZero() {
				c.headBy = now.Add(readHeaderTimeout)
			}
			c.waitUntil(earlier(now.Add(lanePatience), c.headBy))
		}
		n, err := c.Read(c.in[len(c.in):cap(c.in)])
		c.in = c.in[:len(c.in)+n]
		switch {
		case n > 0 || err == nil:
		case len(c.in) == 0 && !looked && errors.Is(err, os.ErrDeadlineExceeded):
			// After a stop of the process or of the machine, the deadline is seen before a request
			// that arrived meanwhile, which a client would not repeat.
			looked = true
			_ = c.SetReadDeadline(time.Now().Add(laneLastLook))
		case len(c.in) > 0 && (errors.Is(err, os.ErrDeadlineExceeded) || isEnd(err)):
			return laneOther
		default:
			return laneGone
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (c *laneConn) waitUntil(t time.Time) {
	c.readBy = t
	_ = c.SetReadDeadline(t) // reading from a closed connection returns an error
	if c.lane.closed.Load() {
		_ = c.SetReadDeadline(longAgo)
	}
}

// send writes an answer and removes the request, of the given length, from the buffer. The client
// may never read the answer, so the request uses no place that others need.
func (c *laneConn) send(answer []byte, request int) {
	c.leave()
	if now := time.Now(); c.writeBy.Sub(now) < writeTimeout {
		c.writeBy = now.Add(writeTimeout + laneSlack)
		_ = c.SetWriteDeadline(c.writeBy)
	}
	c.unanswered = false
	if _, err := c.Write(answer); err != nil {
		c.in = nil
		return
	}
	c.in = c.in[:copy(c.in, c.in[request:])]
}

// handedConn is a connection from which some bytes were already read.
type handedConn struct {
	net.Conn
	lane *Lane
	rest []byte
	unread
	framing

	// headBy is that of the lane, until net/http has set its deadlines for the first request. It
	// would give the client all of its time again.
	headBy time.Time
	toBody bool // headBy is for head and body
}

// SetReadDeadline implements net.Conn. net/http first sets the deadline for the head, then that for
// head and body.
func (c *handedConn) SetReadDeadline(t time.Time) error {
	if !c.headBy.IsZero() {
		t = earlier(t, c.headBy)
		if c.toBody {
			c.headBy = time.Time{}
		} else {
			c.headBy, c.toBody = c.headBy.Add(readTimeout-readHeaderTimeout), true
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// Read reads what net/http may read. Requests and chunks of which many arrive together do not make
// it wait for the client, so it would keep a processor for 10 ms, with each of many connections.
// Others come first at each Read and Write.
func (c *handedConn) Read(b []byte) (n int, err error) {
	if c.poison.Load() != nil {
		return copy(b, "\r\n\r\n"), nil // the head ends, and net/http reads nothing else
	}
	runtime.Gosched()
	if len(c.rest) == 0 {
		n, err = c.Conn.Read(b)
	} else if n = copy(b, c.rest); n == len(c.rest) {
		c.rest = nil
	} else {
		c.rest = c.rest[n:]
	}
	n = c.follow(b[:n])
	if wrong := parts.wait(c.Conn.RemoteAddr(), c.takeChunks(n)); wrong != nil {
		return 0, wrong
	}
	c.note(b[:n])
	return n, err
}

// Write replaces what net/http says of requests that it cannot read (unread.go).
func (c *handedConn) Write(b []byte) (int, error) {
	line, ok := unreadLine(b)
	if !ok {
		c.forget()
		n, err := c.Conn.Write(b)
		runtime.Gosched()
		return n, err
	}
	if wrong := c.poison.Load(); wrong != nil {
		line = []byte(*wrong)
	}
	if _, err := c.Conn.Write(c.lane.answerUnread(line, c.path())); err != nil {
		return 0, err
	}
	return len(b), nil
}

// lingering is how long and how much is read of a client that is still sending a request which was
// refused, so that it receives the answer. net/http waits as long for one with long headers.
const (
	lingering     = 500 * time.Millisecond
	lingeringMost = 64 << 10
)

// Close closes the connection. After a request that net/http must not read, it does so in two
// steps, and reads for up to lingering what the client is still sending.
func (c *handedConn) Close() error {
	if c.poison.Load() != nil && c.CloseWrite() == nil && c.Conn.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingeringMost)
	}
	return c.Conn.Close()
}

// CloseWrite allows net/http to close a connection in two steps, so that a client that is still
// sending receives the last answer.
func (c *handedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
