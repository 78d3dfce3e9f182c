package engine

import (
	"context"
	"sync"
	"time"

	"weir/internal/limit"
)

// An outage must not give customers their limits twice. Fallback therefore continues from what the
// store last said: a local counter begins with this instance's share of what remained, not with its
// share of the limit. After the outage, what was admitted locally is charged to the store, once, so
// that the window that spans the end of the outage holds it too.
// A call that timed out may have been counted there already, so its units are not charged. Those of
// a call that did not reach the store are.
//
// Example: a limit of 90 a minute and three instances. The store last said 30 remaining. Each
// instance then allows 10 units until the window ends, and 30 in each window after that. Redis is
// available again when each has allowed 6: each charges 6, and 12 remain.

// A debtor is a local engine that can say what its counters owe to the store after an outage.
type debtor interface {
	// Len returns the number of counters.
	Len() int
	// owed returns what a counter owes, or nil.
	owed(key string, nowMS, losses int64) *debt
	// round begins a round. In it, a tenant has turns as long as something of it could be charged.
	round()
	// turn returns the next turn: at most its equal share of most debts of a tenant that has no
	// other turn, without those to servers that are unavailable.
	turn(nowMS, losses int64, away func(key string) bool, most int) turn
	// done ends a turn. charged says whether something could be charged.
	done(t turn, charged bool)
	// settled records the outcome of a charge: debtPaid, debtStays or debtUnknown.
	settled(d *debt, outcome int)
	// tidy removes a part of what is of no use any more. It is called again and again.
	tidy(away func(key string) bool)
}

// localCall is what Fallback adds to a call of local counters.
type localCall struct {
	nowMS   int64 // by the store's clock
	losses  int64 // how often the store is known to have lost counters
	unknown bool  // the store may have counted the call
	// Of each counter: itself, with the numbers of all instances, and what it begins with.
	counters []Counter
	primes   []prime
}

// prime is units that a local counter holds when it is created.
type prime struct{ used, atMS int64 }

// outageState is what a local counter must know to be settled.
type outageState struct {
	counter  Counter // with the numbers of all instances
	numbers  limit.Numbers
	base     limit.State // what is not owed, because the store knows it or others used it; nil: nothing
	ofOthers bool        // others used a part of base, which is not owed even if the store lost its counters
	losses   int64
	place    int // index in owing.counters

	// claimed is the state whose units are on their way to the store; nil: none are. It also has
	// later units that the store may know of. more means that it does not have all later units.
	claimed limit.State
	more    bool
}

// newOutageState returns what the local counter i of a call must know.
func newOutageState(c *Call, i int) *outageState {
	if c.local == nil {
		return nil
	}
	o := &outageState{counter: c.local.counters[i], numbers: c.Counters[i].Numbers, losses: c.local.losses}
	if p := c.local.primes[i]; p.used > 0 {
		o.base = limit.NewState(o.numbers.Algorithm)
		o.base.Charge(&o.numbers, p.used, p.atMS)
	}
	return o
}

// renew takes over the numbers that counter i has by now. Units that are allowed beyond the earlier
// ones would not be owed. Lower ones are not taken over: what was allowed before stays owed.
func (o *outageState) renew(c *Call, i int) {
	if n := &c.Counters[i].Numbers; *n != o.numbers && n.Ceiling() >= o.numbers.Ceiling() {
		o.counter, o.numbers = c.local.counters[i], *n
	}
}

// follow notes a charge of counter i that the store may know of.
func (o *outageState) follow(c *Call, i int, v *limit.Verdict) {
	cost := c.CostOf(i)
	if cost == 0 || !c.Outcome.Allowed || !v.Allowed {
		return
	}
	o.more = true
	if !c.local.unknown {
		return
	}
	if o.base == nil {
		o.base = limit.NewState(o.numbers.Algorithm)
	}
	o.base.Charge(&o.numbers, cost, c.Outcome.NowMS)
	if o.claimed != nil {
		o.claimed.Charge(&o.numbers, cost, c.Outcome.NowMS)
	}
}

// prime returns what the local counter of this instance begins with.
func (f *Fallback) prime(c *Counter, own *limit.Numbers, share Share, nowMS int64) prime {
	last := f.seen.last(c)
	if last.used == 0 || nowMS >= last.resetMS {
		return prime{}
	}
	if own.Overage { // it counts the whole limit
		return prime{last.used, last.chargedAt(&c.Numbers)}
	}
	remaining := max(0, c.Numbers.Quota()-last.used)
	part := remaining / share.Count
	if share.Rank < remaining%share.Count {
		part++
	}
	return prime{max(0, own.Quota()-part), last.chargedAt(&c.Numbers)}
}

// storeMS returns the time by the store's clock, estimated by this process's monotonic clock.
func (f *Fallback) storeMS(at time.Time) int64 {
	return f.startMS + at.Sub(f.start).Milliseconds() + f.ahead.Load()
}

// follow notes by a call how far the store's clock is ahead of this process's. It writes only what
// differs: all calls share the value.
func (f *Fallback) follow(c *Call) {
	if !c.Started.IsZero() && c.NowMS == 0 {
		f.learn(c.Started, c.Outcome.NowMS)
	}
}

// learn notes what the store's clock showed at an instant.
func (f *Fallback) learn(at time.Time, storeMS int64) {
	own := f.startMS + at.Sub(f.start).Milliseconds()
	was := f.ahead.Load()
	if off := storeMS - own - was; off > maxClockError || off < -maxClockError {
		f.ahead.CompareAndSwap(was, was+off)
	}
}

// maxClockError is how much the estimate of the store's clock may differ, milliseconds.
const maxClockError = 100

// note keeps what the store said about the counters of a call. The answer to an allowed dry run
// says what would be left if it had been charged, so nothing is kept of it.
func (f *Fallback) note(c *Call) {
	f.follow(c)
	if c.DryRun && c.Cost > 0 && c.Outcome.Allowed {
		return
	}
	for i := range c.Outcome.Verdicts {
		if counter := &c.Counters[i]; counter.OnUnavailable == limit.Local {
			if f.seen.note(c.Tenant, counter, &c.Outcome.Verdicts[i], c.Outcome.NowMS) && !c.Leased {
				f.metrics.regressions.Inc()
			}
		}
	}
}

// evaluate passes calls on, and before each one what its local counters owe to the store, in the
// same round trip. Usually there is nothing.
func (f *Fallback) evaluate(ctx context.Context, calls []*Call) {
	if f.debts == nil || f.debts.Len() == 0 {
		f.next.Evaluate(ctx, calls...)
		return
	}
	var owed []*debt
	for _, c := range calls {
		for i := range c.Counters {
			counter := &c.Counters[i]
			if counter.OnUnavailable != limit.Local || c.DryRun || c.NowMS != 0 || f.away(counter.Key) {
				continue
			}
			if d := f.debts.owed(counter.OwnKey(), f.storeMS(f.clock()), f.losses()); d != nil {
				owed = append(owed, d)
			}
		}
	}
	f.next.Evaluate(ctx, append(f.charges(owed), calls...)...)
	if left, _ := f.conclude(owed); len(left) > 0 {
		f.charge(ctx, left)
	}
}

// run settles and tidies local counters in the background, until the breaker is closed. It never
// waits for a charge before that: those of a tenant may take long, while others have new debts.
func (f *Fallback) run(breaker *Breaker) {
	var charges sync.WaitGroup
	defer charges.Wait()
	for breaker.wait(settleEvery) {
		f.settle(context.Background(), &charges, breaker.stop)
		f.tidy()
	}
}

// tidy lets the local engine tidy a part of its counters: all of them every few seconds.
func (f *Fallback) tidy() {
	if f.debts != nil {
		f.debts.tidy(f.away)
	}
}

// settleAll charges all local counters to the store, if it is available again, and waits for it.
func (f *Fallback) settleAll(ctx context.Context) {
	var charges sync.WaitGroup
	f.settle(ctx, &charges, nil)
	charges.Wait()
}

// settle begins to charge local counters to the store: of each tenant some, with a call of its own,
// so that they wait behind its own checks only. When a call has ended, the next turn follows.
func (f *Fallback) settle(ctx context.Context, charges *sync.WaitGroup, stop <-chan struct{}) {
	if f.debts == nil || f.debts.Len() == 0 || f.down() {
		return
	}
	f.debts.round()
	for f.settling.Add(1) <= maxCalls {
		first := f.turn()
		if first.of == nil {
			break
		}
		charges.Go(func() { f.takeTurns(ctx, first, stop) })
	}
	f.settling.Add(-1)
}

// takeTurns charges the debts of a turn, and of others that are ready when it has ended, until stop
// is closed.
func (f *Fallback) takeTurns(ctx context.Context, t turn, stop <-chan struct{}) {
	defer f.settling.Add(-1)
	for ; t.of != nil; t = f.turn() {
		select {
		case <-stop: // looked at after the turn was claimed, so that none begins later
			for _, d := range t.owed {
				f.debts.settled(d, debtStays)
			}
			f.debts.done(t, false)
			return
		default:
			f.debts.done(t, f.charge(ctx, t.owed) > 0)
		}
	}
}

func (f *Fallback) turn() turn {
	return f.debts.turn(f.storeMS(f.clock()), f.losses(), f.away, maxSettled)
}

const (
	settleEvery = 50 * time.Millisecond
	maxCalls    = 100 // at once
	maxSettled  = 100 // counters of all tenants in one turn of each
	maxCharges  = 3   // of one counter
)

// debt is what a local counter must charge to the store.
type debt struct {
	of     *memoryCounter
	losses int64 // when it was claimed
	call   Call
	units  int64
}

// charge charges debts to the store, and returns how many local counters it has settled. If a
// charge does not fit, as much as fits is charged.
func (f *Fallback) charge(ctx context.Context, owed []*debt) (settled int) {
	for range maxCharges {
		f.next.Evaluate(context.WithoutCancel(ctx), f.charges(owed)...)
		left, done := f.conclude(owed)
		settled += done
		if owed = left; len(owed) == 0 {
			return settled
		}
	}
	for _, d := range owed { // other checks use up what becomes available, so the rest cannot be charged
		f.debts.settled(d, debtPaid)
	}
	return settled + len(owed)
}

// charges returns the calls that charge debts. The call of a debt of 0 only reads the counter: its
// answer shows that the store counts again.
func (f *Fallback) charges(owed []*debt) (calls []*Call) {
	for _, d := range owed {
		d.call.Cost, d.call.Err, d.call.Started = d.units, nil, f.clock()
		calls = append(calls, &d.call)
	}
	return calls
}

// conclude records the results of charges. It returns those that exceeded their counter, reduced to
// the remaining units. What the store says is noted before the local counter is removed, so that no
// new one begins with what it said before the outage.
func (f *Fallback) conclude(owed []*debt) (left []*debt, settled int) {
	for _, d := range owed {
		c := &d.call
		if c.Err == nil && f.seen.note(c.Tenant, &c.Counters[0], &c.Outcome.Verdicts[0], c.Outcome.NowMS) && !c.Counters[0].Leased {
			f.metrics.regressions.Inc()
		}
		switch {
		case NotCounted(c.Err):
			f.debts.settled(d, debtStays)
		case c.Err != nil:
			f.debts.settled(d, debtUnknown)
		case !c.Outcome.Allowed && c.Outcome.Verdicts[0].Remaining > 0:
			d.units = min(d.units, c.Outcome.Verdicts[0].Remaining)
			left = append(left, d)
		default:
			f.debts.settled(d, debtPaid)
			settled++
		}
	}
	return left, settled
}

// The states of a debt.
const (
	debtStays   = iota // it was not sent: it is charged later, unless its window ends before
	debtUnknown        // the store may have charged it: it must not be charged again
	debtPaid
)
