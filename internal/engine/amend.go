package engine

import (
	"context"
	"errors"

	"weir/internal/limit"
)

// Amendment changes the stored state of counters of one tenant after the limits of their subject
// changed. It resets the counters, or it keeps the used share of the quota. The store changes each
// counter once for each Once, even if the amendment is repeated: all of them at one instant, unless
// that would block the store for too long.
//
// The amendments of a tenant are carried out in the order of their numbers. So one key has the
// number of the newest one that was done, for all of them.
type Amendment struct {
	Once   string // a key like those of counters, with their hash tag
	Done   string // the key of that number, with the same hash tag
	Number int64  // from 1; of the same Once it is always the same
	NowMS  int64  // milliseconds since 1970; 0: the engine's own clock
	Reset  bool   // false: keep the used share
	Parts  []AmendPart
	// Follows means that another amendment with the same Once has more of the counters. The last of
	// them is without it.
	Follows bool

	// The result. WorkUS is how long the store had to work for it, and served nothing else: an
	// estimate in microseconds, by what it has done. Before means that it had done all of it, and
	// all that follows, before.
	WorkUS int64
	Before bool
}

// AmendPart is one counter of an Amendment.
type AmendPart struct {
	Counter               // with the numbers under which it was counted; Leased: units of it may be held
	To      limit.Numbers // of the same algorithm and window
}

var errAmendment = errors.New("an amendment can change only limits, bursts and overage of counters of one tenant")

// Validate returns why an engine cannot carry out the amendment. It changes nothing.
func (a *Amendment) Validate() error {
	for i := range a.Parts {
		part := &a.Parts[i]
		from, to := part.Numbers, part.To
		from.Limit, from.Burst, from.Overage, to.Limit, to.Burst, to.Overage = 0, 0, false, 0, 0, false
		if !part.Numbers.Valid() || !part.To.Valid() || from != to || HashTag(part.Key) != HashTag(a.Once) {
			return errAmendment
		}
	}
	return nil
}

// maxAmendWork is the maximum work of a step with several counters.
const maxAmendWork = 128

// work estimates the work of changing a counter for the store. Most are 1. A log has a step of its
// own: it may have many more entries than its limit, which were counted under a higher one.
func (p *AmendPart) work(reset bool) int64 {
	n := &p.Numbers
	switch {
	case reset:
		return 1
	case n.Algorithm == limit.SlidingWindowLog:
		return maxAmendWork
	case n.Algorithm == limit.SlidingWindowBuckets:
		return 1 + n.WindowMS/n.PrecisionMS/8
	}
	return 1
}

// Steps splits the amendment into those that the store can carry out at one instant each. It serves
// nothing else meanwhile: at most a few milliseconds.
func (a *Amendment) Steps() (steps []Amendment) {
	for from, to := 0, 0; from < len(a.Parts); from = to {
		for work := int64(0); to < len(a.Parts); to++ {
			work += a.Parts[to].work(a.Reset)
			if to > from && work > maxAmendWork {
				break
			}
		}
		step := Amendment{Once: a.Once, Done: a.Done, Number: a.Number, NowMS: a.NowMS, Reset: a.Reset}
		step.Parts, step.Follows = a.Parts[from:to], a.Follows || to < len(a.Parts)
		steps = append(steps, step)
	}
	return steps
}

// counters returns the counters of the amendment.
func (a *Amendment) counters() []Counter {
	out := make([]Counter, len(a.Parts))
	for i := range a.Parts {
		out[i] = a.Parts[i].Counter
	}
	return out
}

// Amend implements Engine. It forgets the denials by these counters, because the calls may be
// allowed now.
func (d *Denials) Amend(ctx context.Context, a *Amendment) error {
	if err := d.next.Amend(ctx, a); err != nil {
		return err
	}
	d.forget(a.counters())
	return nil
}

// Amend implements Engine. It does not change local counters, because they count only during an
// outage.
func (f *Fallback) Amend(ctx context.Context, a *Amendment) error {
	if err := f.next.Amend(ctx, a); err != nil {
		return err
	}
	f.seen.forget(a.counters())
	return nil
}

// Amend implements Engine. It ends the leases of the counters, because their units were charged
// under other numbers. If the store scaled the units, it takes them back.
func (l *Leases) Amend(ctx context.Context, a *Amendment) error {
	if err := l.next.Amend(ctx, a); err != nil {
		return err
	}
	var scaled, others []Counter
	for i := range a.Parts {
		if a.Parts[i].Leased && !a.Reset {
			scaled = append(scaled, a.Parts[i].Counter)
		} else {
			others = append(others, a.Parts[i].Counter)
		}
	}
	if len(others) > 0 {
		l.forget(others)
	}
	if len(scaled) > 0 {
		l.giveUp(scaled)
	}
	return nil
}

// Amend implements Engine.
func (b *Breaker) Amend(ctx context.Context, a *Amendment) error {
	circuit := b.circuitOf(a.Once)
	if !circuit.allow() {
		return ErrBreakerOpen
	}
	err := b.next.Amend(context.WithoutCancel(ctx), a)
	circuit.done(err)
	if err != nil {
		b.metrics.storeErrors.Inc()
	}
	return err
}

// Amend implements Engine. Overflow counters are not changed.
func (e *Memory) Amend(ctx context.Context, a *Amendment) error {
	if err := a.Validate(); err != nil {
		return err
	}
	newest, _ := e.amended.Load(a.Done)
	if number, _ := newest.(int64); number >= a.Number {
		a.Before = true
		return nil
	}
	if !a.Follows {
		e.amended.Store(a.Done, a.Number)
	}
	now := a.NowMS
	if now == 0 {
		now = e.clock()
	}
	for i := range a.Parts {
		part := &a.Parts[i]
		key := part.OwnKey()
		if _, done := e.amended.LoadOrStore(a.Once+key, true); done {
			continue
		}
		if a.Reset {
			if err := e.Reset(ctx, part.Counter); err != nil {
				return err
			}
			continue
		}
		shard := e.shardOf(key)
		shard.mu.Lock()
		if kept := shard.counters[key]; kept != nil {
			if part.Leased {
				before, _ := e.scalings.Load(key)
				all, _ := before.([]limit.Scaling)
				e.scalings.Store(key, limit.AppendScaling(all, limit.ScalingOf(kept.state, &part.Numbers, &part.To, now)))
			}
			limit.Scale(kept.state, &part.Numbers, &part.To, now)
			kept.expires += limit.MaxWindowMS // the counter may take longer to be full now; the next charge sets the expiry
		}
		shard.mu.Unlock()
	}
	return nil
}
