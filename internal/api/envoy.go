package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/check"
	"weir/internal/h2"
	"weir/internal/limit"
	"weir/internal/places"
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
	call        *h2.Call
	deadline    time.Time // of the caller; zero: none
	capacity    *capacity
	domain      []byte
	hits        int64 // units of descriptors without their own hits
	descriptors []descriptor
	entries     []route.Entry   // of all descriptors, consecutively
	route       *route.Compiled // of the domain; nil: there is none
	input       route.Input
	reqs        []check.Request // of the descriptors that count
	uncounted   []bool          // of each descriptor
	message     []byte          // valid until the call is answered
	fieldsRead  int             // of the message
	routed      int             // bytes of the entries that the route has read
	ignored     int             // number of ignored limits and refunds in descriptors
	held        func()          // ends that the bytes of the message count; nil: they do not
}

func (q *envoyQuestion) credentials() (string, *Problem) {
	key, count := "", 0
	for _, f := range q.call.Head().Fields {
		if f.Name == keyMetadata {
			if count == 0 {
				key = f.Value
			}
			count++
		}
	}
	switch {
	case key == "":
		return "", newProblem(http.StatusUnauthorized, codeMissingKey, "Send the API key as the metadata \"weir-key\".")
	case count > 1:
		return "", newProblem(http.StatusBadRequest, codeInvalidHeader, "The metadata weir-key is there more than once.")
	}
	return key, nil
}

const keyMetadata = "weir-key"

// read waits for the message. Nearly always, it has arrived.
func (q *envoyQuestion) read(sc *scratch) *Problem {
	arrived := q.call.Arrived()
	size, p := q.messageSize(arrived)
	if p == nil && len(arrived) < size {
		arrived, p = q.await(sc)
		size = len(arrived)
	}
	if p != nil {
		return p
	}
	q.message = arrived[messagePrefix:size]
	return nil
}

// turns are decided by the message before it is parsed: already that takes a while.
func (q *envoyQuestion) turns(bodies *bodyTurns, _ *scratch) *places.Turns[limit.TenantID] {
	if len(q.message) <= largeCheck {
		return turnsFrom(bodies.batches, len(q.message), smallBatch)
	}
	return bodies.small
}

// messagePrefix is the length of what precedes a message: whether it is compressed, and its length.
const messagePrefix = 5

// messageSize returns the length of the prefix and the message, or of the prefix if that has not
// arrived.
func (q *envoyQuestion) messageSize(arrived []byte) (int, *Problem) {
	if encoding := q.call.Head().Get("grpc-encoding"); encoding != "" && encoding != "identity" {
		return 0, wrongFrame(codes.Unimplemented, "Decompressor is not installed for grpc-encoding %q", encoding)
	}
	if len(arrived) < messagePrefix {
		return messagePrefix, nil
	}
	length := binary.BigEndian.Uint32(arrived[1:])
	switch {
	case arrived[0] == 1:
		return 0, wrongFrame(codes.Internal, "compressed flag set with identity or empty encoding")
	case arrived[0] != 0:
		return 0, wrongFrame(codes.Internal, "received unexpected payload format %d", arrived[0])
	case length > maxMessage:
		return 0, wrongFrame(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", length, maxMessage)
	}
	return messagePrefix + int(length), nil
}

// wrongFrame is the answer to a message that gRPC does not permit, as the gRPC library says it.
func wrongFrame(code codes.Code, format string, args ...any) *Problem {
	return &Problem{Status: http.StatusBadRequest, Code: codeMalformedMessage, cause: status.Errorf(code, "grpc: "+format, args...)}
}

// await waits for a message that has not arrived. The request does not count as served at this
// time.
func (q *envoyQuestion) await(sc *scratch) ([]byte, *Problem) {
	if !q.capacity.await(sc.share) {
		return nil, overloaded()
	}
	message, p := q.receive(sc.tenant)
	if entered := q.capacity.resume(sc.share); p == nil && !entered {
		p = overloaded()
	}
	return message, p
}

// receive receives a message. A long one takes memory from its first byte on, like a large body, so
// it counts for the tenant until the call is answered.
func (q *envoyQuestion) receive(tenant limit.TenantID) ([]byte, *Problem) {
	size := messagePrefix
	for {
		arrived, err := q.call.Body(size, q.deadline)
		switch {
		case errors.Is(err, h2.ErrLate):
			return nil, lateBody()
		case err != nil:
			return nil, newProblem(http.StatusBadRequest, codeMalformedMessage, "The message ended before it was complete.")
		}
		full, p := q.messageSize(arrived)
		if p != nil || full == size {
			return arrived, p
		}
		if full > largeBody {
			leave, ok := q.capacity.bodies.held.Take(tenant, full)
			if !ok {
				q.capacity.refuse()
				return nil, overloaded()
			}
			q.held = leave
		}
		size = full
	}
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

func (q *envoyQuestion) caller() netip.Addr { return q.call.Remote() }

// refuseResource denies all descriptors: Envoy's customer may have chosen the resource.
func (q *envoyQuestion) refuseResource(sc *scratch, _ string) *Problem {
	for range q.descriptors {
		sc.refused = append(sc.refused, check.Decision{Code: resourceNotAllowed, Resource: defaultResource, Cost: 1, Deciding: -1})
	}
	return nil
}

// forget releases the contents of a request and keeps the memory.
func (q *envoyQuestion) forget() {
	clear(q.reqs[:cap(q.reqs)])
	clear(q.entries)
	q.input.Reset()
	*q = envoyQuestion{descriptors: q.descriptors[:0], entries: q.entries[:0], input: q.input, reqs: q.reqs[:0], uncounted: q.uncounted[:0]}
}

// directCall reports whether a request is a call of the rate-limit service. Requests that are no
// valid calls of gRPC are answered by the gRPC library.
func directCall(h *h2.Head) bool {
	if h.Path != envoyPath || h.Method != http.MethodPost {
		return false
	}
	_, valid := callTimeout(h)
	return valid && isCall(h.Get("content-type"))
}

// isCall reports whether a content type is that of gRPC, with or without the format of messages.
func isCall(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// callTimeout returns the caller's timeout; 0: none.
func callTimeout(h *h2.Head) (timeout time.Duration, valid bool) {
	text := h.Get("grpc-timeout")
	if text == "" {
		return 0, true
	}
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 64)
	unit, known := timeoutUnits[text[len(text)-1]]
	if err != nil || !known || len(text) > 9 {
		return 0, false
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, true
	}
	return max(1, time.Duration(n)*unit), true
}

var timeoutUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// shouldRateLimit answers one call.
func (g *GRPC) shouldRateLimit(call *h2.Call) {
	s := g.server.Load()
	if s == nil {
		failCall(call, newProblem(http.StatusServiceUnavailable, codeNotReady, "The service is starting.").withRetryAfter(1))
		return
	}
	start := time.Now()
	defer s.capacity.leave()
	if !s.capacity.enter() {
		s.capacity.refuse()
		s.metrics.observe(routeEnvoy, "", http.StatusServiceUnavailable, time.Since(start))
		failCall(call, overloaded())
		return
	}
	answered := http.StatusInternalServerError
	defer func() {
		if fault := recover(); fault != nil {
			s.metrics.panics.Inc()
			s.logger.LogAttrs(context.Background(), slog.LevelError, "panic while serving a call",
				slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
			failCall(call, internalProblem())
		}
		s.metrics.observe(routeEnvoy, "", answered, time.Since(start))
	}()
	ctx := context.Background()
	var deadline time.Time
	if timeout, _ := callTimeout(call.Head()); timeout > 0 {
		deadline = start.Add(timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	sc := envoyScratches.get()
	sc.envoy.call, sc.envoy.deadline, sc.envoy.capacity = call, deadline, s.capacity
	answered = s.answerEnvoy(ctx, call, sc)
	envoyScratches.put(sc) // not after a panic, because a pipeline may still use it
}

// answerEnvoy decides one call and answers it. status is the status that the same answer would have
// over HTTP.
func (s *server) answerEnvoy(ctx context.Context, call *h2.Call, sc *scratch) (status int) {
	q := &sc.envoy
	defer func() {
		if q.held != nil {
			q.held()
		}
	}()
	decisions, p := s.decide(ctx, q, sc)
	if p != nil {
		s.metrics.problems.WithLabelValues(p.Code).Inc()
		if p.Status == http.StatusInternalServerError {
			s.logger.LogAttrs(ctx, slog.LevelError, "call failed", slog.Any("error", p.cause))
		}
		failCall(call, p)
		return p.Status
	}
	if q.ignored > 0 {
		s.metrics.envoyIgnored.Add(float64(q.ignored))
	}
	status = http.StatusOK
	if !allAllow(decisions) {
		status = http.StatusTooManyRequests
	}
	sc.wire = append(binary.BigEndian.AppendUint32(append(sc.wire[:0], 0), uint32(len(sc.out))), sc.out...)
	call.Answer(sc.wire)
	return status
}

func allAllow(decisions []check.Decision) bool {
	for i := range decisions {
		if !decisions[i].Allowed {
			return false
		}
	}
	return true
}

// failCall answers with the error of a call. The problem's code is also in the trailer, for
// programs.
func failCall(call *h2.Call, p *Problem) {
	code, known := callCodes[p.Status]
	if !known {
		code = codes.Internal
	}
	message := p.Code + ": " + p.Detail
	if p.Code == codeMalformedMessage && p.cause != nil {
		code, message = status.Code(p.cause), status.Convert(p.cause).Message()
	}
	trailer := []hpack.HeaderField{
		{Name: "grpc-status", Value: strconv.Itoa(int(code))}, {Name: "grpc-message", Value: escapeMessage(message)},
		{Name: "weir-decision", Value: decisionNone}, {Name: "weir-code", Value: p.Code},
	}
	if p.retryAfter > 0 {
		trailer = append(trailer, hpack.HeaderField{Name: "retry-after", Value: strconv.Itoa(p.retryAfter)})
	}
	call.Fail(trailer...)
}

// escapeMessage escapes a grpc-message: all bytes but visible ASCII and spaces, and the %.
func escapeMessage(text string) string {
	var b []byte
	for _, c := range []byte(strings.ToValidUTF8(text, "\uFFFD")) {
		if c < ' ' || c > '~' || c == '%' {
			b = fmt.Appendf(b, "%%%02X", c)
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// callCodes are the gRPC codes of problems, by HTTP status.
var callCodes = map[int]codes.Code{
	http.StatusBadRequest:          codes.InvalidArgument,
	http.StatusUnauthorized:        codes.Unauthenticated,
	http.StatusForbidden:           codes.PermissionDenied,
	http.StatusNotFound:            codes.NotFound,
	http.StatusRequestTimeout:      codes.DeadlineExceeded,
	http.StatusUnprocessableEntity: codes.InvalidArgument,
	http.StatusTooManyRequests:     codes.ResourceExhausted,
	http.StatusServiceUnavailable:  codes.Unavailable,
}

// clampedUint32 limits n to the range of the messages' numbers.
func clampedUint32(n int64) uint64 { return uint64(min(max(n, 0), math.MaxUint32)) }
