package engine

import (
	"context"
	"errors"

	"weir/internal/limit"
)

// Amendment changes what counters of one tenant hold because the numbers of their subject have
// become others: it resets them, or keeps the used share of the quota. The store carries it out
// once for each Once, at one instant, however often it is asked.
type Amendment struct {
	Once  string // a key like those of counters, with their hash tag
	NowMS int64  // milliseconds since 1970; 0: the engine's own clock
	Reset bool   // else the used share stays
	Parts []AmendPart
}

// AmendPart is one counter of an Amendment.
type AmendPart struct {
	Counter               // with the numbers that it was counted under
	To      limit.Numbers // of the same algorithm and window
}

var errAmendment = errors.New("an amendment of counters that have other numbers or another tenant")

// Validate returns why an engine cannot carry the amendment out, before it touches anything.
func (a *Amendment) Validate() error {
	for i := range a.Parts {
		part := &a.Parts[i]
		from, to := part.Numbers, part.To
		from.Limit, from.Burst, to.Limit, to.Burst = 0, 0, 0, 0
		if !part.Numbers.Valid() || !part.To.Valid() || from != to || HashTag(part.Key) != HashTag(a.Once) {
			return errAmendment
		}
	}
	return nil
}

// counters returns the counters of the amendment.
func (a *Amendment) counters() []Counter {
	out := make([]Counter, len(a.Parts))
	for i := range a.Parts {
		out[i] = a.Parts[i].Counter
	}
	return out
}

// Amend is part of Engine. It forgets the denials by the counters, as they may be allowed now.
func (d *Denials) Amend(ctx context.Context, a *Amendment) error {
	if err := d.next.Amend(ctx, a); err != nil {
		return err
	}
	d.forget(a.counters())
	return nil
}

// Amend is part of Engine. Local counters stay as they are: they are those of an outage.
func (f *Fallback) Amend(ctx context.Context, a *Amendment) error { return f.next.Amend(ctx, a) }

// Amend is part of Engine. It ends the leases of the counters: their units were charged under other
// numbers.
func (l *Leases) Amend(ctx context.Context, a *Amendment) error {
	if err := l.next.Amend(ctx, a); err != nil {
		return err
	}
	l.forget(a.counters())
	return nil
}

// Amend is part of Engine.
func (b *Breaker) Amend(ctx context.Context, a *Amendment) error {
	if !b.allow() {
		return ErrBreakerOpen
	}
	err := b.next.Amend(context.WithoutCancel(ctx), a)
	b.done(err)
	if err != nil {
		b.metrics.storeErrors.Inc()
	}
	return err
}

// Amend is part of Engine. Counters that share an overflow counter keep it.
func (e *Memory) Amend(ctx context.Context, a *Amendment) error {
	if err := a.Validate(); err != nil {
		return err
	}
	if _, done := e.amended.LoadOrStore(a.Once, true); done {
		return nil
	}
	if a.Reset {
		return e.Reset(ctx, a.counters()...)
	}
	now := a.NowMS
	if now == 0 {
		now = e.clock()
	}
	for i := range a.Parts {
		part := &a.Parts[i]
		key := part.OwnKey()
		shard := e.shardOf(key)
		shard.mu.Lock()
		if kept := shard.counters[key]; kept != nil {
			limit.Scale(kept.state, &part.Numbers, &part.To, now)
			kept.expires += limit.MaxWindowMS // it may take longer to be full now; the next charge sets the expiry
		}
		shard.mu.Unlock()
	}
	return nil
}
