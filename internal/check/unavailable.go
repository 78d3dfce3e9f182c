package check

import (
	"context"
	"time"
)

// guarded is the shared engine behind the circuit breaker: while that is open, calls end at
// once with errBreakerOpen, and nothing is sent.
type guarded struct {
	engine  Engine
	breaker *breaker
	metrics *Metrics
}

func (g *guarded) evaluate(ctx context.Context, calls []*Call) {
	if !g.breaker.allow() {
		for _, c := range calls {
			c.Err = errBreakerOpen
		}
		return
	}
	start := time.Now()
	g.engine.Evaluate(ctx, calls...)
	g.metrics.redis.Observe(seconds(start))
	// The calls of one exchange share its fate: they say once how the store is.
	failure := calls[0].Err
	for _, c := range calls {
		if c.Err == nil {
			failure = nil
		} else {
			g.metrics.redisErrors.Inc()
		}
	}
	g.breaker.done(failure)
}

// probeCall is the real script on a counter of its own, so that a store that answers PING but
// refuses writes (full, read-only, loading) is not taken for healthy.
func probeCall(ctx context.Context, engine Engine) error {
	call := Call{Cost: 1, Counters: []Counter{{
		Key:     keyPrefix + "probe}",
		Numbers: Numbers{Algorithm: FixedWindowFirstHit, Limit: MaxFixedLimit, WindowMS: MinWindowMS},
	}}}
	engine.Evaluate(ctx, &call)
	return call.Err
}

// answerWithout decides an evaluation whose counters cannot be reached, by each rule's
// OnUnavailable. Nothing counted locally is counted when an enforcing rule denies.
func (c *Checker) answerWithout(e *evaluation) {
	d := &e.decision
	d.Degraded = true
	share := c.peers.share.Load()
	denied := false
	local := Call{Tenant: e.policy.tenant, Cost: e.call.Cost, DryRun: e.call.DryRun}
	var localRules []int
	for n, i := range e.counted {
		r := &d.Rules[i]
		r.Degraded = true
		switch r.Rule.OnUnavailable {
		case Local:
			counter := e.call.Counters[n]
			counter.Numbers = counter.Numbers.shared(*share)
			local.Counters = append(local.Counters, counter)
			localRules = append(localRules, i)
		case Allow:
			r.Allowed, r.Uncounted = true, true
		case Deny:
			// Cost 0 asks without consuming, and is never denied.
			r.Allowed, r.Uncounted = d.Cost == 0, true
			if !r.Allowed {
				r.RetryAfterMS = retryAfterMS()
				denied = denied || r.Mode == Enforce
			}
		}
	}
	local.DryRun = local.DryRun || denied
	if len(local.Counters) > 0 {
		c.local.Evaluate(context.Background(), &local)
	}
	d.NowMS = c.clock().UnixMilli()
	for n, i := range localRules {
		r := &d.Rules[i]
		if local.Err != nil { // the local table refused: as strict as can be
			r.Allowed, r.Uncounted, r.RetryAfterMS = false, true, retryAfterMS()
			continue
		}
		r.take(&local.Outcome.Verdicts[n], local.Outcome.NowMS)
		if r.CostExceeds && d.Cost <= r.Quota {
			// It does not fit this instance's share, but it fits the limit: wait for the counters.
			r.CostExceeds, r.RetryAfterMS = false, retryAfterMS()
		}
	}
}

// shared returns the numbers of one instance's part of the limit.
func (n Numbers) shared(s share) Numbers {
	n.Limit = s.of(n.Limit)
	if n.Algorithm.Bucket() {
		// Rounding the two parts apart must not make a bucket that takes over a year to refill.
		most, _ := muldiv(n.Limit, MaxWindowMS, n.WindowMS, 0)
		n.Burst = min(s.of(n.Burst), most)
	}
	return n
}
