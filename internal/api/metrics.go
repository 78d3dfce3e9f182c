package api

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/tenants"
)

// The routes of the hot path. Their metrics are bound in advance, because finding a counter by its
// labels costs more than counting. All other routes are coldRoute.
type hotRoute uint8

const (
	coldRoute hotRoute = iota
	routeCheck
	routeBatch
	routeAuthorize
	routeEnvoy
	routeLeases
	routeReturn
	hotRoutes
)

var hotRouteNames = [hotRoutes]string{
	routeCheck: "/v1/check", routeBatch: "/v1/check/batch", routeAuthorize: authorizePath, routeEnvoy: envoyPath,
	routeLeases: leasesPath, routeReturn: returnPath,
}

// statusClasses are the values of the label "code". 429 is separate from other client errors,
// because a denied check is not an error.
var statusClasses = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx", "429"}

func statusClass(status int) int {
	if status == 429 {
		return len(statusClasses) - 1
	}
	return min(max(status/100-1, 0), 4)
}

// noRoute is the label of requests without a route.
const noRoute = "none"

// Metrics are the metrics of HTTP. All labels have a closed set of values: patterns of routes,
// classes of status codes, codes of problems.
type Metrics struct {
	requests *prometheus.CounterVec   // route, code
	duration *prometheus.HistogramVec // route
	problems *prometheus.CounterVec   // code
	webhooks *prometheus.CounterVec   // provider, result
	shed     prometheus.Counter
	panics   prometheus.Counter
	inFlight atomic.Int64
	// overloaded is problems with the code OVERLOADED.
	overloaded prometheus.Counter
	// envoyIgnored counts what descriptors request and Weir does not support.
	envoyIgnored prometheus.Counter
	// lostReturns counts returns of leases that LateReturns gave up.
	lostReturns prometheus.Counter

	hotRequests [hotRoutes][len(statusClasses)]prometheus.Counter
	hotDuration [hotRoutes]prometheus.Observer
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_http_requests_total",
			Help: "Requests answered, by route and class of status; 429 is a class of its own.",
		}, []string{"route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weir_http_request_duration_seconds",
			Help:    "Time from the parsed head of a request to its answer, by route.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"route"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_http_check_problems_total",
			Help: "Checks that were refused without a decision, by the code of the problem document.",
		}, []string{"code"}),
		webhooks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_webhooks_total",
			Help: "Requests to webhook endpoints, by provider and result. Only stored events can change a plan.",
		}, []string{"provider", "result"}),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_http_shed_total",
			Help: "Requests refused because too many were being served.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_http_panics_total",
			Help: "Requests and connections that ended in a panic.",
		}),
		envoyIgnored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_envoy_ignored_total",
			Help: "Limits and refunds that descriptors of Envoy asked for, and that were ignored.",
		}),
		lostReturns: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_client_lease_returns_lost_total",
			Help: "Returns of client leases that were given up, because Redis did not answer for too long.",
		}),
	}
	registry.MustRegister(m.requests, m.duration, m.problems, m.webhooks, m.shed, m.panics, m.envoyIgnored, m.lostReturns,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_http_in_flight",
			Help: "Requests being served now.",
		}, func() float64 { return float64(m.inFlight.Load()) }))
	m.overloaded = m.problems.WithLabelValues(codeOverloaded)
	for _, provider := range []string{tenants.StripeProvider, tenants.GenericProvider} {
		for _, result := range webhookResults {
			m.webhooks.WithLabelValues(provider, result)
		}
	}
	for route := coldRoute + 1; route < hotRoutes; route++ {
		m.hotDuration[route] = m.duration.WithLabelValues(hotRouteNames[route])
		for class, name := range statusClasses {
			m.hotRequests[route][class] = m.requests.WithLabelValues(hotRouteNames[route], name)
		}
	}
	return m
}

// InFlight returns the number of requests being served now.
func (m *Metrics) InFlight() int64 { return m.inFlight.Load() }

// Route returns a function that counts the requests of one route outside of the API. pattern is
// that of the route, or "" if there is none.
func (m *Metrics) Route(pattern string) func(status int, took time.Duration) {
	if pattern == "" {
		pattern = noRoute
	}
	duration := m.duration.WithLabelValues(pattern)
	var requests [len(statusClasses)]prometheus.Counter
	for class, name := range statusClasses {
		requests[class] = m.requests.WithLabelValues(pattern, name)
	}
	return func(status int, took time.Duration) {
		requests[statusClass(status)].Inc()
		duration.Observe(took.Seconds())
	}
}

// observe counts one answered request. route is the pattern; it is used only if hot is coldRoute.
func (m *Metrics) observe(hot hotRoute, route string, status int, took time.Duration) {
	class := statusClass(status)
	if hot != coldRoute {
		m.hotRequests[hot][class].Inc()
		m.hotDuration[hot].Observe(took.Seconds())
		return
	}
	if route == "" {
		route = noRoute
	}
	m.requests.WithLabelValues(route, statusClasses[class]).Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}
