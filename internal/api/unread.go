package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"weir/internal/origin"
)

// net/http answers requests that it cannot read by itself, with a line of text. A client would
// find neither a problem document nor Weir-Decision in it. So the connections that net/http gets
// replace these answers. Of a gateway's request it is a denial: a customer may have sent what the
// gateway forwards, and whatever a customer can cause is a decision.
//
// Connections with HTTP/2 are not among them: net/http resets the stream of such a request, or
// answers 431 without a body of ours.

// unread keeps the beginning of the request that a connection brings. Reads and writes of a
// connection come from several goroutines.
type unread struct {
	mu    sync.Mutex
	begun [128]byte
	size  int
}

// note keeps what was read. A client that sends the next request before it has the answer to the
// last one may lose the beginning of it: its malformed request is then answered as any other.
func (u *unread) note(b []byte) {
	u.mu.Lock()
	u.size += copy(u.begun[u.size:], b)
	u.mu.Unlock()
}

// forget is called with every answer: what is read next begins a request.
func (u *unread) forget() {
	u.mu.Lock()
	u.size = 0
	u.mu.Unlock()
}

// path is that of the request which has begun; "" if it is not known.
func (u *unread) path() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, target, _ := strings.Cut(string(u.begun[:u.size]), " ")
	if scheme, rest, found := strings.Cut(target, "://"); found && !strings.Contains(scheme, "/") {
		_, path, _ := strings.Cut(rest, "/")
		target = "/" + path
	}
	if end := strings.IndexAny(target, " ?#\r\n"); end >= 0 {
		target = target[:end]
	}
	return target
}

// unreadLine returns the status line, without the version, of an answer that net/http gives by
// itself. Those of handlers have a Date; and no handler answers 417.
func unreadLine(b []byte) (line []byte, ok bool) {
	const (
		version     = "HTTP/1.1 "
		headers     = "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
		expectation = "HTTP/1.1 417 Expectation Failed\r\n"
		most        = 512 // bytes
	)
	if len(b) > most || !bytes.HasPrefix(b, []byte(version)) {
		return nil, false
	}
	line, rest, _ := bytes.Cut(b[len(version):], []byte("\r\n"))
	return line, bytes.HasPrefix(rest, []byte(headers)) || bytes.HasPrefix(b, []byte(expectation))
}

// answerUnread returns the answer in place of one with this status line.
func (l *Lane) answerUnread(line []byte, path string) []byte {
	p, id := unreadProblem(string(line)), string(origin.AppendID(nil))
	s := l.server.Load()
	if !isAuthorize(path) {
		if s != nil {
			s.metrics.observe(coldRoute, noRoute, p.Status, 0)
		}
		p.RequestID, p.Instance = id, "/"
		if harmlessPath(path) {
			p.Instance = path
		}
		return unreadAnswer(id, p.Status, decisionNone, p.ContentType(""), p.document())
	}
	var style HeaderStyle
	if s != nil {
		s.metrics.observe(routeAuthorize, "", http.StatusTooManyRequests, 0)
		s.metrics.problems.WithLabelValues(string(requestInvalid)).Inc()
		style = s.style
	}
	sc := scratches.get()
	defer scratches.put(sc)
	sc.encodeRefusal(style, requestInvalid)
	return unreadAnswer(id, http.StatusTooManyRequests, decisionDeny, "application/json", sc.out)
}

// unreadProblem is what a status line of net/http says.
func unreadProblem(line string) *Problem {
	status := http.StatusBadRequest
	for _, known := range []int{
		http.StatusExpectationFailed, http.StatusRequestHeaderFieldsTooLarge, http.StatusNotImplemented, http.StatusHTTPVersionNotSupported,
	} {
		if strings.HasPrefix(line, itoa(int64(known))) {
			status = known
		}
	}
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		return newProblem(status, codeHeadersTooLarge, "The request line and the headers may be at most 16 KiB long, in at most 100 lines.")
	case http.StatusNotImplemented:
		return newProblem(status, codeMalformedRequest, "The Transfer-Encoding is not supported. Send a Content-Length, or chunks.")
	case http.StatusExpectationFailed:
		return newProblem(status, codeMalformedRequest, "The header Expect may only be 100-continue.")
	}
	detail := "The request line or a header is not well-formed."
	if _, reason, found := strings.Cut(line, ": "); found {
		detail = "The request is not well-formed: " + reason + "."
	}
	return newProblem(status, codeMalformedRequest, detail)
}

// document is the problem's body.
func (p *Problem) document() []byte {
	body, err := json.Marshal(p)
	if err != nil { // strings and numbers only: cannot fail
		panic(err)
	}
	return body
}

// harmlessPath reports whether a path, of a request that is not well-formed, can be repeated as a
// URI.
func harmlessPath(path string) bool {
	return strings.HasPrefix(path, "/") && strings.Trim(path, "/.-_~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ""
}

func unreadAnswer(id string, status int, decision, contentType string, body []byte) []byte {
	answer := http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		Header: http.Header{
			"Cache-Control": noStore, "Content-Type": {contentType}, "Date": {httpDate(time.Now())},
			"X-Request-Id": {id}, decisionHeader: {decision}, "X-Content-Type-Options": noSniff,
		},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	var wire bytes.Buffer
	_ = answer.Write(&wire) // a buffer takes everything
	return wire.Bytes()
}
