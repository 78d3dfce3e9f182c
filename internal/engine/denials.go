package engine

import (
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"
)

// Denials answers from memory, for a moment, what the next engine has just denied, so that a
// client that hammers a closed limit does not reach the store each time.
//
// A denial holds until its RetryAfterMS, whatever else is admitted meanwhile: usage never falls
// faster by itself than the engine foresaw. Two things can end it early. A changed number is
// another call, because the numbers are part of the question. A reset shows because a denial that
// is denialMS old is asked again: the first call after that goes to the next engine, and all others
// are answered from memory until its answer is there, for graceMS at most. So each instance asks
// the store at most ten times a second about one closed limit, and what others consumed shows as
// often.
//
// Only the same call is answered, cost included: a smaller cost may fit, and a greater one
// has to wait longer.
type Denials struct {
	next    Engine
	metrics *Metrics
	seed    maphash.Seed
	resets  atomic.Uint64
	slots   [denialSlots]atomic.Pointer[denial]
}

const (
	denialSlots = 4096 // two calls with one slot evict each other; nothing else happens
	denialMS    = 100
	graceMS     = 50
)

// denial is a remembered answer.
type denial struct {
	counters []Counter
	cost     int64
	started  time.Time // no later than the store's decision
	until    time.Time
	asked    atomic.Bool // some call asks again
	outcome  Outcome
}

// NewDenials returns a memory of the denials of next.
func NewDenials(next Engine, metrics *Metrics) *Denials {
	return &Denials{next: next, metrics: metrics, seed: maphash.MakeSeed()}
}

// Evaluate is part of Engine.
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

// slot finds the place of a call by the keys of its first and last counter, which end in a hash.
func (d *Denials) slot(c *Call) *atomic.Pointer[denial] {
	last := len(c.Counters) - 1
	h := maphash.String(d.seed, c.Counters[0].Key)
	if last > 0 {
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(d.seed, c.Counters[last].Key) + uint64(last)
	}
	h ^= uint64(c.Cost) * 0x9e3779b97f4a7c15
	return &d.slots[h>>32%denialSlots]
}

// remembered reports whether the answer to a call may be kept, or come from memory. A dry denial
// is as certain as another, but the real one may have to start a penalty.
func (c *Call) remembered() bool {
	return c.Cost > 0 && !c.DryRun && !c.Fresh && c.NowMS == 0 && len(c.Counters) > 0
}

// answer answers a call from memory where a denial is certain to hold.
func (d *Denials) answer(c *Call) bool {
	if !c.remembered() {
		return false
	}
	kept := d.slot(c).Load()
	if kept == nil || !c.Started.Before(kept.until) || kept.cost != c.Cost || !slices.Equal(kept.counters, c.Counters) {
		return false
	}
	elapsedMS := max(0, c.Started.Sub(kept.started).Milliseconds())
	if elapsedMS >= denialMS && kept.asked.CompareAndSwap(false, true) {
		return false
	}
	kept.outcome.after(elapsedMS, &c.Outcome)
	c.Err, c.lease = nil, leasing{} // the call may be one that was used before
	d.metrics.fromDenials.Inc()
	return true
}

// after writes the outcome as it reads so many milliseconds later, reusing the memory of to.
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

// remember keeps the answer to a call if it is a denial that is certain to hold for a while, and
// if nothing was reset since the call began.
func (d *Denials) remember(c *Call, resets uint64) {
	if c.Err != nil || c.Outcome.Allowed || c.Outcome.Degraded || !c.remembered() {
		return
	}
	holdsMS := min(c.deniedForMS(), denialMS+graceMS)
	if holdsMS <= 0 {
		return
	}
	kept := &denial{
		counters: slices.Clone(c.Counters), cost: c.Cost, // the caller uses its own again
		started: c.Started, until: c.Started.Add(time.Duration(holdsMS) * time.Millisecond), outcome: c.Outcome,
	}
	kept.outcome.Verdicts = slices.Clone(c.Outcome.Verdicts)
	slot := d.slot(c)
	slot.Store(kept)
	if d.resets.Load() != resets {
		slot.CompareAndSwap(kept, nil)
	}
}

// deniedForMS is how long the call is certain to be denied, milliseconds: the longest wait of its
// enforcing counters. It is 0 where the cost exceeds a quota, which no wait can help.
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

// Reset is part of Engine. It forgets the denials by the counters.
func (d *Denials) Reset(ctx context.Context, counters ...Counter) error {
	if err := d.next.Reset(ctx, counters...); err != nil {
		return err
	}
	d.forget(counters)
	return nil
}

// forget forgets the denials by the counters.
func (d *Denials) forget(counters []Counter) {
	d.resets.Add(1)
	type counterName struct{ key, id string }
	reset := make(map[counterName]bool, len(counters))
	for i := range counters {
		reset[counterName{counters[i].Key, counters[i].ID}] = true
	}
	for i := range d.slots {
		kept := d.slots[i].Load()
		if kept != nil && slices.ContainsFunc(kept.counters, func(c Counter) bool { return reset[counterName{c.Key, c.ID}] }) {
			d.slots[i].CompareAndSwap(kept, nil)
		}
	}
}

// Refund is part of Engine. A denial remains what it was: it is asked again soon.
func (d *Denials) Refund(ctx context.Context, refunds ...*Refund) { d.next.Refund(ctx, refunds...) }
