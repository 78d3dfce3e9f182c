package h2

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Call is a stream: a request and its answer. The lock of the connection guards its fields, except
// for those that never change.
type Call struct {
	conn   *conn
	id     uint32
	head   Head // unchanged once the stream is open
	direct bool // Config.Call answers it

	body       []byte // has arrived and was not read
	received   int64  // bytes of the body
	ended      bool   // the client has sent everything
	gone       bool   // was reset, or the connection has ended
	replied    bool   // the answer is known, but perhaps waits for a window
	closed     bool   // the answer was sent
	begun      bool   // somebody answers it
	served     bool   // and has returned
	bodyClosed bool   // the handler reads no more

	bodyWait, windowWait waiter

	window     int       // bytes that the client may still send
	credit     int       // bytes that were read, and that the client may send again when told so
	sendWindow int64     // bytes that the client accepts
	rest       []byte    // of an answer that nobody works on any more, which its client does not accept yet
	leaveRests func()    // ends that rest counts; nil: it does not
	plain      bool      // the answer ends with its body, and has no trailer
	unsent     int       // bytes that a handler has for the client while it waits for a window
	stuckSince time.Time // zero: it has not waited for a window
	blocked    bool      // its handler waits until the socket accepts more

	// Only requests to the handler use these.
	cancel         context.CancelFunc // nil: a direct call
	readDeadline   deadline
	writeDeadline  deadline
	bodyLate       bool // readDeadline has passed
	expectContinue bool // the client waits for status 100 before it sends the body
	headed         bool // the final header was sent
	trailer        []hpack.HeaderField
}

// Errors of Body.
var (
	ErrLate = errors.New("h2: the body took too long to arrive")
	ErrGone = errors.New("h2: the client has cancelled the request")
)

// Head returns the request's header list.
func (s *Call) Head() *Head { return &s.head }

// Remote returns the address of the client.
func (s *Call) Remote() netip.Addr { return s.conn.remote }

// Body returns the first n bytes of the body, or all of it if it is shorter (io.ErrUnexpectedEOF).
// If they have not arrived, it waits for them, at most until the deadline, or for Limits.Body if
// that is shorter. The bytes are valid until the call is answered.
func (s *Call) Body(n int, deadline time.Time) ([]byte, error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(s.body) < n && !s.ended && !s.gone {
		if err := s.await(n, deadline); err != nil {
			return s.body, err
		}
	}
	switch {
	case len(s.body) >= n:
		return s.body[:n], nil
	case s.gone:
		return s.body, ErrGone
	}
	return s.body, io.ErrUnexpectedEOF
}

// Arrived returns what has arrived of the body. Like Body, it returns the same bytes again.
func (s *Call) Arrived() []byte {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.body
}

// Complete returns the body, and whether it has arrived completely. Like Body, it returns the same
// bytes again.
func (s *Call) Complete() (body []byte, complete bool) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.body, s.ended
}

// await waits until the body has n bytes or ends. The caller holds the lock.
func (s *Call) await(n int, deadline time.Time) error {
	c := s.conn
	if more := n - len(s.body) - s.window; more > 0 {
		s.window += more
		c.framerWrites(c.framer.WriteWindowUpdate(s.id, uint32(more)))
		c.flush(false)
	}
	patience := c.server.Limits.Body
	if !deadline.IsZero() {
		patience = min(patience, time.Until(deadline))
	}
	late := false
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		s.bodyWait.wake()
	})
	defer timer.Stop()
	for len(s.body) < n && !s.ended && !s.gone {
		if late {
			return ErrLate
		}
		s.bodyWait.wait(&c.mu)
	}
	return nil
}

// waiter is a goroutine that waits for a change of a stream. The lock of the connection guards it.
type waiter struct{ changed chan struct{} }

// wait releases the lock until wake is called.
func (w *waiter) wait(lock *sync.Mutex) {
	changed := make(chan struct{})
	w.changed = changed
	lock.Unlock()
	<-changed
	lock.Lock()
}

func (w *waiter) wake() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// wake wakes all goroutines that wait for the stream. The caller holds the lock.
func (s *Call) wake() {
	s.bodyWait.wake()
	s.windowWait.wake()
}

// Answer answers a call of gRPC: the status 200, the body, and the trailer "grpc-status: 0".
func (s *Call) Answer(body []byte) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.accepts(s) {
		return
	}
	s.replied = true
	c.sendHeaders(s.id, c.answerHead.encode(c), false)
	if c.sendOrStick(s, body) {
		c.sendTail(s)
	}
}

// sendTail ends an answer after its body. The caller holds the lock.
func (c *conn) sendTail(s *Call) {
	switch {
	case s.plain:
	case s.trailer != nil:
		c.sendHeaders(s.id, c.encode(s.trailer), true)
	default:
		c.sendHeaders(s.id, c.answerTail.encode(c), true)
	}
	c.answered(s)
}

// AnswerHTTP answers a request with a header block, which begins with AppendStatus and continues
// with AppendField, and a body.
func (s *Call) AnswerHTTP(block, body []byte) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.accepts(s) {
		return
	}
	s.replied, s.plain = true, true
	if c.tableless {
		block = append([]byte{emptyTable}, block...)
	}
	c.sendHeaders(s.id, block, len(body) == 0)
	if c.sendOrStick(s, body) {
		c.sendTail(s)
	}
}

// Fail answers a call of gRPC without a body. fields are sent as they are, after the status 200
// and the content type.
func (s *Call) Fail(fields ...hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.accepts(s) {
		return
	}
	s.replied = true
	c.sendHeaders(s.id, c.encode(append([]hpack.HeaderField{{Name: ":status", Value: "200"}, contentType}, fields...)), true)
	c.answered(s)
}

var (
	contentType = hpack.HeaderField{Name: "content-type", Value: "application/grpc"}
	statusOK    = hpack.HeaderField{Name: "grpc-status", Value: "0"}
)

// accepts reports whether s can be answered. The caller holds the lock.
func (c *conn) accepts(s *Call) bool { return !s.gone && !s.replied && !c.dead }

// answered ends a stream after its last frame. The caller holds the lock.
func (c *conn) answered(s *Call) {
	c.frames.earn(c.frames.PerAnswer)
	c.resets.earn(c.resets.PerAnswer)
	c.strikes = 0
	c.reads()
	early := !s.ended
	if early { // the client need not send the rest
		c.framerWrites(c.framer.WriteRSTStream(s.id, http2.ErrCodeNo))
	}
	c.close(s, early)
}

// close removes a stream from the open ones. early says that the client may still send frames for
// it. The caller holds the lock.
func (c *conn) close(s *Call, early bool) {
	s.closed = true
	if s.leaveRests != nil {
		s.leaveRests()
		s.leaveRests = nil
	}
	delete(c.streams, s.id)
	c.closed[c.closedAt%len(c.closed)] = closedStream{s.id, early}
	c.closedAt++
	c.settle(s)
}

// settle frees a stream that has ended, and that nobody uses any more. The caller holds the lock,
// and calls it once for each of the two events.
func (c *conn) settle(s *Call) {
	if s.begun && !s.served || !s.closed && !s.gone {
		return
	}
	c.open--
	if s.direct && len(c.free) < maxIdleWorkers && cap(s.body) <= maxKeptBody && cap(s.head.Fields) <= maxKeptFields {
		s.head.reset()
		*s = Call{conn: c, head: s.head, body: s.body[:0]}
		c.free = append(c.free, s)
	}
	c.checkDrained()
}

// The memory of larger requests is not used again.
const (
	maxKeptBody   = 4 << 10 // bytes
	maxKeptFields = 64
)
