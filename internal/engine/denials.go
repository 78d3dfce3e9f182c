package engine

import (
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"
)

// Denials remembers for a short time which calls the next engine denied, and denies the same calls
// from memory. A client that continues to send checks over its limit then does not reach the store
// each time.
//
// A denial holds until its RetryAfterMS, whatever other calls are allowed in the meantime, because
// usage never falls faster than the engine computed. Two things can end it early. If a number
// changes, the call is another call, because the numbers are part of it. To notice a reset, a
// denial that is denialMS old is verified: the first call after that goes to the next engine. Until
// its answer arrives, for at most graceMS, the other calls are answered from memory. Each
// instance therefore asks the store at most ten times per second about one exhausted limit.
//
// The store decides somewhere between the start of a call and its answer. A denial ends early
// rather than late, so it holds from the start. Its times count from the answer: a client that
// waits for as long as an answer says must never come too early, and answers from memory name the
// same instant as the first one, however long that one took. For example, a call waits 20 ms and
// is denied for 980 ms. A call 100 ms after that answer is denied for 880 ms.
//
// Only the same call with the same cost is answered: a smaller cost may fit, and a greater cost has
// to wait longer.
type Denials struct {
	next    Engine
	metrics *Metrics
	clock   func() time.Time
	seed    maphash.Seed
	resets  atomic.Uint64
	slots   [denialSlots]atomic.Pointer[denial]
}

const (
	denialSlots = 4096 // if two calls have the same slot, they evict each other
	denialMS    = 100
	graceMS     = 50
)

// denial is a remembered answer.
type denial struct {
	counters []Counter
	cost     int64
	started  time.Time // not later than the store's decision
	answered time.Time // not earlier than the store's decision
	until    time.Time
	asked    atomic.Bool // some call is asking the store again
	outcome  Outcome
}

// NewDenials returns a layer that remembers the denials of next. The clock is that of Call.Started.
func NewDenials(next Engine, metrics *Metrics, clock func() time.Time) *Denials {
	return &Denials{next: next, metrics: metrics, clock: clock, seed: maphash.MakeSeed()}
}

// Evaluate implements Engine.
func (d *Denials) Evaluate(ctx context.Context, calls ...*Call) {
	resets := d.resets.Load()
	calls = keepUnanswered(calls, d.answer)
	if len(calls) == 0 {
		return
	}
	d.next.Evaluate(ctx, calls...)
	for _, c := range calls {
		d.remember(c, resets)
	}
}

// slot returns the slot of a call. It is computed from the keys of the first and the last counter,
// which end in a hash.
func (d *Denials) slot(c *Call) *atomic.Pointer[denial] {
	last := len(c.Counters) - 1
	h := maphash.String(d.seed, c.Counters[0].Key)
	if last > 0 {
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(d.seed, c.Counters[last].Key) + uint64(last)
	}
	h ^= uint64(c.Cost) * 0x9e3779b97f4a7c15
	return &d.slots[h>>32%denialSlots]
}

// remembered reports whether the answer to a call may be stored in memory, or come from memory. The
// denial of a dry run also holds, but a real call may have to start a penalty.
func (c *Call) remembered() bool {
	return c.Cost > 0 && !c.DryRun && !c.Fresh && c.NowMS == 0 && len(c.Counters) > 0
}

// answer answers a call from memory if a denial is known to hold.
func (d *Denials) answer(c *Call) bool {
	if !c.remembered() {
		return false
	}
	kept := d.slot(c).Load()
	if kept == nil || !c.Started.Before(kept.until) || kept.cost != c.Cost || !slices.Equal(kept.counters, c.Counters) {
		return false
	}
	if c.Started.Sub(kept.started).Milliseconds() >= denialMS && kept.asked.CompareAndSwap(false, true) {
		return false
	}
	kept.outcome.after(max(0, c.Started.Sub(kept.answered).Milliseconds()), &c.Outcome)
	c.clear()
	d.metrics.fromDenials.Inc()
	return true
}

// after writes the outcome with its times moved by elapsedMS. It reuses the memory of to.
func (o *Outcome) after(elapsedMS int64, to *Outcome) {
	verdicts := append(to.Verdicts[:0], o.Verdicts...)
	*to = *o
	to.Verdicts = verdicts
	to.NowMS += elapsedMS
	for i := range verdicts {
		v := &verdicts[i]
		if v.RetryAfterMS > 0 {
			v.RetryAfterMS = max(1, v.RetryAfterMS-elapsedMS)
		}
		v.ResetMS = max(v.ResetMS, to.NowMS)
		v.NextMS = max(v.NextMS, to.NowMS)
	}
}

// remember stores the answer to a call if it is a denial that will hold for a while, and if nothing
// was reset since the call began.
func (d *Denials) remember(c *Call, resets uint64) {
	if c.Err != nil || c.Outcome.Allowed || c.Outcome.Degraded || !c.remembered() {
		return
	}
	holdsMS := min(c.deniedForMS(), denialMS+graceMS)
	if holdsMS <= 0 {
		return
	}
	kept := &denial{
		counters: slices.Clone(c.Counters), cost: c.Cost, // the caller reuses its slice
		started: c.Started, answered: d.clock(), until: c.Started.Add(time.Duration(holdsMS) * time.Millisecond), outcome: c.Outcome,
	}
	kept.outcome.Verdicts = slices.Clone(c.Outcome.Verdicts)
	slot := d.slot(c)
	slot.Store(kept)
	if d.resets.Load() != resets {
		slot.CompareAndSwap(kept, nil)
	}
}

// deniedForMS returns for how many milliseconds the call will certainly be denied: the longest wait
// of its enforcing counters. It is 0 if the cost exceeds a quota, because no wait helps then.
func (c *Call) deniedForMS() (longest int64) {
	for i := range c.Outcome.Verdicts {
		v := &c.Outcome.Verdicts[i]
		if v.Allowed || c.Counters[i].Shadow {
			continue
		}
		if v.CostExceeds {
			return 0
		}
		longest = max(longest, v.RetryAfterMS)
	}
	return longest
}

// Reset implements Engine. It forgets the denials by the counters.
func (d *Denials) Reset(ctx context.Context, counters ...Counter) error {
	if err := d.next.Reset(ctx, counters...); err != nil {
		return err
	}
	d.forget(counters)
	return nil
}

// forget forgets the denials by the counters. It also forgets all that have ended, which are most:
// the counters of each would be compared again with the next reset.
func (d *Denials) forget(counters []Counter) {
	now := d.clock()
	d.resets.Add(1)
	type counterName struct{ key, id string }
	reset := make(map[counterName]bool, len(counters))
	for i := range counters {
		reset[counterName{counters[i].Key, counters[i].ID}] = true
	}
	for i := range d.slots {
		kept := d.slots[i].Load()
		if kept != nil && (!now.Before(kept.until) || slices.ContainsFunc(kept.counters, func(c Counter) bool { return reset[counterName{c.Key, c.ID}] })) {
			d.slots[i].CompareAndSwap(kept, nil)
		}
	}
}

// Refund implements Engine. It keeps the denials, because each of them is verified soon.
func (d *Denials) Refund(ctx context.Context, refunds ...*Refund) { d.next.Refund(ctx, refunds...) }
