package engine

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// Fallback answers the calls that the next engine cannot answer, by the OnUnavailable of each
// counter. Such an outcome is Degraded.
type Fallback struct {
	next    Engine
	local   Engine
	debts   debtor // local, if its counters begin with what the store said, and are settled
	share   func() Share
	clock   func() time.Time
	metrics *Metrics
	away    func(key string) bool
	down    func() bool // no server answers, and there is only one
	losses  func() int64
	seen    *seen
	start   time.Time
	startMS int64
	ahead   atomic.Int64 // milliseconds that the store's clock is ahead

	settling atomic.Int64 // calls that charge debts and are on their way
}

// newFallback returns a Fallback in front of next. The breaker says which servers are unavailable.
func newFallback(next Engine, breaker *Breaker, o StackOptions, clock func() time.Time) *Fallback {
	f := &Fallback{
		next: next, local: o.Local, share: o.Share, clock: clock, metrics: o.Metrics, seen: newSeen(),
		away: breaker.Away, down: breaker.down, losses: breaker.Losses, start: clock(),
	}
	f.debts, _ = o.Local.(debtor)
	f.startMS = f.start.UnixMilli()
	breaker.probed = func(storeMS int64) { f.learn(clock(), storeMS) }
	return f
}

// Share is the part of every limit that one instance may allow: one of Count equal parts, at
// position Rank.
type Share struct{ Count, Rank int64 }

// Of returns this instance's part of n. The remainder of the division goes to the first ranks.
// Every part is at least 1, so the parts of n add up to max(n, Count).
func (s Share) Of(n int64) int64 {
	part := n / s.Count
	if s.Rank < n%s.Count {
		part++
	}
	return max(part, 1)
}

// numbers returns the numbers for one instance's part of the limit. With overage the part is the
// full limit: every call is allowed in any case, and with a smaller part an instance would report
// overage while the limit is not used up.
func (s Share) numbers(n limit.Numbers) limit.Numbers {
	if n.Overage {
		return n
	}
	n.Limit = s.Of(n.Limit)
	if n.Algorithm.Bucket() {
		// The two parts are rounded separately. This must not create a bucket that takes over a
		// year to refill.
		most, _ := limit.MulDiv(n.Limit, limit.MaxWindowMS, n.WindowMS, 0)
		n.Burst = min(s.Of(n.Burst), most)
	}
	return n
}

// Evaluate implements Engine. No call ends with Err.
func (f *Fallback) Evaluate(ctx context.Context, calls ...*Call) {
	f.evaluate(ctx, calls)
	for _, c := range calls {
		if c.Err != nil {
			f.answer(c)
		} else {
			c.Outcome.Degraded = false
			f.note(c)
		}
	}
}

// answer answers a call without the store. If an enforcing counter denies, nothing is counted
// locally.
func (f *Fallback) answer(c *Call) {
	out := &c.Outcome
	*out = Outcome{Allowed: true, Degraded: true, NowMS: f.clock().UnixMilli(), Verdicts: out.Verdicts[:0]}
	local := Call{Tenant: c.Tenant, Cost: c.Cost, PerCounter: c.PerCounter, DryRun: c.DryRun, Space: c.Space}
	var places []int // of the local counters
	share := f.share()
	outage := &localCall{nowMS: f.storeMS(f.clock()), losses: f.losses(), unknown: !NotCounted(c.Err)}
	for i := range c.Counters {
		counter, v := &c.Counters[i], limit.Verdict{Degraded: true}
		switch counter.OnUnavailable {
		case limit.Local:
			shared := *counter
			shared.Credits = nil // they are spent only where all instances see it
			shared.Leased = shared.Leased || c.Leased
			own := shared
			own.Numbers = share.numbers(own.Numbers)
			local.Counters, places = append(local.Counters, own), append(places, i)
			outage.counters = append(outage.counters, shared)
			outage.primes = append(outage.primes, f.prime(counter, &own.Numbers, share, outage.nowMS))
		case limit.Allow:
			v.Allowed, v.Uncounted = true, true
		case limit.Deny:
			// Cost 0 consumes nothing and is never denied.
			v.Allowed, v.Uncounted = c.CostOf(i) == 0, true
			if !v.Allowed {
				v.RetryAfterMS = RetryAfterOutageMS()
				out.Allowed = out.Allowed && counter.Shadow
			}
		}
		out.Verdicts = append(out.Verdicts, v)
	}
	c.Err = nil
	if len(places) == 0 {
		return
	}
	local.DryRun, local.local = local.DryRun || !out.Allowed, outage
	f.local.Evaluate(context.Background(), &local)
	for n, i := range places {
		v := &out.Verdicts[i]
		if local.Err != nil { // the local engine is full: deny
			*v = limit.Verdict{Degraded: true, Uncounted: true, RetryAfterMS: RetryAfterOutageMS()}
		} else {
			*v = local.Outcome.Verdicts[n]
			if v.Degraded = true; !v.Uncounted {
				v.PartQuota = local.Counters[n].Numbers.Quota()
			}
			// Local times are those of the local engine's clock.
			v.ResetMS += out.NowMS - local.Outcome.NowMS
			v.NextMS += out.NowMS - local.Outcome.NowMS
			if v.CostExceeds && (c.CostOf(i) <= c.Counters[i].Numbers.Quota() || c.Counters[i].Credits != nil) {
				// The cost exceeds this instance's share, but perhaps not the limit with credits:
				// the caller has to wait for the store.
				v.CostExceeds, v.RetryAfterMS = false, RetryAfterOutageMS()
			}
		}
		out.Allowed = out.Allowed && (v.Allowed || c.Counters[i].Shadow)
	}
}

const retryAfterOutage = 300 * time.Millisecond

// RetryAfterOutageMS returns how many milliseconds a caller should wait that was denied because the
// counters are unavailable: until the probes can have closed the breaker, plus a random delay.
func RetryAfterOutageMS() int64 {
	return (retryAfterOutage + rand.N(retryAfterOutage)).Milliseconds()
}

// Reset implements Engine. It also deletes the local counters.
func (f *Fallback) Reset(ctx context.Context, counters ...Counter) error {
	if err := f.next.Reset(ctx, counters...); err != nil {
		return err
	}
	f.seen.forget(counters)
	return f.local.Reset(ctx, counters...)
}

// Refund implements Engine. Local counters are not changed, because none of their units was
// prefetched.
func (f *Fallback) Refund(ctx context.Context, refunds ...*Refund) { f.next.Refund(ctx, refunds...) }
