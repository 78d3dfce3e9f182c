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

// redisLog takes what the Redis client has to say, a line for each lost connection and the like,
// which it would otherwise print as it pleases. It is for debugging: that Redis is unavailable is
// told by metrics and by /readyz.
type redisLog struct{ log *slog.Logger }

// Printf logs one message of the client.
func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, values...))
}

const (
	redisLook      = time.Second
	evictionLook   = time.Minute // how often a Redis that counts is asked whether it evicts counters
	evictionWait   = time.Second
	warnOfEviction = "redis_eviction"
)

// redisState tells people how the counter store is: in the log, in /readyz and in metrics. Checks
// themselves are counted and not logged.
type redisState struct {
	engine   *engine.Stack
	counters *redisengine.Engine
	log      *slog.Logger
	evicting atomic.Int64 // servers that may evict counters
	losses   int64        // that were logged
	away     bool
	asked    time.Time // about eviction
	policies string    // that were logged
}

func newRedisState(stack *engine.Stack, counters *redisengine.Engine, registry *prometheus.Registry, log *slog.Logger) *redisState {
	r := &redisState{engine: stack, counters: counters, log: log}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_redis_servers_evicting", Help: "Redis servers whose maxmemory-policy lets them evict counters.",
	}, func() float64 { return float64(r.evicting.Load()) }))
	return r
}

// tell adds to what /readyz says.
func (r *redisState) tell(to *api.Readiness) {
	if health := r.engine.Health(); !health.DegradedSince.IsZero() {
		to.Degraded = append(to.Degraded, "redis")
		to.Causes = append(to.Causes, api.Cause{Part: "redis", Failure: string(health.Failure)})
	}
	if r.evicting.Load() > 0 {
		to.Warnings = append(to.Warnings, warnOfEviction)
	}
}

// run logs what changes, until ctx ends.
func (r *redisState) run(ctx context.Context) {
	look := time.NewTicker(redisLook)
	defer look.Stop()
	for {
		r.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

func (r *redisState) look(ctx context.Context) {
	health := r.engine.Health()
	away := !health.DegradedSince.IsZero()
	switch {
	case away && !r.away:
		r.log.WarnContext(ctx, "redis does not count; each rule's on_unavailable answers",
			"since", health.DegradedSince, "failure", health.Failure, "error", health.Err)
	case r.away && !away:
		r.log.InfoContext(ctx, "redis counts again")
		r.asked = time.Time{} // it may be another one
	}
	r.away = away
	if health.Losses > r.losses {
		r.losses = health.Losses
		r.log.ErrorContext(ctx, "redis lost counters: it was emptied, restarted without its data, restored from a backup or replaced by a replica that lagged behind",
			"losses", health.Losses)
	}
	if !away && time.Since(r.asked) >= evictionLook {
		r.lookForEviction(ctx)
	}
}

// lookForEviction warns of a maxmemory-policy that evicts counters: an evicted counter is a
// forgotten limit.
func (r *redisState) lookForEviction(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, evictionWait)
	defer cancel()
	r.asked = time.Now()
	policies, err := r.counters.EvictionPolicies(ctx)
	if err != nil {
		r.log.DebugContext(ctx, "maxmemory-policy of redis is not known; the permission +info is needed", "error", err)
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
			r.log.WarnContext(ctx, "redis may evict counters, and an evicted counter is a forgotten limit; set maxmemory-policy noeviction",
				"maxmemory_policy", text)
		}
	}
}
