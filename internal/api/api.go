// Package api serves HTTP and JSON: it routes and authenticates requests, answers checks, and
// serves the admin API.
//
// Every check runs the sequence in decide.go, on all transports: authenticate, scope, read, policy,
// decode, quota, check, encode. check.go connects it to net/http, and lane_answer.go to the lane,
// which serves most checks. check_decode.go decodes a body, check_encode.go and headers.go encode a
// decision. A check writes no log line; metrics.go counts it.
//
// The admin API is defined once, as operations with types. Routing, validation and the OpenAPI
// document are derived from that. Errors are problem documents (problem.go).
//
// Example: POST /v1/check with {"subject":"ann"}. The lane reads the head and the body. decide.go
// finds the tenant of the key, that the key has the scope check, and the tenant's policy. It
// decodes the body and takes one unit of the tenant's own quota. The checker decides: 10 per
// minute, 3 used, so the check is allowed and 6 units remain. The answer is 200 with the rate-limit
// headers and the decision as JSON. If anything in the request is unusual, the lane passes the
// connection to net/http, which runs the same sequence.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/accesslog"
	"weir/internal/billing"
	"weir/internal/budget"
	"weir/internal/check"
	"weir/internal/leases"
	"weir/internal/limit"
	"weir/internal/once"
	"weir/internal/origin"
	"weir/internal/overload"
	"weir/internal/places"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// Config has the settings of the operator.
type Config struct {
	Headers HeaderStyle // which rate-limit headers an answer to a check has; the zero value: none
	// MaxInFlight is the maximum number of concurrent requests, further ones get 503; 0:
	// DefaultMaxInFlight. Bound replaces it.
	MaxInFlight int
	Bound       *overload.Bound // nil: MaxInFlight, at any time
	Lane        *Lane           // answers checks without net/http; nil: net/http answers all of them
	GRPC        *GRPC           // answers Envoy; nil: off
	// Proxies are the trusted proxies before gateways and the service, for routes that count by
	// address.
	Proxies origin.Proxies
}

// DefaultMaxInFlight is far more than a machine can usefully serve at once, but few enough to fit
// in memory.
const DefaultMaxInFlight = 10_000

// Deps are the parts of the API.
type Deps struct {
	Store         *tenants.Store
	Authenticator *tenants.Authenticator
	Policies      *check.Policies
	Checker       *check.Checker
	Quota         *check.Quota       // limits the checks of each tenant; nil: no limit
	Instances     func() int         // the number of instances that share the limits during an outage
	Once          *once.Records      // answers of idempotent checks; nil: stored only in this process
	Leases        *leases.Records    // of clients; nil: stored only in this process
	Late          *LateReturns       // of leases; nil: new ones, for which nothing waits
	Budget        *budget.Budget     // of the bytes of records in Redis; nil: no bound. Once has it, too
	Processors    *places.Processors // nil: own turns
	Logger        *slog.Logger
	Metrics       *Metrics
	Readiness     func() Readiness // for /readyz; called from any goroutine
	// Counters estimates the counters of a tenant that are alive, if its tier has this bound or,
	// for 0, the default one; nil: unknown.
	Counters func(ctx context.Context, tenant limit.TenantID, bound int64) (int64, error)
	// Follow applies a tenant's change on this instance before the write is answered; nil: this
	// instance learns of it like all others.
	Follow func(ctx context.Context, tenant limit.TenantID)
	// Invited is called after an invitation was created, to send its link; nil: nothing is sent. It
	// does not wait.
	Invited func(tenants.Invitation)
	// InvitationLink returns the link of an invitation if the inviting person has to pass it on,
	// and "" if it is sent by mail; nil: it is always sent by mail.
	InvitationLink func(tenants.Invitation) string
	// Billing processes events; nil: a new runner, which only replays.
	Billing *billing.Runner
	// PublicURL is the beginning of webhook addresses; "": the address that the caller used.
	PublicURL string
	Recent    *recent.Log     // decisions of all instances; required by the operations that show them
	Stopping  <-chan struct{} // closed when streams must end; nil: never
	CursorKey []byte          // authenticates the cursors of lists; the same on all instances
}

// Readiness says whether this instance can serve checks.
type Readiness struct {
	Reason   string   // why it cannot now, for people; "" when it can
	Degraded []string // parts that are unavailable while checks are still answered, such as "redis"
	Causes   []Cause  // why parts are degraded, where that is known
	Warnings []string // what may make checks wrong one day
}

// Cause is the class of the failure that degrades a part.
type Cause struct{ Part, Failure string }

type server struct {
	Deps
	logger   *slog.Logger
	metrics  *Metrics
	style    HeaderStyle
	capacity *capacity
	proxies  origin.Proxies
	access   *accesslog.Budget
	once     *once.Records
	leases   *leases.Records
	late     *LateReturns
	billing  *billing.Runner
}

const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

// New returns the handler of the public listeners.
func New(cfg Config, deps Deps) chi.Router {
	s := &server{Deps: deps, logger: deps.Logger, metrics: deps.Metrics, style: cfg.Headers, proxies: cfg.Proxies,
		access: accesslog.New(deps.Logger),
	}
	if s.once = deps.Once; s.once == nil {
		s.once = once.New(once.Options{})
	}
	if s.leases = deps.Leases; s.leases == nil {
		s.leases = leases.New(leases.Options{})
	}
	if s.late = deps.Late; s.late == nil {
		s.late = NewLateReturns(s.metrics, s.logger)
	}
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = DefaultMaxInFlight
	}
	if cfg.Bound == nil {
		cfg.Bound = overload.Fixed(int64(cfg.MaxInFlight))
	}
	if deps.Processors == nil {
		deps.Processors = places.NewProcessors(runtime.GOMAXPROCS(0))
	}
	s.capacity = newCapacity(s.metrics, cfg.Bound, deps.Processors)
	r := chi.NewRouter()
	r.Use(s.track, s.gateways)
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed(r))

	// Paths are matched as they were sent. No slash is added, removed or merged, and nothing is
	// decoded first, so another spelling of a path cannot bypass a limit.
	r.Post("/v1/check", s.check)
	r.Post("/check", s.check)
	r.Post("/v1/check/batch", s.checkBatch)
	r.Post(leasesPath, s.grantLease)
	r.Post(returnPath, s.returnLease)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		r.Method(method, healthPath, http.HandlerFunc(s.health))
		r.Method(method, readyPath, http.HandlerFunc(s.ready))
	}
	if s.billing = deps.Billing; s.billing == nil {
		s.billing = billing.New(billing.Options{Store: deps.Store, Logger: deps.Logger})
	}
	deps.Billing = s.billing
	mountWebhooks(r, s)
	mountDevices(r, s)
	mountFiles(r)
	mountDocs(r.With(admitKeyless(s.capacity.docs)), mountAdmin(r, deps))
	if cfg.Lane != nil {
		cfg.Lane.server.Store(s)
	}
	if cfg.GRPC != nil {
		cfg.GRPC.open(s)
	}
	return r
}

// NewInternal returns the handler of the internal address: metrics and profiles. It requires no key
// and must not be reachable from outside. hosts are further names of it.
func NewInternal(metrics prometheus.Gatherer, hosts []string) http.Handler {
	r := chi.NewRouter()
	r.Use(ownHosts(hosts))
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	r.HandleFunc("/debug/pprof/profile", pprof.Profile)
	r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	r.HandleFunc("/debug/pprof/trace", pprof.Trace)
	r.HandleFunc("/debug/pprof/*", pprof.Index)
	return r
}

// ownHosts refuses requests for another host. A web page can point its own name at the internal
// address, and a browser that reaches it would then let the page read the answers. Over the
// loopback interface, the service answers to localhost. Over others, it answers to addresses, and
// to names without a dot, such as those of containers, because no web page has one.
func ownHosts(hosts []string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			if local != nil && !ownHost(local.String(), r.Host, hosts) {
				http.Error(w, "This address answers only requests for its own hosts. WEIR_INTERNAL_HOSTS adds further ones.", http.StatusMisdirectedRequest)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func ownHost(local, hostport string, hosts []string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	switch {
	case origin.IsLocal(hostport), slices.ContainsFunc(hosts, func(own string) bool { return strings.EqualFold(own, host) }):
		return true
	case origin.IsLocal(local):
		return false
	}
	return net.ParseIP(host) != nil || host != "" && !strings.Contains(host, ".")
}

// health reports that the process is alive. It checks nothing else, because restarting the process
// would not repair another part.
func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, []byte(`{"status":"ok"}`+"\n"))
}

// ready reports whether this instance can serve checks. Unavailable parts that checks do not need
// are only named.
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
	b = append(b, ']')
	if len(readiness.Causes) > 0 {
		b = append(b, `,"causes":{`...)
		for i, cause := range readiness.Causes {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(append(appendString(b, cause.Part), ':'), cause.Failure)
		}
		b = append(b, '}')
	}
	if len(readiness.Warnings) > 0 {
		b = append(b, `,"warnings":[`...)
		for i, warning := range readiness.Warnings {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, warning)
		}
		b = append(b, ']')
	}
	writeStatus(w, append(b, "}\n"...))
}

func writeStatus(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonContentType
	h["Cache-Control"] = noStore
	_, _ = w.Write(body)
}

// Header values that never change and are only read.
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

// methodNotAllowed answers if no route matches the method: 405 with the methods of the path, or 404
// if there are none.
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

// HeaderStyle selects the rate-limit headers of a check.
type HeaderStyle struct {
	Draft bool // RateLimit-Policy and RateLimit
	X     bool // X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset
}

// ParseHeaderStyle parses a comma-separated list of draft and x, or none.
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
