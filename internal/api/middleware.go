package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/tenants"
)

// request is the state of one request. It is also the ResponseWriter of all handlers, to record the
// status, so that both need only one allocation.
type request struct {
	http.ResponseWriter
	id       string
	capacity *capacity
	status   int // 0 until the head is written
	hot      hotRoute
	actor    tenants.Actor
	authed   bool
	tenant   limit.TenantID // of the key of a hot route, as soon as it is known
	code     string         // of the problem that a hot route answered; "" for none
	left     bool           // it no longer counts as in flight
	unread   bool           // its body was refused because it is too large, and is not read to its end
	resting  bool           // it has paused before its answer, or does not pause
	rested   time.Duration  // for which it has
	// kind counts the tenant's requests to the admin API; nil: it is none of them.
	kind *atomic.Int64
	// place ends its place among those that others wait for; nil: it has none.
	place func()
	// list ends its turn among lists and documents that are created; nil: it has none.
	list *listTurn
	// turn ends its turn among bodies that are decoded; nil: it has none.
	turn func()
	// end ends what its answer takes until it is sent; nil: nothing.
	end func()

	// ctx is the context that net/http gave the request over HTTP/1.1; nil: none, over HTTP/2 and
	// in tests.
	ctx context.Context
	// arrived is the request as it arrived; nil in tests.
	arrived *http.Request

	// Memory that every check needs, to avoid allocations: the id, and the headers of a decision.
	headers [1 + len(headerNames)]string
}

// WriteHeader stores the status.
func (q *request) WriteHeader(status int) {
	if q.status == 0 && status >= 200 { // 1xx is not the answer
		q.answer(status)
	}
	q.ResponseWriter.WriteHeader(status)
}

func (q *request) Write(b []byte) (int, error) {
	if q.status == 0 {
		q.answer(http.StatusOK)
	}
	return q.ResponseWriter.Write(b)
}

// answer begins the answer. From then on, the request waits for nobody but its client, who may
// never read, so it uses no place or turn that others need. It still counts for its tenant.
//
// Over HTTP/1.1, a read error, such as a passed deadline, cancels the context of the connection.
// All later requests on the connection would fail, so it is closed.
func (q *request) answer(status int) {
	q.status = status
	if q.ctx != nil && q.ctx.Err() != nil {
		q.Header()["Connection"] = closeConnection
	}
	q.leaveOthers()
	q.endTurn()
	if q.hot == coldRoute && status >= http.StatusMultipleChoices && status != http.StatusNotModified {
		q.rest()
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (q *request) Unwrap() http.ResponseWriter { return q.ResponseWriter }

// leaveOthers ends that the request counts among those of other clients.
func (q *request) leaveOthers() {
	if q.left {
		return
	}
	q.left = true
	q.capacity.leave()
	if q.place != nil {
		q.place()
	}
}

// leave ends that the request counts at all. A stream calls it before it ends.
func (q *request) leave() {
	q.leaveOthers()
	q.endTurn()
	if q.kind != nil {
		q.kind.Add(-1)
		q.kind = nil
	}
	if q.end != nil {
		q.end()
		q.end = nil
	}
}

// atEnd calls do when the request no longer counts.
func (q *request) atEnd(do func()) { q.end = before(do, q.end) }

// before returns a function that calls do and then next, which may be nil.
func before(do, next func()) func() {
	return func() {
		do()
		if next != nil {
			next()
		}
	}
}

// untilAnswer calls do when the answer begins, or else when the request ends without one. It does
// not do so for a request whose answer has begun.
func (q *request) untilAnswer(do func()) { q.place = before(do, q.place) }

type requestKey struct{}

func requestFrom(ctx context.Context) *request {
	q, _ := ctx.Value(requestKey{}).(*request)
	return q
}

// requestID returns the id of the request of ctx, or "".
func requestID(ctx context.Context) string {
	if q := requestFrom(ctx); q != nil {
		return q.id
	}
	return ""
}

// actorFrom returns the authenticated actor. It panics if authenticate has not run: a handler
// without a key must not call it.
func actorFrom(ctx context.Context) tenants.Actor {
	q := requestFrom(ctx)
	if q == nil || !q.authed {
		panic("api: actorFrom on a route without authenticate")
	}
	return q.actor
}

// track is the outermost middleware. It gives the request its id, limits concurrent requests,
// converts a panic to an answer, and counts and logs answers.
func (s *server) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		q := &request{ResponseWriter: w, id: origin.RequestID(r), capacity: s.capacity, arrived: r}
		if r.ProtoMajor == 1 {
			q.ctx = r.Context()
		}
		q.headers[0] = q.id
		w.Header()["X-Request-Id"] = q.headers[0:1:1]
		if isHot(r.URL.Path) {
			w.Header()[decisionHeader] = undecided
		}
		SetBrowserHeaders(w.Header(), r)
		dropOddAccept(r.Header)
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
		defer q.discardRest(r)
		defer s.finish(q, r, start)

		// Monitoring must work especially when the process is overloaded.
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		health := reads && (r.URL.Path == healthPath || r.URL.Path == readyPath)
		q.resting = health // it does not pause
		defer q.leave()
		if !s.capacity.enter() && !health {
			s.capacity.refuse()
			if isAuthorize(r.URL.EscapedPath()) {
				s.shedGateway(r)
				return
			}
			writeProblem(q, r, overloaded())
			return
		}
		next.ServeHTTP(q, r)
	})
}

// SetBrowserHeaders sets the headers with which a browser that opens an answer neither guesses its
// type nor comes back without TLS.
func SetBrowserHeaders(h http.Header, r *http.Request) {
	h["X-Content-Type-Options"] = noSniff
	if r.TLS != nil && !origin.IsLocal(r.Host) { // it would also affect http://localhost on other ports
		h["Strict-Transport-Security"] = strictTransport
	}
}

func (s *server) finish(q *request, r *http.Request, start time.Time) {
	if fault := recover(); fault != nil {
		if fault == http.ErrAbortHandler { // net/http compares it in the same way
			panic(fault)
		}
		s.notePanic(r.Context(), q, fault)
		if q.status != 0 { // the head was sent: the client must see that the body is incomplete
			panic(http.ErrAbortHandler)
		}
		writeProblem(q, r, internalProblem())
	}
	if q.status == 0 {
		q.status = http.StatusOK
	}
	took := time.Since(start) - q.rested
	if q.hot != coldRoute {
		s.metrics.observe(q.hot, "", q.status, took)
		if q.code != "" {
			s.metrics.problems.WithLabelValues(q.code).Inc()
		}
		return
	}
	route := ""
	if rctx := chi.RouteContext(r.Context()); rctx != nil && q.status != http.StatusMethodNotAllowed {
		route = rctx.RoutePattern()
	}
	s.metrics.observe(coldRoute, route, q.status, took)
	if route != healthPath && route != readyPath { // every balancer requests them every second
		s.logAccess(q, r, route, took)
	}
}

// notePanic counts and logs a panic. Its caller was deferred, so that the stack is that of the
// panic.
func (s *server) notePanic(ctx context.Context, q *request, fault any) {
	s.metrics.panics.Inc()
	s.logger.LogAttrs(ctx, slog.LevelError, "panic while serving a request",
		slog.String("request_id", q.id), slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
}

// errorLevel is the level of a failed request. If the client has disconnected, what it interrupted
// is no fault of the service.
func errorLevel(ctx context.Context) slog.Level {
	if errors.Is(ctx.Err(), context.Canceled) {
		return slog.LevelInfo
	}
	return slog.LevelError
}

// logAccess writes the log line of a request outside the hot path. It contains the pattern of the
// route and not the path, because a path contains subjects and a query may contain keys.
func (s *server) logAccess(q *request, r *http.Request, route string, took time.Duration) {
	level := slog.LevelInfo
	if q.status >= 500 {
		level = errorLevel(r.Context())
	}
	var tenant uuid.UUID
	if q.authed {
		tenant = q.actor.TenantID()
	}
	if !s.logger.Enabled(r.Context(), level) || !s.access.Take(tenant, q.status >= http.StatusBadRequest) {
		return
	}
	if route == "" {
		route = noRoute
	}
	attrs := make([]slog.Attr, 0, 6)
	attrs = append(attrs, slog.String("request_id", q.id), slog.String("method", knownMethod(r.Method)),
		slog.String("route", route), slog.Int("status", q.status), slog.Int64("duration_us", took.Microseconds()))
	if q.authed {
		attrs = append(attrs, slog.String("tenant_id", tenant.String()))
	}
	s.logger.LogAttrs(r.Context(), level, "request", attrs...)
}

// authenticate allows only requests with a valid API key. Handlers get the actor with actorFrom.
func authenticate(authenticator *tenants.Authenticator) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p := authenticateRequest(authenticator, requestFrom(r.Context()), r); p != nil {
				writeProblem(w, r, p)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// authenticateRequest returns the actor of the API key in the Authorization header. Keys are
// accepted only there, because URLs and cookies are logged and sent to other sites.
func authenticateRequest(authenticator *tenants.Authenticator, q *request, r *http.Request) *Problem {
	key, p := bearer(r.Header["Authorization"])
	if p == nil {
		q.actor, p = authenticateKey(r.Context(), authenticator, key)
		if p == nil && q.actor.BoundToAddresses() && !q.actor.MayConnect(addressOf(r)) {
			p = wrongAddress()
		}
	}
	q.authed = p == nil
	return p
}

// authenticateKey returns the actor of an API key.
func authenticateKey(ctx context.Context, authenticator *tenants.Authenticator, key string) (tenants.Actor, *Problem) {
	actor, err := authenticator.Authenticate(ctx, key)
	if err == nil {
		return actor, nil
	}
	return actor, problemOf(err)
}

const challenge = `Bearer realm="weir"`

func unauthorized(code, detail string) *Problem {
	return newProblem(http.StatusUnauthorized, code, detail).withHeader("Www-Authenticate", challenge)
}

// bearer returns the key in the Authorization header: one header, the scheme in any letter case,
// one space, the key.
func bearer(values []string) (key string, p *Problem) {
	switch {
	case len(values) == 0:
		return "", unauthorized(codeMissingKey, "Send the API key as \"Authorization: Bearer KEY\".")
	case len(values) > 1:
		// It is unknown which of them a proxy has validated.
		return "", invalidHeader("Authorization", isRepeated)
	}
	const scheme = "bearer"
	value := values[0]
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", unauthorized(codeMissingKey, "The Authorization header is not of the Bearer scheme. Send \"Authorization: Bearer KEY\".")
	}
	key, spaced := strings.CutPrefix(value[len(scheme):], " ")
	if !spaced || key == "" || strings.ContainsAny(key, " \t") {
		return "", unauthorized(codeMalformedKey, "The Authorization header must be \"Bearer\", one space and the API key.")
	}
	return key, nil
}

// lackingScope returns nil if the actor has the scope.
func lackingScope(actor tenants.Actor, scope tenants.Scope) *Problem {
	if actor.Has(scope) {
		return nil
	}
	return newProblem(http.StatusForbidden, codeInsufficientScope, "This operation requires an API key with the scope \""+string(scope)+"\".")
}

// jsonBody returns nil if the body is declared as uncompressed JSON in UTF-8.
func jsonBody(h http.Header) *Problem {
	// Nothing is decompressed, because a few bytes could expand to any size.
	if _, encoded := h["Content-Encoding"]; encoded {
		return newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType, "Content-Encoding is not supported. Send the body uncompressed.")
	}
	types := h["Content-Type"]
	if len(types) == 1 && (types[0] == "application/json" || isJSON(types[0])) {
		return nil
	}
	return newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType, "Send the body as \"Content-Type: application/json\", in UTF-8.")
}

func isJSON(contentType string) bool {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != "application/json" || len(params) > 1 {
		return false
	}
	charset, given := params["charset"]
	return len(params) == 0 || given && strings.EqualFold(charset, "utf-8")
}

// readBody reads the whole body into buf, which it may grow. If a body has more than limit bytes,
// it is refused without reading the rest, and its connection is closed.
func readBody(r *http.Request, buf []byte, limit int) ([]byte, *Problem) {
	if r.ContentLength > int64(limit) {
		return buf, bodyTooLarge(r, limit)
	}
	buf = buf[:0]
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, growth(r.ContentLength, len(buf)))
		}
		n, err := r.Body.Read(buf[len(buf):min(cap(buf), limit+1)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > limit:
			return buf, bodyTooLarge(r, limit)
		case err == nil:
		case err == io.EOF: // a wrapped io.EOF would be an early end
			return buf, nil
		default:
			// The client has disconnected, is too slow, or sent a wrong length: it may not
			// understand an answer on this connection as the last one. A slow client has also used
			// up the time for the answer.
			if q := requestFrom(r.Context()); q != nil {
				_ = http.NewResponseController(q.ResponseWriter).SetWriteDeadline(time.Now().Add(lingerTimeout))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return buf, closing(r, lateBody())
			}
			return buf, closing(r, newProblem(http.StatusBadRequest, codeMalformedJSON, "The body ended before it was complete."))
		}
	}
}

// trusted is how much of a body must have arrived before memory for all of it is taken.
const trusted = 32 << 10

// growth returns for how many bytes more a buffer needs room, after so many of a body. Memory that
// doubles up to 256 KiB takes longer than all else that an event with a wrong signature takes.
func growth(length int64, read int) int {
	if read < trusted {
		return max(read, 512)
	}
	return max(int(length)-read+1, read/4) // one more, for the end; without a length, it is negative
}

// setBodyDeadline sets when the body of a request must have arrived. When the body has ended,
// net/http removes the deadline, and waits for the client to disconnect. A request without a body
// therefore gets no deadline: it would end that wait, and with it the context of the connection.
//
// If the connection does not support deadlines, as in some tests, readTimeout applies.
func setBodyDeadline(w http.ResponseWriter, r *http.Request, after time.Duration) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(after))
	}
}

func lateBody() *Problem {
	return newProblem(http.StatusRequestTimeout, codeRequestTimeout, "The body took too long to arrive.")
}

func bodyTooLarge(r *http.Request, limit int) *Problem {
	if q := requestFrom(r.Context()); q != nil {
		q.unread = true
	}
	return closing(r, newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, "The body may be at most "+itoa(int64(limit))+" bytes long."))
}

// lingerTimeout is how long the rest of a refused body is read and discarded before the connection
// is closed, because a client that is disconnected while it sends may never see the answer.
const lingerTimeout = 500 * time.Millisecond

// How much of a body that is too large is read and discarded, in bytes, and for how long.
const (
	maxDiscarded   = 8 << 20
	discardTimeout = 2 * time.Second
)

// discardRest sends the answer to a request whose body is too large, and then discards what the
// client still sends: most clients read the answer only after they have sent everything, and
// net/http would reset the connection before.
func (q *request) discardRest(r *http.Request) {
	if !q.unread || r.ProtoMajor != 1 || r.Header.Get("Expect") != "" {
		return // over HTTP/2 the answer is not lost, and who expects 100 has sent nothing
	}
	connection := http.NewResponseController(q.ResponseWriter)
	if connection.Flush() == nil && connection.SetReadDeadline(time.Now().Add(discardTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, r.Body, maxDiscarded)
	}
}

// closing closes the connection after the answer.
func closing(r *http.Request, p *Problem) *Problem {
	if q := requestFrom(r.Context()); q != nil {
		// If this is not possible, the server's own timeout has the same effect, later.
		_ = http.NewResponseController(q.ResponseWriter).SetReadDeadline(time.Now().Add(lingerTimeout))
	}
	return p.withHeader("Connection", "close")
}

func knownMethod(method string) string {
	for _, known := range methods {
		if method == known {
			return known
		}
	}
	return "other"
}
