package engine

import (
	"context"
	"errors"
	"slices"
	"time"
)

// pendingRefund is the refund of an ended lease.
type pendingRefund struct {
	units  int64 // that could have been granted
	refund Refund
	stays  bool // charged to at least one counter
	tries  int  // that returned nothing, because the counters are moving to another server
}

// refundChunk is the maximum number of refunds in one pipeline, so that no check waits long for it.
const refundChunk = 64

// Refunds that no server can decide while their counters move to another one are tried again with
// each inspection: for some ten seconds, and not too many, because each takes several exchanges.
const (
	refundTries = 200
	maxMoving   = 4 * refundChunk
)

// retire ends a lease of set and queues the refund of its units. Newest means that the set
// prefetched nothing after it; only then a bucket that may be full soon accepts a refund.
func (l *Leases) retire(set *leaseSet, gone *lease, now time.Time, newest bool) {
	left, ok := gone.end()
	if !ok || left+gone.cushion == 0 {
		return
	}
	p := pendingRefund{units: left}
	for i := range set.counters {
		c := &set.counters[i]
		n, units, until := c.Numbers, left+gone.cushion, int64(0)
		if n.Algorithm.Bucket() {
			storeNow := gone.storeNow(now)
			until = gone.refundUntil(&n, i)
			if !n.Refundable() || !newest && storeNow > until {
				p.stays = true
				continue
			}
			units -= gone.drained(&n, i, storeNow)
		}
		if units > 0 {
			p.refund.Parts = append(p.refund.Parts, RefundPart{
				Key: c.OwnKey(), ID: c.ID, Numbers: n, Units: units, Ground: n.Ground(&gone.verdicts[i], gone.nowMS), Until: until,
				ChargedMS: gone.nowMS,
			})
		}
	}
	l.mu.Lock()
	l.pending = append(l.pending, p)
	l.mu.Unlock()
}

// drop ends a lease whose counters were reset. Its units are not returned, because their state no
// longer exists.
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

// retireAll ends all leases of set. The caller holds set.busy, so nothing is prefetched at the same
// time.
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

// returnAll returns all units of set immediately, and reports whether there were any.
func (l *Leases) returnAll(set *leaseSet) bool {
	now := l.clock()
	held := set.lease.Load()
	if held.held(now) == 0 {
		return false
	}
	// If another call prefetches now, it holds the set. Its units are not needed here.
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
	pending, resets := l.pending, l.resets
	l.pending = nil
	l.returning++
	l.mu.Unlock()
	defer l.returned()
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
			switch r := &some[i].refund; {
			case r.Err == nil && r.Refused == 0 && !some[i].stays:
				l.metrics.leaseReturned.Add(float64(some[i].units))
			case !errors.Is(r.Err, ErrMoving) || !l.postpone(&some[i], resets):
				l.metrics.leaseStranded.Add(float64(some[i].units))
			}
		}
	}
}

// returned ends a call of returnPending. Resets need to be known only as long as one is under way.
func (l *Leases) returned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.returning--; l.returning == 0 {
		l.reset = nil
	}
}

// postpone keeps a refund of moving counters for the next inspection, and reports whether it does.
// If one of them was reset since the refund was sent, it may be of the state before. resets is the
// number of resets until then.
func (l *Leases) postpone(p *pendingRefund, resets int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.tries++; l.closed || p.tries == refundTries || len(l.moving) == maxMoving {
		return false
	}
	if slices.ContainsFunc(p.refund.Parts, func(part RefundPart) bool { return l.reset[part.Key] > resets }) {
		return false
	}
	l.moving = append(l.moving, *p)
	return true
}

// resume queues the postponed refunds.
func (l *Leases) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, l.moving...)
	l.moving = nil
}

// restless reports whether another inspection is needed.
func (l *Leases) restless() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count.Load() > 0 || len(l.moving) > 0
}

// inspectLater schedules an inspection of the sets after leaseEvery.
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

// tick inspects the sets and restarts the timer.
func (l *Leases) tick() {
	l.mu.Lock()
	l.timed = false
	l.mu.Unlock()
	l.inspect(l.clock(), false)
	if l.restless() {
		l.inspectLater()
	}
}

// inspect returns unused units and removes idle sets. If all is true, it removes every set.
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
			// The set stays busy, so that no call that still refers to it can prefetch units that
			// would never be returned.
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
	l.resume()
	l.returnPending()
}

// idle reports whether no check has used the set for leaseIdle.
func (s *leaseSet) idle(now time.Time) bool {
	left, checks := s.lease.Load().held(now), s.rate.Load()
	if left != s.seenLeft || checks != s.seenRate || now.Before(s.seenAt) {
		s.seenLeft, s.seenRate, s.seenAt = left, checks, now
	}
	return now.Sub(s.seenAt) >= leaseIdle
}

// Refund implements Engine.
func (l *Leases) Refund(ctx context.Context, refunds ...*Refund) { l.next.Refund(ctx, refunds...) }

// Reset implements Engine. It ends the leases of the counters.
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
	of := func(p pendingRefund) bool {
		return slices.ContainsFunc(p.refund.Parts, func(part RefundPart) bool { return reset[part.Key] })
	}
	l.mu.Lock()
	if l.resets++; l.returning > 0 {
		if l.reset == nil {
			l.reset = map[string]int{}
		}
		for key := range reset {
			l.reset[key] = l.resets
		}
	}
	l.pending, l.moving = slices.DeleteFunc(l.pending, of), slices.DeleteFunc(l.moving, of)
	l.mu.Unlock()
	l.sets.Range(func(_ uint64, set *leaseSet) bool {
		if slices.ContainsFunc(set.counters, func(c Counter) bool { return reset[c.OwnKey()] }) {
			set.resets.Add(1)
			l.drop(set.lease.Load())
		}
		return true
	})
}

// giveUp returns the units that are held of counters that were scaled. Those of a call on its way
// are dropped.
func (l *Leases) giveUp(counters []Counter) {
	scaled := make(map[string]bool, len(counters))
	for i := range counters {
		scaled[counters[i].OwnKey()] = true
	}
	now := l.clock()
	l.sets.Range(func(_ uint64, set *leaseSet) bool {
		if slices.ContainsFunc(set.counters, func(c Counter) bool { return scaled[c.OwnKey()] }) {
			set.resets.Add(1)
			if held := set.lease.Load(); held != nil {
				if older := held.older.Swap(nil); older != nil {
					l.retire(set, older, now, false)
				}
				l.retire(set, held, now, true)
			}
		}
		return true
	})
	l.returnPending()
}

// Close returns all units that are held.
func (l *Leases) Close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.inspect(l.clock(), true)
}
