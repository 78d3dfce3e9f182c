package check

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is what this package counts. Every label comes from a closed set, and is bound
// before the first check, so that counting one is an addition.
type Metrics struct {
	decisions     map[Code]prometheus.Counter
	degraded      prometheus.Counter
	fromDenials   prometheus.Counter
	evaluation    prometheus.Histogram
	redis         prometheus.Histogram
	redisErrors   prometheus.Counter
	breakerOpen   prometheus.Gauge
	breakerOpened prometheus.Counter
	policyErrors  prometheus.Counter
	tenantsLoaded prometheus.Gauge
	policies      policyMetrics
	instances     prometheus.Gauge
	leaseGiven    prometheus.Counter
	leaseTakes    prometheus.Counter
	leaseTaken    prometheus.Counter
	leaseReturned prometheus.Counter
	leaseStranded prometheus.Counter
	leaseHeld     prometheus.Gauge
	lately        latencies
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
	// 25 us to 1.6 s: a healthy round trip lies in the first buckets, the deadline in the middle.
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
		degraded:      counter("weir_checks_degraded_total", "Checks answered, in part at least, by a rule's on_unavailable policy."),
		fromDenials:   counter("weir_checks_denied_in_process_total", "Denials answered without the counter store, because they were certain to hold."),
		evaluation:    histogram("weir_rule_evaluation_seconds", "Time to evaluate all matching rules of one request (a batch is one), counters included."),
		redis:         histogram("weir_redis_seconds", "Time that a call to the counter store took, waiting for its turn included."),
		redisErrors:   counter("weir_redis_errors_total", "Checks whose counters could not be reached in time."),
		breakerOpen:   gauge("weir_degraded", "1 while the counter store is taken to be away (circuit breaker not closed), else 0."),
		breakerOpened: counter("weir_breaker_opened_total", "How often the circuit breaker of the counter store opened."),
		policyErrors:  counter("weir_policy_errors_total", "Configurations that did not compile or caused a panic. The last valid one stays active."),
		tenantsLoaded: gauge("weir_policy_tenants", "Tenants whose compiled policy is in memory."),
		policies:      newPolicyMetrics(counter, gauge, histogram),
		instances:     gauge("weir_instances", "Instances of the service that this one takes to be alive; local shares divide by it."),
	}
	m.leaseGiven = counter("weir_checks_leased_total", "Checks answered from units that this instance held, without the counter store.")
	m.leaseTakes = counter("weir_lease_takes_total", "How often units of leased rules, or of tenants' own quotas, were taken ahead.")
	m.leaseTaken = counter("weir_lease_units_taken_total", "Units taken ahead.")
	m.leaseReturned = counter("weir_lease_units_returned_total", "Units that were held and went back to their counters.")
	m.leaseStranded = counter("weir_lease_units_stranded_total", "Units that were held and could not go back: they count until their window passes.")
	m.leaseHeld = gauge("weir_lease_units_held", "Units held to be given out, when this instance last looked, a twentieth of a second ago at most.")
	for _, code := range []Code{RateLimitExceeded, CostExceedsLimit, SubjectBlocked, CountersUnavailable} {
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

func seconds(since time.Time) float64 { return time.Since(since).Seconds() }
