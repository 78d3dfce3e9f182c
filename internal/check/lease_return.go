package check

import (
	"context"
	"slices"
	"time"
)

// pendingRefund is what a lease that has ended gives back.
type pendingRefund struct {
	units  int64 // that could have been given out
	refund Refund
	stays  bool // with some counter
}

// refundChunk bounds how many go in one pipeline, so that no check waits long behind it.
const refundChunk = 64

// retire ends a lease of set and puts down what goes back. Newest tells that the set took nothing
// after it: a bucket takes nothing back else.
func (l *leases) retire(set *leaseSet, gone *lease, now time.Time, newest bool) {
	left, ok := gone.end()
	if !ok || left+gone.cushion == 0 {
		return
	}
	p := pendingRefund{units: left}
	for i := range set.counters {
		c := &set.counters[i]
		n, units := c.Numbers, left+gone.cushion
		if n.Algorithm.Bucket() {
			if !newest || !n.refundable() {
				p.stays = true
				continue
			}
			units -= gone.drained(&n, i, gone.storeNow(now))
		}
		if units > 0 {
			p.refund.Parts = append(p.refund.Parts, RefundPart{
				Key: c.OwnKey(), ID: c.ID, Numbers: n, Units: units, Ground: n.ground(&gone.verdicts[i], gone.nowMS),
			})
		}
	}
	l.mu.Lock()
	l.pending = append(l.pending, p)
	l.mu.Unlock()
}

// drop ends a lease whose counters were forgotten: there is nothing to give back to.
func (l *leases) drop(gone *lease) {
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

// retireAll ends what set holds. The caller holds set.taking, so nobody takes more meanwhile.
func (l *leases) retireAll(set *leaseSet, now time.Time) {
	newest := set.lease.Swap(nil)
	if newest == nil {
		return
	}
	if older := newest.older.Swap(nil); older != nil {
		l.retire(set, older, now, false)
	}
	l.retire(set, newest, now, true)
}

// giveBack gives back at once what set holds, and reports whether that was anything.
func (l *leases) giveBack(set *leaseSet) bool {
	now := l.clock()
	held := set.lease.Load()
	if held.held(now) == 0 {
		return false
	}
	// Who takes more meanwhile holds the set; what it took is not missing here.
	if older := held.older.Swap(nil); older != nil {
		l.retire(set, older, now, false)
	}
	l.retire(set, held, now, true)
	l.refund()
	return true
}

// refund gives back what was put down.
func (l *leases) refund() {
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
			l.store.refund(context.Background(), refunds)
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

// refund takes units back to the store, unless it is away.
func (g *guarded) refund(ctx context.Context, refunds []*Refund) {
	if !g.breaker.allow() {
		for _, r := range refunds {
			r.Err = errBreakerOpen
		}
		return
	}
	g.engine.Refund(ctx, refunds...)
	failure := refunds[0].Err
	for _, r := range refunds {
		if r.Err == nil {
			failure = nil
		}
	}
	g.breaker.done(failure)
}

// guard has somebody look after the sets.
func (l *leases) guard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.own || l.watched || l.closed:
		return
	case l.watch == nil:
		l.watch = time.AfterFunc(leaseEvery, l.look)
	default:
		l.watch.Reset(leaseEvery)
	}
	l.watched = true
}

// look gives back what nobody asks for, and gives up sets that are not asked any more.
func (l *leases) look() {
	l.mu.Lock()
	l.watched = false
	l.mu.Unlock()
	l.lookAt(l.clock(), false)
	if l.count.Load() > 0 {
		l.guard()
	}
}

func (l *leases) lookAt(now time.Time, all bool) {
	l.looking.Lock()
	defer l.looking.Unlock()
	held := int64(0)
	l.sets.Range(func(_ uint64, set *leaseSet) bool {
		if !set.taking.CompareAndSwap(false, true) {
			held += set.lease.Load().held(now)
			return true
		}
		if all || set.quiet(now) {
			// It stays taken: nobody who still knows it takes units that nobody would look after.
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
		set.taking.Store(false)
		return true
	})
	l.metrics.leaseHeld.Set(float64(held))
	l.refund()
}

// quiet reports whether nothing was asked of the set for a while.
func (s *leaseSet) quiet(now time.Time) bool {
	left, warmth := s.lease.Load().held(now), s.heat.Load()
	if left != s.seenLeft || warmth != s.seenHeat || now.Before(s.seenAt) {
		s.seenLeft, s.seenHeat, s.seenAt = left, warmth, now
	}
	return now.Sub(s.seenAt) >= leaseIdle
}

// forget ends the leases of counters that were forgotten.
func (l *leases) forget(counters []Counter) {
	forgotten := make(map[string]bool, len(counters))
	for i := range counters {
		forgotten[counters[i].OwnKey()] = true
	}
	l.mu.Lock()
	l.pending = slices.DeleteFunc(l.pending, func(p pendingRefund) bool {
		return slices.ContainsFunc(p.refund.Parts, func(part RefundPart) bool { return forgotten[part.Key] })
	})
	l.mu.Unlock()
	l.sets.Range(func(_ uint64, set *leaseSet) bool {
		if slices.ContainsFunc(set.counters, func(c Counter) bool { return forgotten[c.OwnKey()] }) {
			set.resets.Add(1)
			l.drop(set.lease.Load())
		}
		return true
	})
}

// close gives back all that is held.
func (l *leases) close() {
	l.mu.Lock()
	l.closed = true
	if l.watch != nil {
		l.watch.Stop()
	}
	l.mu.Unlock()
	l.lookAt(l.clock(), true)
}
