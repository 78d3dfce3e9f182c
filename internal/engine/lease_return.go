package engine

import (
	"context"
	"slices"
	"time"
)

// pendingRefund is what an ended lease returns.
type pendingRefund struct {
	units  int64 // that could have been given out
	refund Refund
	stays  bool // charged to some counter
}

// refundChunk is how many refunds one pipeline carries at most, so that no check waits long behind
// it.
const refundChunk = 64

// retire ends a lease of set and queues what is to be returned. Newest says that the set prefetched
// nothing after it: otherwise a bucket takes nothing back.
func (l *Leases) retire(set *leaseSet, gone *lease, now time.Time, newest bool) {
	left, ok := gone.end()
	if !ok || left+gone.cushion == 0 {
		return
	}
	p := pendingRefund{units: left}
	for i := range set.counters {
		c := &set.counters[i]
		n, units := c.Numbers, left+gone.cushion
		if n.Algorithm.Bucket() {
			if !newest || !n.Refundable() {
				p.stays = true
				continue
			}
			units -= gone.drained(&n, i, gone.storeNow(now))
		}
		if units > 0 {
			p.refund.Parts = append(p.refund.Parts, RefundPart{
				Key: c.OwnKey(), ID: c.ID, Numbers: n, Units: units, Ground: n.Ground(&gone.verdicts[i], gone.nowMS),
			})
		}
	}
	l.mu.Lock()
	l.pending = append(l.pending, p)
	l.mu.Unlock()
}

// drop ends a lease whose counters were reset: there is nothing to return units to.
func (l *Leases) drop(gone *lease) {
	if gone == nil {
		return
	}
	for _, each := range []*lease{gone.older.Swap(nil), gone} {
		if each == nil {
			continue
		}
		if left, ok := each.end(); ok {
			l.metrics.leaseStranded.Add(float64(left))
		}
	}
}

// retireAll ends what set holds. The caller holds set.busy, so nothing is prefetched meanwhile.
func (l *Leases) retireAll(set *leaseSet, now time.Time) {
	newest := set.lease.Swap(nil)
	if newest == nil {
		return
	}
	if older := newest.older.Swap(nil); older != nil {
		l.retire(set, older, now, false)
	}
	l.retire(set, newest, now, true)
}

// returnAll returns at once what set holds, and reports whether that was anything.
func (l *Leases) returnAll(set *leaseSet) bool {
	now := l.clock()
	held := set.lease.Load()
	if held.held(now) == 0 {
		return false
	}
	// A call that prefetches meanwhile holds the set; its units are not missing here.
	if older := held.older.Swap(nil); older != nil {
		l.retire(set, older, now, false)
	}
	l.retire(set, held, now, true)
	l.returnPending()
	return true
}

// returnPending returns the queued units.
func (l *Leases) returnPending() {
	l.mu.Lock()
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for some := range slices.Chunk(pending, refundChunk) {
		refunds := make([]*Refund, 0, len(some))
		for i := range some {
			if len(some[i].refund.Parts) > 0 {
				refunds = append(refunds, &some[i].refund)
			}
		}
		if len(refunds) > 0 {
			l.next.Refund(context.Background(), refunds...)
		}
		for i := range some {
			if r := &some[i].refund; r.Err == nil && r.Refused == 0 && !some[i].stays {
				l.metrics.leaseReturned.Add(float64(some[i].units))
			} else {
				l.metrics.leaseStranded.Add(float64(some[i].units))
			}
		}
	}
}

// inspectLater has the sets inspected after leaseEvery.
func (l *Leases) inspectLater() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.own || l.timed || l.closed:
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(leaseEvery, l.tick)
	default:
		l.timer.Reset(leaseEvery)
	}
	l.timed = true
}

// tick inspects the sets and sets the timer again.
func (l *Leases) tick() {
	l.mu.Lock()
	l.timed = false
	l.mu.Unlock()
	l.inspect(l.clock(), false)
	if l.count.Load() > 0 {
		l.inspectLater()
	}
}

// inspect returns units that nobody asks for, and removes idle sets; with all every set.
func (l *Leases) inspect(now time.Time, all bool) {
	l.inspecting.Lock()
	defer l.inspecting.Unlock()
	held := int64(0)
	l.sets.Range(func(_ uint64, set *leaseSet) bool {
		if !set.busy.CompareAndSwap(false, true) {
			held += set.lease.Load().held(now)
			return true
		}
		if all || set.idle(now) {
			// It stays busy: no call that still knows it may prefetch units that nothing would
			// return.
			l.retireAll(set, now)
			l.sets.Delete(set.hash)
			l.count.Add(-1)
			return true
		}
		if newest := set.lease.Load(); newest != nil && !newest.live(now) {
			l.retireAll(set, now)
		} else if newest != nil {
			if older := newest.older.Load(); older != nil && !older.live(now) && newest.older.CompareAndSwap(older, nil) {
				l.retire(set, older, now, false)
			}
			held += newest.held(now)
		}
		set.busy.Store(false)
		return true
	})
	l.metrics.leaseHeld.Set(float64(held))
	l.returnPending()
}

// idle reports whether nothing was asked of the set for leaseIdle.
func (s *leaseSet) idle(now time.Time) bool {
	left, checks := s.lease.Load().held(now), s.rate.Load()
	if left != s.seenLeft || checks != s.seenRate || now.Before(s.seenAt) {
		s.seenLeft, s.seenRate, s.seenAt = left, checks, now
	}
	return now.Sub(s.seenAt) >= leaseIdle
}

// Refund is part of Engine.
func (l *Leases) Refund(ctx context.Context, refunds ...*Refund) { l.next.Refund(ctx, refunds...) }

// Reset is part of Engine. It ends the leases of the counters.
func (l *Leases) Reset(ctx context.Context, counters ...Counter) error {
	if err := l.next.Reset(ctx, counters...); err != nil {
		return err
	}
	l.forget(counters)
	return nil
}

// forget ends the leases of counters that were reset.
func (l *Leases) forget(counters []Counter) {
	reset := make(map[string]bool, len(counters))
	for i := range counters {
		reset[counters[i].OwnKey()] = true
	}
	l.mu.Lock()
	l.pending = slices.DeleteFunc(l.pending, func(p pendingRefund) bool {
		return slices.ContainsFunc(p.refund.Parts, func(part RefundPart) bool { return reset[part.Key] })
	})
	l.mu.Unlock()
	l.sets.Range(func(_ uint64, set *leaseSet) bool {
		if slices.ContainsFunc(set.counters, func(c Counter) bool { return reset[c.OwnKey()] }) {
			set.resets.Add(1)
			l.drop(set.lease.Load())
		}
		return true
	})
}

// Close returns all that is held.
func (l *Leases) Close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.inspect(l.clock(), true)
}
