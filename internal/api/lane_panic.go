package api

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"weir/internal/origin"
)

// recovered prevents a panic on the connection's goroutine from ending the process. It counts and
// logs the panic, and answers 500 if nothing has been written for the current request. The caller
// closes the connection. Defer recovered itself: recover works only in the deferred function.
func (c *laneConn) recovered() {
	fault := recover()
	if fault == nil {
		return
	}
	id := string(origin.AppendID(nil))
	read := c.unanswered && !c.startedAt.IsZero() // head belongs to the current request
	if read && c.head.requestID != nil {
		id = string(c.head.requestID)
	}
	logger := slog.Default()
	s := c.lane.server.Load()
	if s != nil {
		s.metrics.panics.Inc()
		logger = s.logger
	}
	logger.LogAttrs(context.Background(), slog.LevelError, "panic on the check lane",
		slog.String("request_id", id), slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
	if !c.unanswered {
		return
	}
	// If the connection itself panics, no answer can be sent, and the log has the first panic
	// already.
	defer func() { _ = recover() }()
	status := c.sendFault(s, id)
	if s != nil {
		if read {
			route := routeCheck
			if c.head.authorize {
				route = routeAuthorize
			}
			s.metrics.observe(route, "", status, time.Since(c.startedAt))
		} else {
			s.metrics.observe(coldRoute, noRoute, status, 0)
		}
	}
	c.linger()
}

// sendFault answers the current request as the middleware does after a panic, and with
// "Connection: close".
func (c *laneConn) sendFault(s *server, id string) (status int) {
	p := *internalProblem()
	p.RequestID = id
	for _, line := range laneLines {
		if bytes.HasPrefix(c.in, line) {
			p.Instance = string(bytes.Fields(line)[1])
		}
	}
	if _, _, path, verdict := laneAsk(c.in); verdict == laneCheck {
		path, _, _ = bytes.Cut(path, []byte{'?'})
		p.Instance = authorizePath + string(path)
	}
	answer := http.Response{
		StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		Header: http.Header{
			"Cache-Control": noStore, "Content-Type": {p.ContentType("")}, "Date": {httpDate(time.Now())}, "X-Request-Id": {id},
			decisionHeader: undecided,
		},
	}
	body := p.document()
	if ask := c.asked; ask != nil && s != nil {
		body = s.gatewayFault(ask, &p, &answer)
	}
	if answer.StatusCode != http.StatusNoContent {
		answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	if c.head.withHead {
		answer.Request = &http.Request{Method: http.MethodHead}
	}
	var wire bytes.Buffer
	_ = answer.Write(&wire) // a buffer accepts all writes
	c.send(wire.Bytes(), 0)
	return answer.StatusCode
}

// gatewayFault makes the answer to a gateway after a panic, and returns its body.
func (s *server) gatewayFault(ask *authorizeQuestion, p *Problem, answer *http.Response) (body []byte) {
	if ask.reading {
		answer.StatusCode = ask.deniedStatus
		answer.Header["Content-Type"], answer.Header[decisionHeader] = jsonContentType, []string{decisionDeny}
		var sc scratch
		sc.encodeRefusal(s.style, requestInvalid)
		return sc.out
	}
	p = ask.undecidedAs(p)
	if s.failsOpenAfterPanic(context.Background(), ask, p) {
		answer.StatusCode = http.StatusNoContent
		delete(answer.Header, "Content-Type")
		return nil
	}
	answer.StatusCode = p.Status
	return p.document()
}

// linger closes the connection for writing, and then discards what the client still sends for a
// short time. Closing a connection with unread data resets it, and the client may lose the answer.
func (c *laneConn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, maxCheckBody))
}
