package main

import (
	"log/slog"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/internal/budget"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/recent"
)

// newRegistry returns a registry with the metrics of the process.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_build_info", Help: "Always 1. The labels have the version.",
		ConstLabels: prometheus.Labels{"version": version(), "go_version": runtime.Version()},
	}, func() float64 { return 1 }))
	return registry
}

// version returns the version of the program, or "(devel)" if it was built from a work tree without
// a tag.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// aboutInstance returns a function that describes this instance to the operator.
func aboutInstance(configAge func() time.Duration) func() recent.Instance {
	name, err := os.Hostname()
	if err != nil {
		name = "unnamed"
	}
	about := recent.Instance{Name: name, Version: version(), StartedAt: time.Now()}
	return func() recent.Instance {
		about := about
		about.ConfigAge = configAge()
		return about
	}
}

// watchEngine registers the counters of the Redis engine.
func watchEngine(registry *prometheus.Registry, engine *redisengine.Engine) {
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_redis_counters_repaired_total", Help: "Counters in Redis that contained an invalid value and were reset.",
		}, func() float64 { return float64(engine.Repaired()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_redis_script_loads_total", Help: "Times that a script was not loaded in Redis and was sent in full.",
		}, func() float64 { return float64(engine.ScriptLoads()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_redis_redirects_total", Help: "Calls and refunds that a master of a Redis Cluster redirected, because their slot has moved or is being moved.",
		}, func() float64 { return float64(engine.Redirects()) }),
	)
}

// watchCensus registers what bounds the counters of tenants.
func watchCensus(registry *prometheus.Registry, census *redisengine.Census) {
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_checks_bounded_total", Help: "Calls to the counter store of tenants that had as many counters alive as their tier allows: new subjects share counters.",
		}, func() float64 { return float64(census.Bounded()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_tenants_full", Help: "Tenants that have as many counters alive as their tier allows.",
		}, func() float64 { return float64(census.Full()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_redis_memory_ratio", Help: "Part of its maxmemory that the fullest Redis server uses; 0 if there is no maxmemory or it cannot be read.",
		}, func() float64 { return census.Memory().Used }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_tenants_memory_full", Help: "Tenants that may have no further counters on a Redis server that is nearly full.",
		}, func() float64 { return float64(census.Memory().Bounded) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_census_dropped_total", Help: "Charged counters that were not added to the estimate of counters alive.",
		}, func() float64 { return float64(census.Dropped()) }),
	)
}

// watchRecords registers what bounds the bytes of records of tenants.
func watchRecords(registry *prometheus.Registry, records *budget.Budget) {
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_records_refused_total", Help: "Checks with an Idempotency-Key, and leases, of tenants that had as many bytes of records alive as their tier, or the memory of Redis, allows.",
		}, func() float64 { return float64(records.Refused()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_record_bytes", Help: "Estimate of the bytes in Redis of records that this instance has written: answers of checks with an Idempotency-Key, and leases.",
		}, func() float64 {
			bytes, _ := records.Alive()
			return float64(bytes)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_tenants_records_full", Help: "Tenants that have as many bytes of records alive as their tier, or the memory of Redis, allows.",
		}, func() float64 {
			_, full := records.Alive()
			return float64(full)
		}),
	)
}

// watchOverload registers the bound of concurrent requests. It returns the function that stores the
// waits to which the bound adapts, and logs which tenants get a bound of their own.
func watchOverload(registry *prometheus.Registry, bound *overload.Bound, log *slog.Logger) func(overload.Signals) {
	waits := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_wait_seconds",
		Help: "Wait in the last 100 ms, to which the bound of concurrent requests adapts: for a pipeline to Redis (the smallest), for a processor (the mean).",
	}, []string{"for"})
	redis, processor := waits.WithLabelValues("redis"), waits.WithLabelValues("processor")
	registry.MustRegister(waits,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_http_in_flight_bound", Help: "Maximum number of concurrent requests now; further ones get 503.",
		}, func() float64 { return float64(bound.Limit()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_tenants_bounded", Help: "Tenants with a bound of concurrent requests of their own, because their checks wait for Redis.",
		}, func() float64 { return float64(len(bound.Bounded())) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_http_refused_pause_seconds", Help: "How long a connection pauses after a request on it was refused with 503.",
		}, func() float64 { return bound.Pause().Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_http_error_pause_seconds", Help: "How long the errors of a client that gets very many of them wait.",
		}, func() float64 { return bound.FailPause().Seconds() }),
	)
	bounded := boundedLog{logger: log}
	return func(s overload.Signals) {
		redis.Set(s.Queued.Seconds())
		processor.Set(s.Runnable.Seconds())
		bounded.log(bound.Bounded(), time.Now())
	}
}

// boundedLog logs the tenants whose checks wait for Redis.
type boundedLog struct {
	logger *slog.Logger
	next   map[limit.TenantID]time.Time // when a tenant may be logged again
}

// boundedLogEvery is the least time between two lines about one tenant.
const boundedLogEvery = time.Minute

// log logs the tenants that have a bound. A tenant is logged once a minute.
func (b *boundedLog) log(bounded map[limit.TenantID]int64, now time.Time) {
	for tenant, bound := range bounded {
		if now.Before(b.next[tenant]) {
			continue
		}
		if b.next == nil {
			b.next = map[limit.TenantID]time.Time{}
		}
		b.next[tenant] = now.Add(boundedLogEvery)
		b.logger.Warn("Checks of a tenant wait for Redis behind its other checks: more of them at once get 503",
			"tenant", tenant, "at_once", bound)
	}
	maps.DeleteFunc(b.next, func(_ limit.TenantID, next time.Time) bool { return now.After(next) })
}

// watchAge registers the age of the configuration.
func watchAge(registry *prometheus.Registry, age func() time.Duration) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_config_age_seconds", Help: "Time since this instance last verified that its configuration is current.",
	}, func() float64 { return age().Seconds() }))
}
