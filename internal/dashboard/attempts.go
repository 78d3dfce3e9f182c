package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/tenants"
)

func duration(d time.Duration) limit.Window {
	return limit.Window{Duration: limit.Duration{MS: d.Milliseconds()}}
}

// throttle limits how often something is tried, as rules of the engine. Its counters are shared by
// all instances. While Redis is unavailable, each instance counts in its own memory, with its share
// of the limits.
type throttle struct {
	purpose string // which separates its counters from those of other throttles
	rules   []limit.Rule
	engine  engine.Engine
	key     func(purpose, value string) string
	now     func() time.Time
}

// newThrottle returns a throttle that counts as d says.
func (d *dashboard) newThrottle(purpose string, rules ...limit.Rule) *throttle {
	return &throttle{purpose: purpose, rules: rules, engine: d.Counters, key: d.Keys.Private, now: d.Now}
}

// memoryCounters returns counters of this process.
func memoryCounters(now func() time.Time) engine.Engine {
	const most = 100_000
	return engine.NewMemory(engine.MemoryOptions{
		Clock: func() int64 { return now().UnixMilli() }, MaxCounters: most, MaxPerTenant: most,
	})
}

// attempt is an attempt that was allowed and counted. It counts as failed until succeeded or
// undecided is called, so concurrent attempts allow no more than sequential ones.
type attempt struct {
	of   *throttle
	call engine.Call
}

// begin counts an attempt, or returns how long to wait. There is one value for each rule.
func (t *throttle) begin(ctx context.Context, values ...string) (*attempt, time.Duration) {
	try := &attempt{of: t, call: engine.Call{Cost: 1, Fresh: true, Started: t.now()}}
	for i := range t.rules {
		rule := &t.rules[i]
		try.call.Counters = append(try.call.Counters, engine.Counter{
			Key: t.key(t.purpose+" "+rule.Slug, values[i]), Numbers: rule.Numbers(), OnUnavailable: limit.Local,
		})
	}
	t.engine.Evaluate(context.WithoutCancel(ctx), &try.call)
	if try.call.Err != nil { // the counters in memory are full
		return nil, time.Minute
	}
	if try.call.Outcome.Allowed {
		return try, 0
	}
	var wait int64
	for _, v := range try.call.Outcome.Verdicts {
		if !v.Allowed {
			wait = max(wait, v.RetryAfterMS)
		}
	}
	return nil, max(time.Duration(wait)*time.Millisecond, time.Second)
}

// take counts an attempt that always counts, by an account and an address, or returns how long to
// wait. The throttle has three rules: for both, for the address and for the account.
func (t *throttle) take(ctx context.Context, account, address string) time.Duration {
	_, wait := t.begin(ctx, account+" "+address, address, account)
	return wait
}

// succeeded ends an attempt with the right password: the person's own failures, of the first rule,
// are reset, and the attempt does not count for the others.
func (a *attempt) succeeded(ctx context.Context) {
	_ = a.of.engine.Reset(context.WithoutCancel(ctx), a.call.Counters[0]) // without Redis, the failures stay until their window ends
	a.refund(ctx, 1)
}

// undecided ends an attempt without a result.
func (a *attempt) undecided(ctx context.Context) { a.refund(ctx, 0) }

// refund returns what the attempt counted for the rules from first on. What cannot be returned ends
// with its window.
func (a *attempt) refund(ctx context.Context, first int) {
	out := &a.call.Outcome
	if out.Degraded {
		return
	}
	refund := &engine.Refund{}
	for i := first; i < len(a.call.Counters); i++ {
		c := &a.call.Counters[i]
		refund.Parts = append(refund.Parts, engine.RefundPart{
			Key: c.Key, ID: c.ID, Numbers: c.Numbers, Units: 1, Ground: c.Numbers.Ground(&out.Verdicts[i], out.NowMS),
		})
	}
	a.of.engine.Refund(context.WithoutCancel(ctx), refund)
}

// accountKey returns a short key for an address of a login. All spellings of it have the same key.
func accountKey(email string) string {
	sum := sha256.Sum256([]byte(tenants.CanonicalEmail(email)))
	return hex.EncodeToString(sum[:16])
}

// addressOf returns the address of a connection; for IPv6 the network of 64 bits, which belongs to
// one customer.
func addressOf(remote string) string {
	return origin.Network(hostOf(remote))
}

// hostOf returns the address of a connection without its port.
func hostOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}
