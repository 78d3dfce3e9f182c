package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"weir/internal/check"
	"weir/internal/h2"
	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
)

// Checks over HTTP/2 are answered directly on the connection, by package h2, as the lane answers
// those over HTTP/1.1. A request in another form, and a check that cannot be decided, go to the
// handler of net/http with their whole body. Unlike with HTTP/1.1, the connection stays.

// http2Limits are those of net/http's servers (NewServer), and bounds for what it does not count.
var http2Limits = h2.Limits{
	Handlers: maxHandlers, HandlersOf: leastHandlers, Unread: maxUnreadAnswers, Rest: maxUnreadRests,
	Streams: maxStreams, HeaderBytes: maxHeaderBytes, Window: 64 << 10, ConnWindow: 1 << 20,
	Head: readHeaderTimeout, Body: checkBodyTimeout, BodyEnd: 20 * time.Millisecond, Write: writeTimeout, Request: readTimeout, Response: writeTimeout,
	Idle: idleTimeout, Ping: callPing, Pong: callPong, LeastPing: time.Second, Drain: callDrain,
	Frames: h2.Budget{Burst: 1000, PerSecond: 100, PerAnswer: 40},
	Resets: h2.Budget{Burst: 500, PerSecond: 100, PerAnswer: 1},
}

// newHTTP2 returns a server whose other requests handler answers.
func (l *Lane) newHTTP2(handler http.Handler) *h2.Server {
	return h2.New(h2.Config{
		Limits: http2Limits, Patient: true, Handler: handler, Call: l.checkHTTP2, Client: l.clientHTTP2, Parts: parts.waitHTTP2, Starts: starts,
		Direct: func(h *h2.Head) bool {
			_, ok := readHTTP2Head(h)
			return ok
		},
		Panicked: func(fault any) { l.panicked(fault, "") },
	})
}

// clientHTTP2 returns the address for which a request to the handler counts. Behind trusted
// proxies, it is the one that they report, because all clients of a proxy have its address.
func (l *Lane) clientHTTP2(remote netip.Addr, head *h2.Head) netip.Addr {
	s := l.server.Load()
	if s == nil || len(s.proxies) == 0 {
		return remote
	}
	var forwarded []string
	for i := range head.Fields {
		if f := &head.Fields[i]; f.Name == "x-forwarded-for" {
			forwarded = append(forwarded, f.Value)
		}
	}
	return s.proxies.Client(remote, forwarded)
}

// serveHTTP2 serves a connection to its end.
func (l *laneListener) serveHTTP2(c *laneConn) {
	state := c.tls().ConnectionState()
	l.http2.ServeConn(c.Conn, &state)
}

// readHTTP2Head reads the head of a check, or returns false for a request in any other form. It
// accepts the headers that the lane accepts over HTTP/1.1, except Connection, which HTTP/2 does not
// have. The length may be missing.
func readHTTP2Head(r *h2.Head) (h http2Head, ok bool) {
	if r.Method != http.MethodPost || r.Path != "/v1/check" && r.Path != "/check" {
		return h, false
	}
	h.deniedStatus = http.StatusTooManyRequests
	seen := 0
	for i := range r.Fields {
		f := &r.Fields[i]
		bit := laneHeader(f.Name)
		if bit < 0 || seen&bit != 0 || !visible(f.Value) || !h.take(bit, f.Value) {
			return h, false
		}
		seen |= bit
	}
	const needed = laneAuthorization | laneContentType
	return h, seen&needed == needed && laneHostname(r.Authority)
}

// visible reports whether a value has only visible ASCII and spaces.
func visible(value string) bool {
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			return false
		}
	}
	return true
}

// http2Head is the head of a check over HTTP/2.
type http2Head struct {
	key            string // the API key
	requestID      string // of the caller; "": none
	idempotencyKey string // "": none
	deniedStatus   int
	forwarded      bool // it has X-Forwarded-For
}

// take records a header, and reports whether the request can be answered directly.
func (h *http2Head) take(bit int, value string) bool {
	switch bit {
	case laneHost, laneConnection:
		return false
	case laneAuthorization:
		var ok bool
		h.key, ok = laneBearer(value)
		return ok
	case laneContentType:
		return value == "application/json"
	case laneRequestID:
		h.requestID = value
		return origin.HarmlessID(value)
	case laneIdempotencyKey:
		h.idempotencyKey = value
		return validCheckKey(value)
	case laneDeniedStatus:
		var ok bool
		h.deniedStatus, ok = laneDenied(value)
		return ok
	case laneForwarded:
		h.forwarded = true
	}
	return true
}

// http2Question is a check over HTTP/2.
type http2Question struct {
	http2Head
	call     *h2.Call
	capacity *capacity
	body     []byte
}

func (q *http2Question) credentials() (string, *Problem) { return q.key, nil }

// caller does not know who sent a request that was forwarded, as on the lane.
func (q *http2Question) caller() netip.Addr {
	if q.forwarded {
		return netip.Addr{}
	}
	return q.call.Remote()
}

// read waits for the body. While it waits, the request does not count as served.
func (q *http2Question) read(sc *scratch) *Problem {
	sc.idempotencyKey = q.idempotencyKey
	body, complete := q.call.Complete()
	if !complete {
		if !q.capacity.await(sc.share) {
			return overloaded()
		}
		var err error
		body, err = q.call.Body(maxCheckBody+1, time.Time{})
		if entered := q.capacity.resume(sc.share); !entered {
			return overloaded()
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) { // it is late, too long, or was cancelled
			return lateBody()
		}
	}
	if len(body) > maxCheckBody {
		return lateBody()
	}
	q.body = body
	return nil
}

func (q *http2Question) turns(bodies *bodyTurns, _ *scratch) *places.Turns[limit.TenantID] {
	return turnsFrom(bodies.small, len(q.body), largeCheck)
}

func (q *http2Question) decode(policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	return sc.decodeDirect(policy, q.body)
}

func (q *http2Question) refuseResource(_ *scratch, resource string) *Problem {
	return wrongResource(resource)
}

func (q *http2Question) together() bool { return false }

func (q *http2Question) planField(int) string { return "/plan" }

func (q *http2Question) encode(style HeaderStyle, decisions []check.Decision, sc *scratch) {
	sc.encodeCheck(style, &decisions[0])
}

// checkHTTP2 answers a check, or returns false if the handler must. A problem other than OVERLOADED
// is never answered here, and means that nothing was counted.
func (l *Lane) checkHTTP2(call *h2.Call) (answered bool) {
	s := l.server.Load()
	if s == nil || l.draining.Load() {
		return false
	}
	start := time.Now()
	defer s.capacity.leave()
	if !s.capacity.enter() {
		s.capacity.refuse()
		s.refuseHTTP2(call, start)
		return true
	}
	defer func() {
		if fault := recover(); fault != nil {
			l.failHTTP2(s, call, fault, start)
			answered = true
		}
	}()
	sc := scratches.get()
	q := &sc.http2
	q.http2Head, _ = readHTTP2Head(call.Head())
	q.call, q.capacity = call, s.capacity
	decisions, p := s.decide(context.Background(), q, sc)
	switch {
	case p == nil:
		status := http.StatusOK
		if !decisions[0].Allowed {
			status = q.deniedStatus
		}
		sc.wire = sc.appendBlock(sc.wire[:0], status, q, start)
		call.AnswerHTTP(sc.wire, sc.out)
		s.metrics.observe(routeCheck, "", status, time.Since(start))
		answered = true
	case p.Code == codeOverloaded:
		s.refuseHTTP2(call, start)
		answered = true
	}
	scratches.put(sc) // not after a panic, because a pipeline may still use it
	return answered
}

// refuseHTTP2 answers a check before anything of it is used, as refuseLane does.
func (s *server) refuseHTTP2(call *h2.Call, start time.Time) {
	r, id := &laneRefusals[0], idHTTP2(call)
	if call.Head().Path != "/v1/check" {
		r = &laneRefusals[1]
	}
	s.problemHTTP2(call, overloaded(), id, []byte(r.body+id+refusalBodyEnd), start)
	s.metrics.overloaded.Inc()
}

// idHTTP2 returns the id of a check over HTTP/2: that of the caller, or a new one.
func idHTTP2(call *h2.Call) string {
	if h, _ := readHTTP2Head(call.Head()); h.requestID != "" {
		return h.requestID
	}
	return string(origin.AppendID(nil))
}

// problemHTTP2 answers a check with a problem and its document, as the handler would.
func (s *server) problemHTTP2(call *h2.Call, p *Problem, id string, document []byte, start time.Time) {
	block := appendBlockStart(nil, p.Status, p.ContentType(""), call.Head().Authority)
	block = h2.AppendField(block, decisionHeader, decisionNone)
	if p.retryAfter > 0 {
		block = h2.AppendField(block, "retry-after", itoa(int64(p.retryAfter)))
	}
	block = h2.AppendField(block, "x-request-id", id)
	block = h2.AppendField(block, "date", httpDate(start))
	block = h2.AppendField(block, "content-length", itoa(int64(len(document))))
	call.AnswerHTTP(block, document)
	s.metrics.observe(routeCheck, "", p.Status, time.Since(start))
}

// appendBlock appends the header block of an answer, with the same headers as net/http would send.
func (sc *scratch) appendBlock(b []byte, status int, q *http2Question, at time.Time) []byte {
	b = appendBlockStart(b, status, "application/json", q.call.Head().Authority)
	from := 0
	for i := range sc.headers.count {
		b = h2.AppendField(b, sc.headers.names[i], sc.headers.buf[from:sc.headers.ends[i]])
		from = sc.headers.ends[i]
	}
	var space [32]byte
	if q.requestID != "" {
		b = h2.AppendField(b, "x-request-id", q.requestID)
	} else {
		b = h2.AppendField(b, "x-request-id", origin.AppendID(space[:0]))
	}
	b = h2.AppendField(b, "date", httpDate(at))
	return h2.AppendField(b, "content-length", strconv.AppendInt(space[:0], int64(len(sc.out)), 10))
}

// appendBlockStart appends the headers that do not depend on the decision.
func appendBlockStart(b []byte, status int, contentType, host string) []byte {
	b = h2.AppendStatus(b, status)
	b = h2.AppendField(b, "cache-control", "no-store")
	b = h2.AppendField(b, "content-type", contentType)
	b = h2.AppendField(b, "x-content-type-options", "nosniff")
	if isRemote(host) {
		b = h2.AppendField(b, "strict-transport-security", "max-age=31536000")
	}
	return b
}

// lastHost is the last host of a request over HTTP/2, because the next one usually has the same.
var lastHost atomic.Pointer[knownHost]

type knownHost struct {
	host   string
	remote bool
}

// isRemote reports whether a host is not this machine.
func isRemote(host string) bool {
	if last := lastHost.Load(); last != nil && last.host == host {
		return last.remote
	}
	known := &knownHost{host, !origin.IsLocal(host)}
	lastHost.Store(known)
	return known.remote
}

// failHTTP2 answers a check after a panic, as the middleware does.
func (l *Lane) failHTTP2(s *server, call *h2.Call, fault any, start time.Time) {
	p := *internalProblem()
	p.RequestID, p.Instance = idHTTP2(call), call.Head().Path
	l.panicked(fault, p.RequestID)
	s.problemHTTP2(call, &p, p.RequestID, p.document(), start)
}

// panicked counts and logs a panic. The id is that of the request; "": it is not known.
func (l *Lane) panicked(fault any, id string) {
	logger := slog.Default()
	if s := l.server.Load(); s != nil {
		s.metrics.panics.Inc()
		logger = s.logger
	}
	logger.LogAttrs(context.Background(), slog.LevelError, "panic on an HTTP/2 connection",
		slog.String("request_id", id), slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
}
