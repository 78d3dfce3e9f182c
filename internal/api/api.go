// Package api speaks HTTP and JSON: it routes and authenticates requests, answers checks, and
// serves the admin API.
//
// A check takes the road in decide.go, whichever transport brings it: authenticate, scope, read,
// policy, decode, quota, check, encode. check.go asks and answers for net/http, lane_answer.go for
// the lane, which most checks take. check_decode.go reads a body, check_encode.go and headers.go
// write a decision. A check writes no log line; metrics.go counts it.
//
// The admin API is described once, as operations with types; routing, validation and the OpenAPI
// document follow from that. Errors of both are problem documents (problem.go).
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/billing"
	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/once"
	"weir/internal/origin"
	"weir/internal/tenants"
)

// Config is what the operator chooses.
type Config struct {
	Headers     HeaderStyle // which rate-limit headers a check answers; the zero value: none
	MaxInFlight int         // requests served at once, further ones get 503; 0: DefaultMaxInFlight
	Lane        *Lane       // answers checks in short; nil: net/http answers them all
	GRPC        *GRPC       // answers Envoy; nil: nothing does
	// Proxies stand before gateways and the service, for routes that count by address.
	Proxies origin.Proxies
}

// DefaultMaxInFlight is far more than a machine can usefully serve at once, and few enough that all
// of them fit in memory.
const DefaultMaxInFlight = 10_000

// Deps are the parts that the API is made of.
type Deps struct {
	Store         *tenants.Store
	Authenticator *tenants.Authenticator
	Policies      *check.Policies
	Checker       *check.Checker
	Quota         *check.Quota  // of checks, each tenant's own; nil: none
	Instances     func() int    // how many instances share the limits during an outage
	Once          *once.Records // answers of idempotent checks; nil: kept in this process only
	Logger        *slog.Logger
	Metrics       *Metrics
	Readiness     func() Readiness // asked by /readyz, from any goroutine
	// Follow makes this instance act on what was just written for a tenant, before the writer is
	// answered; nil: it is notified as all others are.
	Follow func(ctx context.Context, tenant limit.TenantID)
	// Invited is told of an invitation that was made, whose link is to be sent; nil: nobody is. It
	// does not wait.
	Invited func(tenants.Invitation)
	// InvitationLink returns the link of an invitation where its maker is to hand it on, and ""
	// where it goes out by mail; nil: it always does.
	InvitationLink func(tenants.Invitation) string
	// Billing settles events; nil: one of its own, which only replays.
	Billing *billing.Runner
	// PublicURL begins the addresses of webhooks; "": as the caller came.
	PublicURL string
	CursorKey []byte // authenticates the cursors of lists; the same on all instances
}

// Readiness says whether this instance can serve checks.
type Readiness struct {
	Reason   string   // why it cannot now, for people; "" when it can
	Degraded []string // parts that are unavailable while checks are still answered, such as "redis"
}

type server struct {
	Deps
	logger   *slog.Logger
	metrics  *Metrics
	style    HeaderStyle
	capacity *capacity
	proxies  origin.Proxies
	access   *accessBudget
	once     *once.Records
	billing  *billing.Runner
}

const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

// New returns the handler of the public listeners.
func New(cfg Config, deps Deps) chi.Router {
	s := &server{Deps: deps, logger: deps.Logger, metrics: deps.Metrics, style: cfg.Headers, proxies: cfg.Proxies,
		access: newAccessBudget(deps.Logger),
	}
	if s.once = deps.Once; s.once == nil {
		s.once = once.New(once.Options{})
	}
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = DefaultMaxInFlight
	}
	s.capacity = newCapacity(&s.metrics.inFlight, int64(cfg.MaxInFlight))
	r := chi.NewRouter()
	r.Use(s.track, s.gateways)
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed(r))

	// Paths are matched as they were sent: no slash is added, dropped or merged, nothing is decoded
	// first, so no other spelling leads round a limit.
	r.Post("/v1/check", s.check)
	r.Post("/check", s.check)
	r.Post("/v1/check/batch", s.checkBatch)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		r.Method(method, healthPath, http.HandlerFunc(s.health))
		r.Method(method, readyPath, http.HandlerFunc(s.ready))
	}
	if s.billing = deps.Billing; s.billing == nil {
		s.billing = billing.New(billing.Options{Store: deps.Store, Logger: deps.Logger})
	}
	deps.Billing = s.billing
	mountWebhooks(r, s)
	mountAdmin(r, deps)
	if cfg.Lane != nil {
		cfg.Lane.server.Store(s)
	}
	if cfg.GRPC != nil {
		cfg.GRPC.open(s)
	}
	return r
}

// NewInternal returns the handler of the internal address: metrics and profiles. It asks for no key
// and must not be reachable from outside.
func NewInternal(metrics prometheus.Gatherer) http.Handler {
	r := chi.NewRouter()
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	r.HandleFunc("/debug/pprof/profile", pprof.Profile)
	r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	r.HandleFunc("/debug/pprof/trace", pprof.Trace)
	r.HandleFunc("/debug/pprof/*", pprof.Index)
	return r
}

// health tells that the process lives and answers; nothing else is looked at, for a process is not
// to be restarted because something else is broken.
func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, []byte(`{"status":"ok"}`+"\n"))
}

// ready tells whether to send checks here. Parts that checks can do without are named, no more.
func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	readiness := s.Readiness()
	if readiness.Reason != "" {
		writeProblem(w, r, newProblem(http.StatusServiceUnavailable, codeNotReady, readiness.Reason).withRetryAfter(1))
		return
	}
	b := append([]byte(nil), `{"status":"ready","degraded":[`...)
	for i, part := range readiness.Degraded {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, part)
	}
	writeStatus(w, append(b, "]}\n"...))
}

func writeStatus(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonContentType
	h["Cache-Control"] = noStore
	_, _ = w.Write(body)
}

// Header values that never change, and are only read.
var (
	jsonContentType = []string{"application/json"}
	noStore         = []string{"no-store"}
)

func notFound(w http.ResponseWriter, r *http.Request) {
	writeProblem(w, r, newProblem(http.StatusNotFound, codeNotFound, "Nothing is served under this path."))
}

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodOptions, http.MethodTrace, http.MethodConnect,
}

// methodNotAllowed answers what no route of this method matched: 405 with the methods that the path
// does answer, or 404 if there is none.
func methodNotAllowed(routes chi.Routes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.RawPath
		if path == "" {
			path = r.URL.Path
		}
		var allowed []string
		for _, method := range methods {
			if routes.Match(chi.NewRouteContext(), method, path) {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) == 0 {
			notFound(w, r)
			return
		}
		allow := strings.Join(allowed, ", ")
		writeProblem(w, r, newProblem(http.StatusMethodNotAllowed, codeMethodNotAllowed,
			"This path answers "+allow+".").withHeader("Allow", allow))
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// HeaderStyle says which rate-limit headers a check answers.
type HeaderStyle struct {
	Draft bool // RateLimit-Policy and RateLimit
	X     bool // X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset
}

// ParseHeaderStyle reads a comma list of draft and x, or none.
func ParseHeaderStyle(s string) (HeaderStyle, error) {
	var style HeaderStyle
	if s == "none" {
		return style, nil
	}
	for name := range strings.SplitSeq(s, ",") {
		switch strings.TrimSpace(name) {
		case "draft":
			style.Draft = true
		case "x":
			style.X = true
		default:
			return HeaderStyle{}, errors.New("must be none, or a comma list of draft and x")
		}
	}
	return style, nil
}
