package check

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of this package. Every label has a closed set of values, which are bound
// before the first check, so that counting is a single addition.
type Metrics struct {
	decisions     map[Code]prometheus.Counter
	degraded      prometheus.Counter
	evaluation    prometheus.Histogram
	policyErrors  prometheus.Counter
	tenantsLoaded prometheus.Gauge
	policies      policyMetrics
	recently      latencies
	leases        leaseMetrics
	unscaled      prometheus.Counter
}

// leaseMetrics are the metrics of leases for clients.
type leaseMetrics struct {
	granted, units, returned prometheus.Counter
	allowed, denied          prometheus.Counter
}

func newLeaseMetrics(reg prometheus.Registerer, counter func(name, help string) prometheus.Counter) leaseMetrics {
	reported := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_client_lease_checks_total", Help: "Checks that clients decided themselves and reported, by decision.",
	}, []string{"decision"})
	reg.MustRegister(reported)
	return leaseMetrics{
		granted:  counter("weir_client_leases_total", "Leases granted to clients."),
		units:    counter("weir_client_lease_units_total", "Units of the leases granted to clients."),
		returned: counter("weir_client_lease_units_returned_total", "Units that clients returned, and that went back to all of their counters."),
		allowed:  reported.WithLabelValues("allowed"), denied: reported.WithLabelValues("denied"),
	}
}

func (m *Metrics) leaseGranted(units int64) {
	m.leases.granted.Inc()
	m.leases.units.Add(float64(units))
}

func (m *Metrics) leaseReturned(units int64) { m.leases.returned.Add(float64(units)) }

func (m *Metrics) leaseReported(r *Reported) {
	m.leases.allowed.Add(float64(r.Allowed))
	m.leases.denied.Add(float64(r.Denied))
}

// NewMetrics registers the package's metrics with reg.
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
	// 25 us to 1.6 s: a normal round trip is in the first buckets, the timeout in the middle.
	histogram := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(25e-6, 2, 17),
		})
		reg.MustRegister(h)
		return h
	}
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_checks_total", Help: "Checks answered, by decision: allowed, or the code of the denial.",
	}, []string{"decision"})
	reg.MustRegister(decisions)
	m := &Metrics{
		decisions:     map[Code]prometheus.Counter{NoCode: decisions.WithLabelValues("allowed")},
		degraded:      counter("weir_checks_degraded_total", "Checks answered, at least in part, by a rule's on_unavailable."),
		evaluation:    histogram("weir_rule_evaluation_seconds", "Time to evaluate all matching rules of one request (a batch is one), including counters."),
		policyErrors:  counter("weir_policy_errors_total", "Configurations that did not compile or caused a panic. The last valid one stays active."),
		tenantsLoaded: gauge("weir_policy_tenants", "Tenants whose compiled policy is in memory."),
		policies:      newPolicyMetrics(counter, gauge, histogram),
		leases:        newLeaseMetrics(reg, counter),
		unscaled:      counter("weir_counter_changes_unscaled_total", "Changes of a subject's plan that kept its usage although the plan scales it, because the limits of a plan are unknown."),
	}
	for _, code := range []Code{RateLimitExceeded, CostExceedsLimit, SubjectBlocked, AttributeMissing, CountersUnavailable} {
		m.decisions[code] = decisions.WithLabelValues(string(code))
	}
	return m
}

func (m *Metrics) decided(d *Decision) {
	m.decisions[d.Code].Inc()
	if d.Degraded {
		m.degraded.Inc()
	}
}
