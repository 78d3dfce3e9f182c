package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/internal/origin"
	"weir/internal/places"
)

// handle gives a request to the handler. The caller holds the lock.
func (c *conn) handle(s *Call) {
	ctx := c.forHandler(s)
	if c.server.Starts == nil {
		go c.serveHandler(ctx, s)
		return
	}
	c.server.Starts.Start(origin.Within(s.client()).Client(), func(r *places.Run) { c.serveHandler(r.With(ctx), s) })
}

// forHandler prepares a request for the handler. The caller holds the lock.
func (c *conn) forHandler(s *Call) context.Context {
	ctx, cancel := context.WithCancel(context.WithValue(c.ctx, http.LocalAddrContextKey, c.LocalAddr()))
	s.direct, s.cancel = false, cancel
	if s.gone {
		cancel()
	}
	return ctx
}

func (c *conn) serveHandler(ctx context.Context, s *Call) {
	defer s.cancel()
	w := &responseWriter{call: s, header: http.Header{}}
	limits := &c.server.Limits
	w.within = origin.Within(s.client())
	var ok bool
	w.leave, ok = c.server.handlers.TakeShare(w.within, limits.Handlers, limits.HandlersOf)
	defer func() {
		if fault := recover(); fault != nil {
			w.failed = http2.ErrCodeInternal
			if fault != http.ErrAbortHandler { // which a handler uses to end an answer
				c.server.Panicked(fault)
			}
		}
		w.finish(ctx.Err() != nil)
	}()
	if !ok {
		w.failed = http2.ErrCodeRefusedStream
		return
	}
	r, err := s.request(ctx)
	if err != nil {
		http.Error(w, "The request is invalid.", http.StatusBadRequest)
		return
	}
	if limits.Request > 0 && r.Body != http.NoBody {
		_ = w.SetReadDeadline(time.Now().Add(limits.Request)) // it has no error
	}
	if limits.Response > 0 {
		_ = w.SetWriteDeadline(time.Now().Add(limits.Response)) // it has no error
	}
	c.server.Handler.ServeHTTP(w, r)
}

// client returns the address for which a request counts.
func (s *Call) client() netip.Addr {
	if client := s.conn.server.Client; client != nil {
		return client(s.conn.remote, &s.head)
	}
	return s.conn.remote
}

// request returns the request for a handler.
func (s *Call) request(ctx context.Context) (*http.Request, error) {
	h := &s.head
	target, err := url.ParseRequestURI(h.Path)
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: h.Method, URL: target, RequestURI: h.Path, Host: h.Authority, RemoteAddr: s.conn.RemoteAddr().String(),
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(h.Fields)), TLS: s.conn.tls, ContentLength: h.length,
		Body: requestBody{s},
	}
	var cookies []string
	for _, f := range h.Fields {
		if f.Name == "cookie" { // clients send each part alone, for a better compression
			cookies = append(cookies, f.Value)
			continue
		}
		r.Header.Add(f.Name, f.Value)
	}
	if cookies != nil {
		r.Header.Set("Cookie", strings.Join(cookies, "; "))
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	r.Header.Del("Host")
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.ended && len(s.body) == 0 {
		r.ContentLength, r.Body = 0, http.NoBody
	}
	s.expectContinue = strings.EqualFold(r.Header.Get("Expect"), "100-continue")
	return r.WithContext(ctx), nil
}

// requestBody reads the body of a handler's request.
type requestBody struct{ call *Call }

var errBodyClosed = errors.New("h2: body closed by handler")

func (b requestBody) Read(p []byte) (int, error) {
	s := b.call
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case len(s.body) > 0:
			n := copy(p, s.body)
			s.body = s.body[n:]
			s.refill(n)
			c.flush(false)
			return n, nil
		case s.gone:
			return 0, context.Canceled
		case s.ended:
			return 0, io.EOF
		case s.bodyClosed:
			return 0, errBodyClosed
		case s.bodyLate:
			return 0, os.ErrDeadlineExceeded
		}
		if s.invite() {
			c.flush(false) // releases the lock, so the body may have arrived
			continue
		}
		s.bodyWait.wait(&c.mu)
	}
}

// invite tells a client that waits for it to send the body, and lets it send much of a long body at
// once. It reports whether it had to. The caller holds the lock.
func (s *Call) invite() (news bool) {
	c := s.conn
	if s.expectContinue && !s.headed {
		s.expectContinue, news = false, true
		c.sendHeaders(s.id, c.encode([]hpack.HeaderField{{Name: ":status", Value: "100"}}), false)
	}
	rest := int64(longWindow)
	if s.head.length >= 0 {
		rest = min(rest, s.head.length-s.received)
	}
	if more := int(rest) - s.window; more > c.server.Limits.Window/2 {
		s.window += more
		c.framerWrites(c.framer.WriteWindowUpdate(s.id, uint32(more)))
		news = true
	}
	return news
}

// longWindow is how many bytes of a body a client may send before the handler that waits for them
// has read them. With less, a long body would take many round trips.
const longWindow = 1 << 20

// Close ends the wait of Read.
func (b requestBody) Close() error {
	c := b.call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	b.call.bodyClosed = true
	b.call.bodyWait.wake()
	return nil
}

// deadline is a time for a request to the handler. The lock of the connection guards it.
type deadline struct {
	timer *time.Timer
	round int // how often it was set
}

// set makes passed be called with the lock when t has come. The zero time is never. The caller
// holds the lock.
func (d *deadline) set(lock *sync.Mutex, t time.Time, passed func()) {
	d.round++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if t.IsZero() {
		return
	}
	round := d.round
	d.timer = time.AfterFunc(time.Until(t), func() {
		lock.Lock()
		defer lock.Unlock()
		if d.round == round {
			passed()
		}
	})
}

// SetReadDeadline is for http.ResponseController: when t has come, reading the body fails. The zero
// time means never.
func (w *responseWriter) SetReadDeadline(t time.Time) error {
	s := w.call
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.bodyLate = false
	s.readDeadline.set(&s.conn.mu, t, func() {
		s.bodyLate = true
		s.bodyWait.wake()
	})
	return nil
}

// SetWriteDeadline is for http.ResponseController: when t has come, the request is reset. The zero
// time means never.
func (w *responseWriter) SetWriteDeadline(t time.Time) error {
	s := w.call
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	s.writeDeadline.set(&c.mu, t, func() {
		if c.accepts(s) {
			c.reset(s, http2.ErrCodeInternal)
			c.flush(false)
		}
	})
	return nil
}
