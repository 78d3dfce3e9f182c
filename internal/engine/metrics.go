package engine

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the layers of a Stack.
type Metrics struct {
	fromDenials     prometheus.Counter
	store           prometheus.Histogram
	storeErrors     prometheus.Counter
	failures        *prometheus.CounterVec
	losses          prometheus.Counter
	regressions     prometheus.Counter
	breakerOpen     prometheus.Gauge
	serversOpen     prometheus.Gauge
	breakerOpened   prometheus.Counter
	leaseGranted    prometheus.Counter
	leasePrefetches prometheus.Counter
	leasePrefetched prometheus.Counter
	leaseReturned   prometheus.Counter
	leaseStranded   prometheus.Counter
	leaseHeld       prometheus.Gauge
	spreadRefunds   prometheus.Counter
	spreadStranded  prometheus.Counter
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	m := &Metrics{
		fromDenials: counter("weir_checks_denied_in_process_total", "Denials answered from memory, without the counter store."),
		// 25 us to 1.6 s: a normal round trip is in the first buckets, the timeout in the middle.
		store: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_redis_seconds", Help: "Time of a call to the counter store, including the queue.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 2, 17),
		}),
		storeErrors: counter("weir_redis_errors_total", "Checks whose counters could not be reached in time."),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_redis_failures_total", Help: "Failed calls to the counter store, probes included, by class of the error.",
		}, []string{"class"}),
		losses:          counter("weir_redis_losses_total", "Times that a server of the counter store was found to have lost counters."),
		regressions:     counter("weir_counter_regressions_total", "Counters that held less than before in the same fixed window."),
		breakerOpen:     gauge("weir_degraded", "1 while a circuit breaker of the counter store is open, else 0."),
		serversOpen:     gauge("weir_redis_servers_degraded", "Servers of the counter store whose circuit breaker is open."),
		breakerOpened:   counter("weir_breaker_opened_total", "Times that a circuit breaker of the counter store opened."),
		leaseGranted:    counter("weir_checks_leased_total", "Checks answered from prefetched units, without the counter store."),
		leasePrefetches: counter("weir_lease_takes_total", "Times that units of leased rules, or of tenants' own quotas, were prefetched."),
		leasePrefetched: counter("weir_lease_units_taken_total", "Prefetched units."),
		leaseReturned:   counter("weir_lease_units_returned_total", "Prefetched units that were returned to their counters."),
		leaseStranded:   counter("weir_lease_units_stranded_total", "Prefetched units that could not be returned: they count until their window ends."),
		spreadRefunds:   counter("weir_partition_refunds_total", "Charges that were returned because another partition of the tenant, or another part of a large request, denied the check."),
		spreadStranded:  counter("weir_partition_stranded_total", "Charges of such checks that could not be returned: they count until their window ends."),
		leaseHeld:       gauge("weir_lease_units_held", "Prefetched units held for granting, when last inspected, at most 50 ms ago."),
	}
	reg.MustRegister(m.store, m.failures)
	m.failures.WithLabelValues("timeout") // so that the metric exists before the first failure
	return m
}
