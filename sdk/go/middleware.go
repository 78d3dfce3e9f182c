package weir

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// A Guard limits incoming HTTP requests. Checker and Subject are required.
//
//	guard := weir.Guard{Checker: client, Subject: func(r *http.Request) string { return r.Header.Get("X-Customer") }}
//	mux.Handle("GET /orders/{id}", guard.Handler(orders))
type Guard struct {
	Checker Checker

	// Subject returns the subject. A request without a subject is a misuse, so that a missing
	// subject never switches the limiter off. Use HashSubject for values that the customer chooses:
	// a value of more than 256 bytes is a misuse, too.
	Subject func(r *http.Request) string

	// Resource returns the resource of a request. The default is [Route].
	Resource func(r *http.Request) string

	// Cost returns how many units the request takes. The default is 1.
	Cost func(r *http.Request) int64

	// Plan returns the plan. The default is the subject's own.
	Plan func(r *http.Request) string

	// Attributes returns further values that rules can count by. The default is none.
	Attributes func(r *http.Request) map[string]string

	// Skip returns true for requests without a check, such as health checks.
	Skip func(r *http.Request) bool

	// OnDenied answers a request that is denied. The rate-limit headers are set already. The
	// default is [WriteDenied].
	OnDenied func(w http.ResponseWriter, r *http.Request, d Decision)

	// OnMisuse answers a request whose check was a mistake of this application. The default logs
	// the error to Logger and answers 500.
	OnMisuse func(w http.ResponseWriter, r *http.Request, err error)

	// Logger is where misuse is logged. The default is slog.Default.
	Logger *slog.Logger
}

// Handler returns a handler that calls next if Weir allows the request. It sets the rate-limit
// headers, waits for the delay of a queue rule, and forwards the request's traceparent. If two
// limiters guard the same request, the headers of the stricter one are sent, also if next sets them
// itself. If the context of the request ends before the check or the delay, next is not called.
func (g Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Skip != nil && g.Skip(r) {
			next.ServeHTTP(w, r)
			return
		}
		ctx := ContextWithTraceparent(r.Context(), r.Header.Get("Traceparent"))
		d, err := g.Checker.Check(ctx, g.check(r))
		if err != nil {
			g.failed(w, r, err)
			return
		}
		if r.Context().Err() != nil { // the fallback must not answer for a customer who ends the check
			ended(w, r)
			return
		}
		if !d.Allowed {
			d.CopyHeaders(w.Header())
			if g.OnDenied != nil {
				g.OnDenied(w, r, d)
			} else {
				WriteDenied(w, r, d)
			}
			return
		}
		if delay := d.Delay(); delay > 0 && clockOf(g.Checker).Sleep(r.Context(), delay) != nil {
			ended(w, r)
			return
		}
		if d.Headers == (Headers{}) {
			next.ServeHTTP(w, r)
			return
		}
		guarded, headers := newGuardedWriter(w, &d)
		next.ServeHTTP(guarded, r)
		headers.settle() // for an answer without a body
	})
}

func (g *Guard) check(r *http.Request) Check {
	check := Check{Subject: g.Subject(r)}
	if g.Resource != nil {
		check.Resource = g.Resource(r)
	} else {
		check.Resource = Route(r)
	}
	if g.Cost != nil {
		check.Cost = g.Cost(r)
	}
	if g.Plan != nil {
		check.Plan = g.Plan(r)
	}
	if g.Attributes != nil {
		check.Attributes = g.Attributes(r)
	}
	return check
}

// ended ends a request whose context has ended, without its handler. If the customer has
// disconnected, nobody reads an answer. After a deadline, which a middleware in front has set, the
// answer would otherwise be 200.
func ended(w http.ResponseWriter, r *http.Request) {
	if errors.Is(r.Context().Err(), context.DeadlineExceeded) {
		writeProblem(w, problemAnswer{Title: http.StatusText(http.StatusServiceUnavailable), Status: http.StatusServiceUnavailable})
	}
}

func (g *Guard) failed(w http.ResponseWriter, r *http.Request, err error) {
	if end := r.Context().Err(); end != nil && errors.Is(err, end) {
		ended(w, r)
		return
	}
	if g.OnMisuse != nil {
		g.OnMisuse(w, r, err)
		return
	}
	logger := g.Logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Error("weir: the check of a request is invalid", "error", err)
	writeProblem(w, problemAnswer{Title: http.StatusText(http.StatusInternalServerError), Status: http.StatusInternalServerError})
}

// clockOf returns the clock of a client, or the system clock.
func clockOf(checker Checker) clock {
	if c, ok := checker.(*Client); ok {
		return c.clock
	}
	return systemClock{}
}

// Route returns the [Method] and the route template of a request that a router has routed, such as
// "GET /orders/{id}". The router must set Request.Pattern, as http.ServeMux and chi since 5.3 do.
// Before routing, or with another router, it returns only the method. The path of the request must
// not become a resource, because every new path would start a new counter.
func Route(r *http.Request) string {
	template := r.Pattern
	if i := strings.IndexByte(template, '/'); i >= 0 { // after a method and a host
		return Method(r) + " " + template[i:]
	}
	return Method(r)
}

// Method returns the method of a request for a resource. HEAD is GET, because the same handlers
// answer both, and a method that HTTP does not define is "OTHER". With the method as it was sent, a
// customer could choose one that no rule knows.
func Method(r *http.Request) string {
	switch r.Method {
	case "", http.MethodHead:
		return http.MethodGet
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return r.Method
	}
	return "OTHER"
}

// RouteOf returns a function like [Route] for a guard in front of a mux, when the request is not
// routed yet.
func RouteOf(mux *http.ServeMux) func(r *http.Request) string {
	return func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		if i := strings.IndexByte(pattern, '/'); i >= 0 {
			return Method(r) + " " + pattern[i:]
		}
		return Method(r)
	}
}

// WriteDenied answers a denied request with status 429 and a problem document (RFC 9457). If the
// fallback Deny answered instead of the server, the status is 503, because no limit was exceeded.
// It does not set the rate-limit headers.
func WriteDenied(w http.ResponseWriter, _ *http.Request, d Decision) {
	p := problemAnswer{Status: http.StatusTooManyRequests}
	if d.Denial != nil {
		p.Code, p.Detail = d.Denial.Code, d.Denial.Message
		if d.Denial.RetryAfter.Known {
			p.RetryAfter = &d.Denial.RetryAfter.Value
		}
		if d.Denial.Code == CodeLimiterUnavailable {
			p.Status = http.StatusServiceUnavailable
		}
	}
	p.Title = http.StatusText(p.Status)
	writeProblem(w, p)
}

type problemAnswer struct {
	Type       string `json:"type"`
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Code       string `json:"code,omitempty"`
	Detail     string `json:"detail,omitempty"`
	RetryAfter *int64 `json:"retry_after,omitempty"`
}

func writeProblem(w http.ResponseWriter, p problemAnswer) {
	p.Type = "about:blank"
	body, err := json.Marshal(p)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // if this fails, the customer has disconnected
}

// A DeniedError is the error of a [Transport] whose check was denied.
type DeniedError struct{ Decision Decision }

func (e *DeniedError) Error() string {
	if e.Decision.Denial != nil {
		return "weir: denied: " + e.Decision.Denial.Message
	}
	return "weir: denied"
}

// DefaultMaxWait is how long a [Transport] waits until a request is allowed.
const DefaultMaxWait = 10 * time.Second

// A Transport limits outgoing HTTP requests: it sends a request when Weir allows it. Use it as the
// Transport of an http.Client for a service that has its own limits. Checker is required.
type Transport struct {
	Checker Checker
	Base    http.RoundTripper // the default is http.DefaultTransport

	// Subject returns the subject of a request. The default is the host of the URL.
	Subject func(r *http.Request) string

	// Resource returns the resource of a request. The default is the method and the host.
	Resource func(r *http.Request) string

	// Cost returns how many units the request takes. The default is 1.
	Cost func(r *http.Request) int64

	// MaxWait is how long a request may wait until it is allowed, unless its context ends first.
	// The default is DefaultMaxWait; with a negative value, it does not wait.
	MaxWait time.Duration
}

// RoundTrip waits until the request is allowed and sends it. The error is a [*DeniedError] if the
// wait would be too long.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.admit(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper must close it, also on errors
		}
		return nil, err
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r)
}

func (t *Transport) admit(r *http.Request) error {
	check := Check{Subject: r.URL.Host, Resource: r.Method + " " + r.URL.Host}
	if t.Subject != nil {
		check.Subject = t.Subject(r)
	}
	if t.Resource != nil {
		check.Resource = t.Resource(r)
	}
	if t.Cost != nil {
		check.Cost = t.Cost(r)
	}
	ctx := ContextWithTraceparent(r.Context(), r.Header.Get("Traceparent"))
	d, err := t.ask(ctx, check)
	if err != nil {
		return err
	}
	if !d.Allowed {
		return &DeniedError{Decision: d}
	}
	return nil
}

func (t *Transport) ask(ctx context.Context, check Check) (Decision, error) {
	if t.MaxWait < 0 {
		d, err := t.Checker.Check(ctx, check)
		if err == nil && d.Delay() > 0 {
			err = clockOf(t.Checker).Sleep(ctx, d.Delay())
		}
		return d, err
	}
	most := t.MaxWait
	if most == 0 {
		most = DefaultMaxWait
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return t.Checker.Wait(ctx, check)
}
