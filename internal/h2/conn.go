package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is a connection.
type conn struct {
	server *Server
	net.Conn
	socket net.Conn // below TLS
	remote netip.Addr
	tls    *tls.ConnectionState
	shaken bool            // the handshake was made before
	ctx    context.Context // of all requests to the handler
	cancel context.CancelFunc

	// Only the reader uses these.
	buffered  *bufio.Reader
	decoder   *hpack.Decoder
	decoding  *Head
	fresh     []*Call   // open, but begun by nobody
	partial   time.Time // since when the rest of a frame or a header block is missing; zero: it is not
	readBy    time.Time
	pinged    bool // since the client was last heard
	inWindow  int  // bytes that the client may send on all streams
	lastPing  time.Time
	idleSince time.Time // zero: a stream is open

	// framer has the reading part, which only the reader uses, and the writing part, which the lock
	// guards.
	framer *http2.Framer

	mu         sync.Mutex
	streams    map[uint32]*Call
	open       int    // streams, and those that were reset but are still being answered
	lastID     uint32 // highest stream of the client
	closed     [128]closedStream
	closedAt   int
	free       []*Call
	idle       []*worker
	stuck      []*Call // wait for a window, or with a rest for the output
	resting    int     // bytes of their rests
	sendWindow int64
	initial    int64 // window of new streams
	encoder    *hpack.Encoder
	block      bytes.Buffer
	answerHead fixedBlock
	answerTail fixedBlock
	tableless  bool // the client wants a smaller table, so it gets none
	frames     budget
	resets     budget
	parts      float64 // of bodies, that Config.Parts does not know of
	cutBytes   int     // sent in frames that a window has cut, and not yet counted
	strikes    int     // pings that came too early
	dead       bool
	draining   drainState
	timer      *time.Timer // of draining; nil: there was none
	// readAt is when the client last read, or the first stream began to wait. unreadTimer runs
	// while a stream waits for a window, and perhaps longer. unread says that the client has read
	// nothing for too long.
	readAt      time.Time
	unreadTimer *time.Timer
	unread      atomic.Bool

	greeted bool // the prefaces are exchanged

	out     output
	spare   []byte
	writing bool
	drained *sync.Cond // somebody has written the output
	// restsForOutput: a rest waits until the output is smaller.
	restsForOutput bool
	writeBy        time.Time // only the writing goroutine uses it
}

// closedStream is a stream that has ended.
type closedStream struct {
	id uint32
	// early: the server ended it first, so the client may still send frames for it.
	early bool
}

type drainState uint8

const (
	serving    drainState = iota
	announced             // the client knows that it must connect elsewhere
	refusing              // new streams are ignored
	toBeClosed            // all streams have ended
)

func newConn(server *Server, socket net.Conn) *conn {
	now := time.Now()
	c := &conn{
		server: server, Conn: socket, socket: socket,
		inWindow: server.Limits.ConnWindow, idleSince: now,
		streams: map[uint32]*Call{}, sendWindow: initialWindow, initial: initialWindow,
		answerHead: fixedBlock{fields: []hpack.HeaderField{{Name: ":status", Value: "200"}, contentType}},
		answerTail: fixedBlock{fields: []hpack.HeaderField{statusOK}},
		frames:     server.Limits.Frames.full(now), resets: server.Limits.Resets.full(now),
	}
	if tcp, ok := socket.RemoteAddr().(*net.TCPAddr); ok {
		c.remote = tcp.AddrPort().Addr()
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.buffered = bufio.NewReaderSize(source{c}, readBuffer)
	c.framer = http2.NewFramer(&c.out, c.buffered)
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.SetReuseFrames()
	c.decoder = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) { c.decoding.take(f, server.Limits.HeaderBytes) })
	c.decoder.SetMaxStringLength(server.Limits.HeaderBytes)
	c.encoder = hpack.NewEncoder(&c.block)
	c.drained = sync.NewCond(&c.mu)
	return c
}

const (
	initialWindow = 65535 // of HTTP/2
	maxWindow     = 1<<31 - 1
	readBuffer    = 16 << 10
	maxSettings   = 100
	// maxFragments is the number of frames of a header block. One is enough for every list that is
	// accepted.
	maxFragments = 16
	// decodeStep is how many bytes of a header block are decoded before the size of its list is
	// looked at. It is more than most blocks have.
	decodeStep = 512
	maxStrikes = 2
	// restAfter is how long a connection without streams keeps the memory and the goroutines of its
	// last ones.
	restAfter = time.Second
)

// serve serves the connection to its end.
func (c *conn) serve() {
	defer c.end()
	if err := c.greet(); err != nil {
		return
	}
	for {
		err := c.next()
		if err == nil {
			continue
		}
		var stream http2.StreamError // both are allocated
		var fatal http2.ConnectionError
		switch {
		case errors.As(err, &stream) && c.refuse(stream):
		case errors.As(err, &stream):
			c.giveUp(http2.ErrCodeEnhanceYourCalm)
			return
		case errors.As(err, &fatal):
			c.giveUp(http2.ErrCode(fatal))
			return
		case errors.Is(err, http2.ErrFrameTooLarge):
			c.giveUp(http2.ErrCodeFrameSize)
			return
		default:
			c.finishWriting()
			return
		}
	}
}

// greet makes the handshake, and exchanges the prefaces.
func (c *conn) greet() error {
	by := time.Now().Add(c.server.Limits.Head)
	if err := c.SetDeadline(by); err != nil {
		return err
	}
	if c.server.Handshake != nil && !c.shaken {
		secure, state, err := c.server.Handshake(c.socket)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.Conn, c.tls = secure, state
		c.mu.Unlock()
	}
	limits := &c.server.Limits
	c.mu.Lock()
	c.framerWrites(c.framer.WriteSettings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(limits.Streams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(limits.Window)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(limits.HeaderBytes)},
	))
	if more := limits.ConnWindow - initialWindow; more > 0 {
		c.framerWrites(c.framer.WriteWindowUpdate(0, uint32(more)))
	}
	c.flush(false)
	c.mu.Unlock()
	c.partial = time.Now()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.buffered, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		c.giveUp(http2.ErrCodeProtocol)
		return errors.New("h2: not HTTP/2")
	}
	frame, err := c.framer.ReadFrame()
	settings, ok := frame.(*http2.SettingsFrame)
	if err != nil || !ok || settings.IsAck() {
		c.giveUp(http2.ErrCodeProtocol)
		return errors.New("h2: no settings")
	}
	c.partial = time.Time{}
	c.mu.Lock()
	c.greeted = true
	c.mu.Unlock()
	if err := c.takeSettings(settings); err != nil {
		var fatal http2.ConnectionError
		errors.As(err, &fatal)
		c.giveUp(http2.ErrCode(fatal))
		return err
	}
	return nil
}

// next reads and processes a frame.
func (c *conn) next() error {
	header, err := c.framer.ReadFrameHeader()
	if err != nil {
		return err
	}
	if c.buffered.Buffered() < int(header.Length) {
		c.partial = time.Now()
	}
	frame, err := c.framer.ReadFrameForHeader(header)
	c.partial = time.Time{}
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		return c.takeHeaders(f)
	case *http2.DataFrame:
		return c.takeData(f)
	case *http2.SettingsFrame:
		return c.takeSettings(f)
	case *http2.PingFrame:
		return c.takePing(f)
	case *http2.WindowUpdateFrame:
		return c.takeWindow(f)
	case *http2.RSTStreamFrame:
		return c.takeReset(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
		return c.charge()
	case *http2.PushPromiseFrame, *http2.ContinuationFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	default: // GOAWAY of a client that will close, and unknown frames
		return c.charge()
	}
}

// charge counts a frame that brings nothing.
func (c *conn) charge() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frames.take(time.Now) {
		return nil
	}
	return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
}

// source is the connection as a reader of bytes. Before it waits for the client, it does what must
// not wait.
type source struct{ *conn }

func (r source) Read(b []byte) (int, error) {
	c := r.conn
	if err := c.beforeWait(); err != nil {
		return 0, err
	}
	for {
		if err := c.setReadBy(); err != nil {
			return 0, err
		}
		if c.unread.Load() { // after the deadline was set, which would replace that of endUnread
			return 0, http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		n, err := c.Conn.Read(b)
		if n > 0 {
			c.pinged = false
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !c.unread.Load() && !c.staysOpen() {
			return n, err
		}
	}
}

// beforeWait begins the calls whose bodies are incomplete, because only the key may decide how long
// to wait for them. It writes the output, and waits while the client does not read it.
func (c *conn) beforeWait() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.fresh {
		if !s.begun && c.streams[s.id] == s { // it may have ended, and be used for another request
			c.begin(s)
		}
	}
	clear(c.fresh)
	c.fresh = c.fresh[:0]
	c.flush(false)
	c.awaitOutput()
	switch {
	case len(c.streams) > 0:
		c.idleSince = time.Time{}
	case c.idleSince.IsZero():
		c.idleSince = time.Now()
	default:
		c.rest()
	}
	return nil
}

// rest frees what a connection without streams does not need for long, and begins to close one that
// has none for too long. The caller holds the lock.
func (c *conn) rest() {
	idle := time.Since(c.idleSince)
	if idle > restAfter {
		c.idle, c.free = c.dismiss(c.idle), nil
	}
	if idle > c.server.Limits.Idle {
		c.announce()
	}
}

// setReadBy sets the deadline for the client's next bytes.
func (c *conn) setReadBy() error {
	if !c.partial.IsZero() {
		c.readBy = time.Time{}
		return c.SetReadDeadline(c.partial.Add(c.server.Limits.Head))
	}
	patience := c.server.Limits.Ping
	if c.pinged {
		patience = c.server.Limits.Pong
	}
	now := time.Now()
	if left := c.readBy.Sub(now); left >= patience && left <= patience+patience/4 {
		return nil
	}
	c.readBy = now.Add(patience + patience/4)
	return c.SetReadDeadline(c.readBy)
}

// staysOpen decides what happens to a connection whose client is silent.
func (c *conn) staysOpen() bool {
	c.readBy = time.Time{}
	if !c.partial.IsZero() || c.pinged {
		return false
	}
	c.pinged = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idleSince.IsZero() {
		c.rest()
	}
	c.idle = c.dismiss(c.idle)
	c.framerWrites(c.framer.WritePing(false, [8]byte{'a', 'l', 'i', 'v', 'e'}))
	c.flush(false)
	return !c.dead
}

// dismiss ends idle workers.
func (c *conn) dismiss(idle []*worker) []*worker {
	for _, w := range idle {
		close(w.calls)
	}
	clear(idle)
	return idle[:0]
}

// refuse resets a stream, or returns false if that happens too often.
func (c *conn) refuse(e http2.StreamError) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[e.StreamID]; s != nil {
		c.reset(s, e.Code)
	} else {
		c.framerWrites(c.framer.WriteRSTStream(e.StreamID, e.Code))
	}
	return c.resets.take(time.Now)
}

// reset resets an open stream. The caller holds the lock.
func (c *conn) reset(s *Call, code http2.ErrCode) {
	c.framerWrites(c.framer.WriteRSTStream(s.id, code))
	c.lose(s, true)
}

// lose ends a stream that will not be answered. The caller holds the lock.
func (c *conn) lose(s *Call, early bool) {
	s.gone = true
	if s.cancel != nil {
		s.cancel()
	}
	if !s.stuckSince.IsZero() {
		c.unstick(s)
	}
	s.wake()
	c.drained.Broadcast() // its handler may wait for it
	c.close(s, early)
}

// giveUp tells the client why the connection ends.
func (c *conn) giveUp(code http2.ErrCode) {
	c.mu.Lock()
	c.framerWrites(c.framer.WriteGoAway(c.lastID, code, nil))
	c.mu.Unlock()
	c.finishWriting()
}

// kill ends the connection from another goroutine than the reader. The caller holds the lock.
func (c *conn) kill() {
	c.dead = true
	_ = c.socket.Close() // the reader's error ends the rest
}

// abort is kill for a caller without the lock.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kill()
}

// end releases everything.
func (c *conn) end() {
	c.mu.Lock()
	c.dead = true
	for _, timer := range []*time.Timer{c.timer, c.unreadTimer} {
		if timer != nil {
			timer.Stop()
		}
	}
	for _, s := range c.streams {
		c.lose(s, false)
	}
	c.idle = c.dismiss(c.idle)
	c.drained.Broadcast()
	c.mu.Unlock()
	c.cancel()
	_ = c.Conn.Close()
	_ = c.socket.Close() // if the handshake failed
}

// drain asks the client to connect elsewhere. Streams that it opens before it knows are answered.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.announce()
}

// announce is drain for a caller that holds the lock.
func (c *conn) announce() {
	if c.draining != serving || c.dead {
		return
	}
	if !c.greeted {
		c.kill()
		return
	}
	c.draining = announced
	c.framerWrites(c.framer.WriteGoAway(maxWindow, http2.ErrCodeNo, nil))
	c.framerWrites(c.framer.WritePing(false, drainPing))
	c.timer = time.AfterFunc(c.server.Limits.Drain, c.stopAccepting)
	c.flush(false)
}

// drainPing is answered when the client has read the announcement.
var drainPing = [8]byte{'g', 'o', 'i', 'n', 'g'}

// stopAccepting ignores new streams from now on.
func (c *conn) stopAccepting() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining != announced || c.dead {
		return
	}
	c.draining = refusing
	c.timer.Stop()
	c.framerWrites(c.framer.WriteGoAway(c.lastID, http2.ErrCodeNo, nil))
	c.checkDrained()
	c.flush(false)
}

// checkDrained cancels the handler's requests when no direct call is open, unless the server is
// patient, and closes the connection when no stream is. The caller holds the lock.
func (c *conn) checkDrained() {
	if c.draining != refusing {
		return
	}
	for _, s := range c.streams {
		if s.direct {
			return
		}
	}
	if !c.server.Patient {
		c.cancel()
	}
	if c.open > 0 {
		return
	}
	c.draining = toBeClosed
	// The client closes the connection when it has read everything. If not, the server does.
	c.timer = time.AfterFunc(c.server.Limits.Drain, c.abort)
	go c.halfClose()
}

// halfClose writes everything, and tells the client that nothing follows.
func (c *conn) halfClose() {
	c.mu.Lock()
	c.flushAll()
	conn := c.Conn
	c.mu.Unlock()
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // abort follows
	}
}
