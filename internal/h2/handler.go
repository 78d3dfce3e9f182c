package h2

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// handle gives a request to the handler. The caller holds the lock.
func (c *conn) handle(s *Call) {
	ctx, cancel := context.WithCancel(context.WithValue(c.ctx, http.LocalAddrContextKey, c.LocalAddr()))
	s.cancel = cancel
	go c.serveHandler(ctx, s)
}

func (c *conn) serveHandler(ctx context.Context, s *Call) {
	defer s.cancel()
	w := &responseWriter{call: s, header: http.Header{}}
	defer func() {
		if fault := recover(); fault != nil {
			w.broken = true
			if fault != http.ErrAbortHandler { // which a handler uses to end an answer
				c.server.Panicked(fault)
			}
		}
		w.finish(ctx.Err() != nil)
	}()
	r, err := s.request(ctx)
	if err != nil {
		http.Error(w, "The request is invalid.", http.StatusBadRequest)
		return
	}
	c.server.Handler.ServeHTTP(w, r)
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
	for _, f := range h.Fields {
		r.Header.Add(f.Name, f.Value)
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	r.Header.Del("Host")
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
		}
		s.bodyWait.wait(&c.mu)
	}
}

// Close ends the wait of Read.
func (b requestBody) Close() error {
	c := b.call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	b.call.bodyClosed = true
	b.call.bodyWait.wake()
	return nil
}

// responseWriter sends the answer of a handler. One goroutine at a time uses it.
type responseWriter struct {
	call     *Call
	header   http.Header
	trailers []string // declared before the header was written
	wrote    bool     // the header
	broken   bool     // the handler has panicked
}

// Header implements http.ResponseWriter.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(status int) { w.writeHeader(status, false) }

func (w *responseWriter) writeHeader(status int, end bool) {
	if w.wrote {
		return
	}
	w.wrote = true
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			w.trailers = append(w.trailers, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	fields := []hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(status)}}
	for name, values := range w.header {
		if w.isTrailer(name) {
			continue
		}
		fields = appendFields(fields, name, values)
	}
	w.sendHeaders(fields, end)
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

func (w *responseWriter) sendHeaders(fields []hpack.HeaderField, end bool) {
	s := w.call
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.accepts(s) {
		return
	}
	c.sendHeaders(s.id, c.encode(fields), end)
	if end {
		s.replied = true
		c.answered(s)
	}
}

// Write implements http.ResponseWriter. It waits while the client does not read.
func (w *responseWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	s := w.call
	if s.head.Method == http.MethodHead {
		return len(b), nil // the answer has no body
	}
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := 0
	for {
		if !c.accepts(s) {
			return sent, net.ErrClosed
		}
		sent += c.sendSome(s, b[sent:])
		if sent == len(b) {
			return sent, nil
		}
		c.flush(false)
		if !c.accepts(s) || s.sendWindow > 0 && c.sendWindow > 0 { // a change while it wrote
			continue
		}
		c.stick(s)
		s.windowWait.wait(&c.mu)
		c.unstick(s)
		s.stuckSince = time.Time{}
	}
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() {
	w.WriteHeader(http.StatusOK)
	c := w.call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush(true)
}

// finish ends the answer. A handler that was cancelled has answered only if it has set a trailer.
func (w *responseWriter) finish(cancelled bool) {
	s := w.call
	c := s.conn
	if !w.broken && (!cancelled || len(w.trailerFields()) > 0) {
		w.sendTrailers()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accepts(s) {
		code := http2.ErrCodeCancel
		if w.broken {
			code = http2.ErrCodeInternal
		}
		c.reset(s, code)
	}
	s.served = true
	c.settle(s)
	c.flush(true)
}

func (w *responseWriter) trailerFields() (fields []hpack.HeaderField) {
	for name, values := range w.header {
		if w.isTrailer(name) {
			fields = appendFields(fields, strings.TrimPrefix(name, http.TrailerPrefix), values)
		}
	}
	return fields
}

func (w *responseWriter) sendTrailers() {
	if !w.wrote {
		w.writeHeader(http.StatusOK, true)
		return
	}
	if fields := w.trailerFields(); len(fields) > 0 {
		w.sendHeaders(fields, true)
		return
	}
	s := w.call
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accepts(s) {
		c.framerWrites(c.framer.WriteData(s.id, true, nil))
		s.replied = true
		c.answered(s)
	}
}
