// Package throttle limits how often people and programs may try something that costs others: guess
// a password, request a mail, invite somebody. It counts with the engine that counts checks, so all
// instances share the limits.
//
// Example: a tenant may send 200 invitations a day, and 100 per hour from one address. Begin counts
// one for both rules, or for none, and then returns how long to wait. If the invitation is not
// created, Undecided returns what was counted.
package throttle

import (
	"context"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Every returns the window of a rule.
func Every(d time.Duration) limit.Window {
	return limit.Window{Duration: limit.Duration{MS: d.Milliseconds()}}
}

// Throttle limits how often something is tried, as rules of the engine. Its counters are shared by
// all instances. While Redis is unavailable, each instance counts in its own memory, with its share
// of the limits.
type Throttle struct {
	purpose string // which separates its counters from those of other throttles
	rules   []limit.Rule
	engine  engine.Engine
	key     Namer
	now     func() time.Time
}

// A Namer returns the key of the counter of a value, and the ID of its purpose (Counter.ID): when
// Redis has no room for more counters, values share only those of the same purpose. Counters in the
// memory of a process need no ID.
type Namer func(purpose, value string) (key, id string)

// Plain is the Namer for counters in the memory of one process.
func Plain(purpose, value string) (key, id string) { return purpose + " " + value, "" }

// New returns a throttle whose counters are in e, under the names that key returns.
func New(purpose string, e engine.Engine, key Namer, now func() time.Time, rules ...limit.Rule) *Throttle {
	return &Throttle{purpose: purpose, rules: rules, engine: e, key: key, now: now}
}

// Memory returns counters of this process, for up to 100 000 values before they share any. They are
// for throttles only.
func Memory(now func() time.Time) engine.Engine {
	const most = 100_000
	return engine.NewMemory(engine.MemoryOptions{
		Clock: func() int64 { return now().UnixMilli() }, MaxCounters: 1, MaxThrottles: most,
	})
}

// Attempt is an attempt that was allowed and counted. It counts as failed until Succeeded or
// Undecided is called, so concurrent attempts allow no more than sequential ones.
type Attempt struct {
	of   *Throttle
	call engine.Call
}

// Begin counts an attempt, or returns how long to wait. There is one value for each rule. A rule
// whose value is "" does not apply.
func (t *Throttle) Begin(ctx context.Context, values ...string) (*Attempt, time.Duration) {
	try := &Attempt{of: t, call: engine.Call{Space: engine.ThrottleSpace, Cost: 1, Fresh: true, Started: t.now()}}
	for i := range t.rules {
		rule := &t.rules[i]
		if values[i] == "" {
			continue
		}
		key, id := t.key(t.purpose+" "+rule.Slug, values[i])
		try.call.Counters = append(try.call.Counters, engine.Counter{
			Key: key, ID: id, Numbers: rule.Numbers(), OnUnavailable: limit.Local,
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

// Networks returns the rules for an address and for the wider networks that it is in, those of a
// home and of a site (origin.Networks): one customer of a provider may have all addresses of a
// site. The limit is 4 times as large for a home, and 16 times for a site, which many people may
// share.
func Networks(address limit.Rule) []limit.Rule {
	home, site := address, address
	home.Slug, site.Slug = address.Slug+"-home", address.Slug+"-site"
	home.Limit, site.Limit = 4*address.Limit, 16*address.Limit
	home.Burst, site.Burst = 4*address.Burst, 16*address.Burst
	return []limit.Rule{address, home, site}
}

// ByNetwork returns the rules for Take and BeginFrom: for an account from one address, for the
// networks of the address, and for the account.
func ByNetwork(both, address, account limit.Rule) []limit.Rule {
	return append(append([]limit.Rule{both}, Networks(address)...), account)
}

// BeginFrom counts an attempt by an account and the names of the networks of its client. The
// throttle has the rules of ByNetwork.
func (t *Throttle) BeginFrom(ctx context.Context, account string, networks [3]string) (*Attempt, time.Duration) {
	return t.Begin(ctx, account+" "+networks[0], networks[0], networks[1], networks[2], account)
}

// Take is BeginFrom for an attempt that always counts. It returns how long to wait.
func (t *Throttle) Take(ctx context.Context, account string, networks [3]string) time.Duration {
	_, wait := t.BeginFrom(ctx, account, networks)
	return wait
}

// Succeeded ends an attempt with the right password: the person's own failures, of the first rule,
// are reset, and the attempt does not count for the others.
func (a *Attempt) Succeeded(ctx context.Context) {
	_ = a.of.engine.Reset(context.WithoutCancel(ctx), a.call.Counters[0]) // without Redis, the failures stay until their window ends
	a.refund(ctx, 1)
}

// Undecided ends an attempt without a result.
func (a *Attempt) Undecided(ctx context.Context) { a.refund(ctx, 0) }

// refund returns what the attempt counted for the rules from first on. What cannot be returned ends
// with its window.
func (a *Attempt) refund(ctx context.Context, first int) {
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
