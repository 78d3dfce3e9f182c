package api

import (
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"weir/internal/check"
	"weir/internal/route"
)

// Envoy, and every gateway based on it, calls envoy.service.ratelimit.v3.RateLimitService before it
// forwards a request. The call has a domain and descriptors, each of which is a list of entries. A
// descriptor becomes one check (envoy_read.go). All checks of a call are decided as one: all are
// charged, or none.
//
// As for /v1/authorize, a customer must not be able to switch the limiter off. If the call fails,
// Envoy allows the request, unless failure_mode_deny is set. Every error that a customer can cause
// is therefore a decision. Only mistakes of the gateway and failures of Weir are errors of the
// call.
//
// The messages are decoded and encoded by hand (envoy_read.go, envoy_answer.go). A protobuf library
// refuses a message with a text that is not UTF-8, and such a text may be a customer's header. The
// call would then fail, and the request would be allowed.

const (
	envoyService = "envoy.service.ratelimit.v3.RateLimitService"
	envoyMethod  = "ShouldRateLimit"
	envoyFile    = "envoy/service/ratelimit/v3/rls.proto"
	envoyPath    = "/" + envoyService + "/" + envoyMethod
)

// envoyQuestion is one request of the rate-limit service.
type envoyQuestion struct {
	stream   grpc.ServerStream
	capacity *capacity
	// message is the received request, and later the answer to send.
	message     wireMessage
	domain      []byte
	hits        int64 // units of descriptors without their own hits
	descriptors []descriptor
	entries     []route.Entry   // of all descriptors, consecutively
	route       *route.Compiled // of the domain; nil: there is none
	input       route.Input
	reqs        []check.Request // of the descriptors that count
	uncounted   []bool          // of each descriptor
	ignored     int             // number of ignored limits and refunds in descriptors
}

func (q *envoyQuestion) credentials() (string, *Problem) {
	keys := metadata.ValueFromIncomingContext(q.stream.Context(), keyMetadata)
	switch {
	case len(keys) == 0 || keys[0] == "":
		return "", newProblem(http.StatusUnauthorized, codeMissingKey, "Send the API key as the metadata \"weir-key\".")
	case len(keys) > 1:
		return "", newProblem(http.StatusBadRequest, codeInvalidHeader, "The metadata weir-key is there more than once.")
	}
	return keys[0], nil
}

const keyMetadata = "weir-key"

// read waits for the message. grpc limits its size and its time.
func (q *envoyQuestion) read(sc *scratch) *Problem {
	q.message.bytes = sc.body[:0]
	if !q.capacity.await(sc.share) {
		return overloaded()
	}
	err := q.stream.RecvMsg(&q.message)
	entered := q.capacity.resume(sc.share)
	sc.body = q.message.bytes
	switch {
	case err != nil:
		return &Problem{Status: http.StatusBadRequest, Code: codeMalformedMessage, cause: err}
	case !entered:
		return overloaded()
	}
	return q.parse(sc.body)
}

// planField returns the pointer to the descriptor of check i.
func (q *envoyQuestion) planField(i int) string {
	for at, uncounted := range q.uncounted {
		if uncounted {
			continue
		}
		if i == 0 {
			return "/descriptors/" + itoa(int64(at)) + "/plan"
		}
		i--
	}
	return "/descriptors"
}

// together returns true: all descriptors of a request are charged, or none.
func (q *envoyQuestion) together() bool { return true }

// forget releases the contents of a request and keeps the memory.
func (q *envoyQuestion) forget() {
	clear(q.reqs[:cap(q.reqs)])
	clear(q.entries[:cap(q.entries)])
	q.input.Reset()
	*q = envoyQuestion{descriptors: q.descriptors[:0], entries: q.entries[:0], input: q.input, reqs: q.reqs[:0], uncounted: q.uncounted[:0]}
}

// shouldRateLimit answers one call.
func (g *GRPC) shouldRateLimit(stream grpc.ServerStream) (err error) {
	s := g.server.Load()
	if s == nil {
		return callError(stream, newProblem(http.StatusServiceUnavailable, codeNotReady, "The service is starting.").withRetryAfter(1))
	}
	start := time.Now()
	defer s.capacity.leave()
	if !s.capacity.enter() {
		s.shed()
		s.metrics.observe(routeEnvoy, "", http.StatusServiceUnavailable, time.Since(start))
		return callError(stream, overloaded())
	}
	answered := http.StatusOK
	defer func() {
		if fault := recover(); fault != nil {
			s.metrics.panics.Inc()
			s.logger.LogAttrs(stream.Context(), slog.LevelError, "panic while serving a call",
				slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
			answered, err = http.StatusInternalServerError, callError(stream, internalProblem())
		}
		s.metrics.observe(routeEnvoy, "", answered, time.Since(start))
	}()
	sc := envoyScratches.get()
	answered, err = s.answerEnvoy(stream, sc)
	envoyScratches.put(sc) // not after a panic, because a pipeline may still use it
	return err
}

// answerEnvoy decides one call and answers it. status is the status that the same answer would have
// over HTTP.
func (s *server) answerEnvoy(stream grpc.ServerStream, sc *scratch) (status int, err error) {
	q := &sc.envoy
	q.stream, q.capacity = stream, s.capacity
	decisions, p := s.decide(stream.Context(), q, sc)
	if p != nil {
		s.metrics.problems.WithLabelValues(p.Code).Inc()
		if p.Status == http.StatusInternalServerError {
			s.logger.LogAttrs(stream.Context(), slog.LevelError, "call failed", slog.Any("error", p.cause))
		}
		return p.Status, callError(stream, p)
	}
	if q.ignored > 0 {
		s.metrics.envoyIgnored.Add(float64(q.ignored))
	}
	status = http.StatusOK
	if !allAllow(decisions) {
		status = http.StatusTooManyRequests
	}
	q.message.bytes = sc.out
	return status, stream.SendMsg(&q.message)
}

func allAllow(decisions []check.Decision) bool {
	for i := range decisions {
		if !decisions[i].Allowed {
			return false
		}
	}
	return true
}

// callError converts a problem to the error of a call. Its code is also in the trailer, for
// programs.
func callError(stream grpc.ServerStream, p *Problem) error {
	code, known := callCodes[p.Status]
	if !known {
		code = codes.Internal
	}
	trailer := metadata.Pairs("weir-decision", decisionNone, "weir-code", p.Code)
	if p.retryAfter > 0 {
		trailer.Set("retry-after", strconv.Itoa(p.retryAfter))
	}
	stream.SetTrailer(trailer)
	if p.Code == codeMalformedMessage && p.cause != nil {
		return p.cause // grpc reports it itself
	}
	return status.Error(code, p.Code+": "+p.Detail)
}

// callCodes are the gRPC codes of problems, by HTTP status.
var callCodes = map[int]codes.Code{
	http.StatusBadRequest:          codes.InvalidArgument,
	http.StatusUnauthorized:        codes.Unauthenticated,
	http.StatusForbidden:           codes.PermissionDenied,
	http.StatusNotFound:            codes.NotFound,
	http.StatusUnprocessableEntity: codes.InvalidArgument,
	http.StatusTooManyRequests:     codes.ResourceExhausted,
	http.StatusServiceUnavailable:  codes.Unavailable,
}

// clampedUint32 limits n to the range of the messages' numbers.
func clampedUint32(n int64) uint64 { return uint64(min(max(n, 0), math.MaxUint32)) }
