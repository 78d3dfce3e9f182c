package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/api"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
)

// redisLog logs the messages of the Redis client, such as lost connections, which the client would
// print to standard error otherwise. They are for debugging: metrics and /readyz report that Redis
// is unavailable.
type redisLog struct{ log *slog.Logger }

// Printf logs one message of the client.
func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, values...))
}

const (
	redisLook      = time.Second
	evictionLook   = time.Minute // how often an available Redis is asked whether it evicts counters
	evictionWait   = time.Second
	warnOfEviction = "redis_eviction"
	warnOfMemory   = "redis_nearly_full"
)

// redisState reports the state of Redis in the log, in /readyz and in metrics. Checks themselves
// are counted, not logged.
type redisState struct {
	engine      *engine.Stack
	counters    *redisengine.Engine
	census      *redisengine.Census
	log         *slog.Logger
	evicting    atomic.Int64 // servers that may evict counters
	bySlot      atomic.Int64 // masters of a Cluster that do not run scripts across slots
	losses      int64        // losses that were logged
	unavailable bool
	full        atomic.Bool // its memory is nearly
	asked       time.Time   // when the eviction policies were read
	policies    string      // policies that were logged
}

func newRedisState(stack *engine.Stack, counters *redisengine.Engine, census *redisengine.Census, registry *prometheus.Registry, log *slog.Logger) *redisState {
	r := &redisState{engine: stack, counters: counters, census: census, log: log}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_redis_servers_evicting", Help: "Redis servers whose maxmemory-policy lets them evict counters.",
	}, func() float64 { return float64(r.evicting.Load()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_redis_servers_by_slot",
		Help: "Masters of a Redis Cluster that do not run scripts across slots, so that each tenant has a run of its own.",
	}, func() float64 { return float64(r.bySlot.Load()) }))
	return r
}

// report adds the state of Redis to /readyz.
func (r *redisState) report(to *api.Readiness) {
	if health := r.engine.Health(); !health.DegradedSince.IsZero() {
		to.Degraded = append(to.Degraded, "redis")
		to.Causes = append(to.Causes, api.Cause{Part: "redis", Failure: string(health.Failure)})
	}
	if r.evicting.Load() > 0 {
		to.Warnings = append(to.Warnings, warnOfEviction)
	}
	if r.full.Load() {
		to.Warnings = append(to.Warnings, warnOfMemory)
	}
}

// run logs changes of the state until ctx ends.
func (r *redisState) run(ctx context.Context) {
	look := time.NewTicker(redisLook)
	defer look.Stop()
	for {
		r.update(ctx)
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

func (r *redisState) update(ctx context.Context) {
	health := r.engine.Health()
	unavailable := !health.DegradedSince.IsZero()
	switch {
	case unavailable && !r.unavailable:
		r.log.WarnContext(ctx, "redis is unavailable; each rule's on_unavailable answers",
			"since", health.DegradedSince, "failure", health.Failure, "error", health.Err)
	case r.unavailable && !unavailable:
		r.log.InfoContext(ctx, "redis is available again")
		r.asked = time.Time{} // it may be another Redis
	}
	r.unavailable = unavailable
	if health.Losses > r.losses {
		r.losses = health.Losses
		r.log.ErrorContext(ctx, "redis lost counters: it was emptied, restarted without its data, restored from a backup or replaced by a replica that lagged behind",
			"losses", health.Losses)
	}
	if !unavailable && time.Since(r.asked) >= evictionLook {
		r.readEviction(ctx)
	}
	r.reportMemory(ctx)
	nodes, err := r.counters.RunsBySlot()
	if before := r.bySlot.Swap(int64(nodes)); nodes > 0 && before == 0 {
		r.log.WarnContext(ctx, "redis does not run scripts across slots; each tenant has a run of its own, which costs more",
			"masters", nodes, "error", err)
	}
}

// reportMemory logs when the memory of Redis begins or ends to bound tenants.
func (r *redisState) reportMemory(ctx context.Context) {
	switch memory := r.census.Memory(); {
	case memory.Full && r.full.CompareAndSwap(false, true):
		r.log.WarnContext(ctx, "redis is nearly full; new subjects of the tenants with the most counters share counters until others expire; raise maxmemory, or lower the bounds of tiers",
			"used", memory.Used, "tenants", memory.Bounded)
	case !memory.Full && r.full.CompareAndSwap(true, false):
		r.log.InfoContext(ctx, "redis is no longer nearly full", "used", memory.Used)
	}
}

// readEviction warns if a maxmemory-policy evicts counters: an evicted counter is a lost limit.
func (r *redisState) readEviction(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, evictionWait)
	defer cancel()
	r.asked = time.Now()
	policies, err := r.counters.EvictionPolicies(ctx)
	if err != nil {
		r.log.DebugContext(ctx, "maxmemory-policy of redis is unknown; it requires the permission +info", "error", err)
		return
	}
	var evicting []string
	for _, policy := range policies {
		if policy != "noeviction" {
			evicting = append(evicting, policy)
		}
	}
	r.evicting.Store(int64(len(evicting)))
	if text := strings.Join(evicting, ", "); text != r.policies {
		if r.policies = text; text != "" {
			r.log.WarnContext(ctx, "redis may evict counters, and an evicted counter is a lost limit; set maxmemory-policy noeviction",
				"maxmemory_policy", text)
		}
	}
}
