package h2

import (
	"cmp"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/internal/origin"
)

// responseWriter sends the answer of a handler. One goroutine at a time uses it.
//
// Like net/http, it keeps the first bytes of the body, so that many small writes are few frames and
// a short answer has its length and its type in the header.
type responseWriter struct {
	call     *Call
	header   http.Header
	status   int                 // 0: not known yet
	fields   []hpack.HeaderField // the header, once the status is known
	trailers []string            // declared in the header
	typed    bool                // the header says what the body is
	sized    bool                // and how long
	closing  bool                // the client must use another connection afterwards
	sent     bool                // the header
	held     []byte              // the part of the body that is not sent
	failed   http2.ErrCode       // why there is no answer; 0: the handler has not failed

	within origin.Networks // for which the request counts
	leave  func()          // ends its place among the handlers; nil: it has none
	read   func()          // ends that its answer counts as unread; nil: it does not
}

// maxHeld is the number of bytes of a body that are kept before they are sent.
const maxHeld = 4 << 10

// Header implements http.ResponseWriter.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status < 200 {
		w.sendHeaders(w.headerFields(status), false)
		return
	}
	w.status = status
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			w.trailers = append(w.trailers, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	w.fields = w.headerFields(status)
	if w.header["Date"] == nil {
		w.fields = append(w.fields, hpack.HeaderField{Name: "date", Value: time.Now().UTC().Format(http.TimeFormat)})
	}
	w.typed = w.header["Content-Type"] != nil || w.header["Content-Encoding"] != nil
	w.sized = w.header["Content-Length"] != nil
	w.closing = w.header.Get("Connection") == "close"
}

func (w *responseWriter) headerFields(status int) []hpack.HeaderField {
	fields := []hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(status)}}
	for name, values := range w.header {
		if !w.isTrailer(name) {
			fields = appendFields(fields, name, values)
		}
	}
	return fields
}

func (w *responseWriter) isTrailer(name string) bool {
	if strings.HasPrefix(name, http.TrailerPrefix) {
		return true
	}
	for _, trailer := range w.trailers {
		if trailer == name {
			return true
		}
	}
	return false
}

func appendFields(fields []hpack.HeaderField, name string, values []string) []hpack.HeaderField {
	name = strings.ToLower(name)
	if !validName(name) || name == "connection" || name == "transfer-encoding" {
		return fields
	}
	for _, value := range values {
		fields = append(fields, hpack.HeaderField{Name: name, Value: value})
	}
	return fields
}

// hasBody reports whether the answer may have a body.
func (w *responseWriter) hasBody() bool {
	return w.call.head.Method != http.MethodHead && w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// sendHead sends the header before the first bytes of the body. complete says that they are the
// whole body. end says that the stream ends with the header.
func (w *responseWriter) sendHead(first []byte, complete, end bool) {
	if w.sent {
		return
	}
	w.sent = true
	if permits := w.status != http.StatusNoContent && w.status != http.StatusNotModified; permits {
		if head := w.call.head.Method == http.MethodHead; complete && !w.sized && (len(first) > 0 || !head) {
			w.fields = append(w.fields, hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(len(first))})
		}
		if !w.typed && len(first) > 0 {
			w.fields = append(w.fields, hpack.HeaderField{Name: "content-type", Value: http.DetectContentType(first)})
		}
	}
	w.sendHeaders(w.fields, end)
	if w.closing {
		w.call.conn.drain()
	}
}

func (w *responseWriter) sendHeaders(fields []hpack.HeaderField, end bool) {
	s := w.call
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.accepts(s) {
		return
	}
	s.headed = s.headed || w.sent
	c.sendHeaders(s.id, c.encode(fields), end)
	if end {
		s.replied = true
		c.answered(s)
	}
}

// Write implements http.ResponseWriter. It waits while the client does not read.
func (w *responseWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if len(w.held)+len(b) > maxHeld {
		if len(w.held) == 0 {
			w.sendHead(b, false, false)
		} else if err := w.sendHeld(); err != nil {
			return 0, err
		}
	}
	if len(b) > maxHeld {
		return len(b), w.sendBody(b)
	}
	w.held = append(w.held, b...)
	return len(b), nil
}

// sendHeld sends the header and what is held of the body.
func (w *responseWriter) sendHeld() error {
	w.sendHead(w.held, false, false)
	err := w.sendBody(w.held)
	w.held = w.held[:0]
	return err
}

// sendBody sends a part of the body.
func (w *responseWriter) sendBody(b []byte) error {
	s := w.call
	c := s.conn
	if !w.hasBody() {
		b = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stuck := false
	defer w.endUnread()
	for len(b) > 0 {
		if w.relieve(); !c.accepts(s) {
			break
		}
		part := b[:min(len(b), maxOutput)]
		sent := c.sendSome(s, part, false)
		if sent > 0 { // clients that measure the bandwidth send a ping for it
			c.strikes = 0
		}
		b = b[sent:]
		if sent == len(part) {
			continue
		}
		w.beginUnread()
		c.flush(false)
		if !c.accepts(s) || s.sendWindow > 0 && c.sendWindow > 0 { // a change while it wrote
			continue
		}
		c.stick(s)
		s.unsent, stuck = len(b), true
		s.windowWait.wait(&c.mu)
		c.unstick(s)
		s.stuckSince = time.Time{}
	}
	w.relieve()           // also after the last part: the next one may be of another Write
	if stuck && !c.dead { // it may have been woken for space that it does not use
		c.resume()
		c.flush(false)
	}
	if !c.accepts(s) {
		return net.ErrClosed
	}
	return nil
}

// relieve writes the output if it has grown large, before more is added to it: however many answers
// a connection has, its output is that large, and one part of one of them. The caller holds the
// lock.
func (w *responseWriter) relieve() {
	c := w.call.conn
	if len(c.out.b) <= maxOutput {
		return
	}
	w.beginUnread()
	w.call.blocked = true
	for len(c.out.b) > maxOutput && c.writing && !c.dead && !w.call.gone {
		c.drained.Wait()
	}
	if len(c.out.b) > maxOutput {
		c.flush(false)
	}
	w.call.blocked = false
}

// beginUnread ends the place of a request, because its answer waits for the client: for a window,
// or until the socket accepts more. From then on, it counts as unread. An answer that already does
// has made progress, and is the newest again. The caller holds the lock.
func (w *responseWriter) beginUnread() {
	w.endPlace()
	w.endUnread()
	s := w.call
	w.read = s.conn.server.unread.Enter(func() { s.conn.drop(s) }, w.within[:]...)
}

func (w *responseWriter) endUnread() {
	if w.read != nil {
		w.read()
		w.read = nil
	}
}

// endPlace ends the place of a request among the handlers.
func (w *responseWriter) endPlace() {
	if w.leave != nil {
		w.leave()
		w.leave = nil
	}
}

// drop resets a stream whose answer is not read, because too many are not. If it waits for the
// socket, the connection ends: what is in its output cannot be withdrawn otherwise.
func (c *conn) drop(s *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.accepts(s):
	case s.blocked:
		c.kill()
	default:
		c.reset(s, http2.ErrCodeEnhanceYourCalm)
		c.flush(false)
	}
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController. The request keeps its place while up to
// maxOutput bytes wait for the socket: only streams of events flush, and they have one while they
// last.
func (w *responseWriter) FlushError() error {
	w.WriteHeader(http.StatusOK)
	err := w.sendHeld()
	c := w.call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush(true)
	return err
}

// finish ends the answer. A handler that was cancelled has answered only if it has set a trailer.
func (w *responseWriter) finish(cancelled bool) {
	s := w.call
	c := s.conn
	answers := w.failed == 0 && (!cancelled || len(w.trailerFields()) > 0)
	if answers && !w.sent {
		s.awaitEnd()
	}
	w.endPlace() // before the rest is written, which a client that does not read can delay
	if answers {
		w.end()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.readDeadline.set(&c.mu, time.Time{}, nil)
	s.writeDeadline.set(&c.mu, time.Time{}, nil)
	if c.accepts(s) {
		c.reset(s, cmp.Or(w.failed, http2.ErrCodeCancel))
	}
	s.served = true
	c.settle(s)
	c.flush(true)
}

// end sends what is missing of the answer.
func (w *responseWriter) end() {
	w.WriteHeader(http.StatusOK)
	trailer := w.trailerFields()
	if !w.sent && len(trailer) == 0 && (!w.hasBody() || len(w.held) == 0) {
		w.sendHead(w.held, true, true)
		return
	}
	w.sendHead(w.held, true, false)
	w.sendRest(trailer)
}

// sendRest sends the end of an answer. The handler does not wait until the client reads it.
func (w *responseWriter) sendRest(trailer []hpack.HeaderField) {
	s := w.call
	c := s.conn
	body := w.held
	if !w.hasBody() {
		body = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.accepts(s) {
		return
	}
	s.replied, s.plain, s.trailer = true, len(trailer) == 0, trailer
	if s.plain && len(body) == 0 {
		c.framerWrites(c.framer.WriteData(s.id, true, nil))
	}
	if c.sendOrStick(s, body) {
		c.sendTail(s)
	}
}

func (w *responseWriter) trailerFields() (fields []hpack.HeaderField) {
	for name, values := range w.header {
		if w.isTrailer(name) {
			fields = appendFields(fields, strings.TrimPrefix(name, http.TrailerPrefix), values)
		}
	}
	return fields
}
