package engine

import (
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// A lease is a number of units that this instance prefetched, in one call for all counters of a
// check. It grants them from memory to checks with the same counters.
//
// A unit may be granted at an instant if a strict engine could have allowed it at that instant:
// charging it only then must leave the counters no fuller than they are. For window algorithms this
// is true until the end of the window that was charged (for sub-buckets, the part), because the
// counts of a window have no order. A bucket drains in the meantime, but not if it was full. If
// units are charged to a full bucket at T0 and granted at T1, the bucket drains from T0 to T1, and
// other calls would be allowed in addition. Some units are therefore charged but not granted, the
// cushion: as many as drain between the instant at which the bucket would have been full without
// these units and the end of the lease. docs/decisions/0007 has the proof.
type lease struct {
	left    atomic.Int64 // to be granted; negative when the lease has ended
	cushion int64        // charged, but must not be granted
	size    int64        // initial value of left, plus what the previous lease had left then
	total   int64        // charged units, including the cost of the check itself
	older   atomic.Pointer[lease]
	// sent is an instant before the call to the store. At a later instant x, the store's clock
	// shows at most nowMS + (x - sent).
	sent     time.Time
	until    time.Time // by the monotonic clock
	wallMS   int64     // until, by the wall clock: leases end while a machine sleeps
	nowMS    int64     // the store's time of the charge
	verdicts []limit.Verdict
}

const (
	leaseEvery   = 50 * time.Millisecond  // a busy set prefetches the units that it needs for this long
	leaseIdle    = 100 * time.Millisecond // units that no check uses for this long are returned
	leaseBackoff = 50 * time.Millisecond  // after a prefetch that was denied
	leaseLow     = 4                      // more is prefetched when less than 1/leaseLow is left

	leaseEnded = -1 << 62
)

// live reports whether units may still be granted.
func (l *lease) live(now time.Time) bool {
	return now.Before(l.until) && now.UnixMilli() < l.wallMS
}

// grant takes cost units from the lease, from the older lease first, and returns how many are left.
func (l *lease) grant(now time.Time, cost int64) (left int64, ok bool) {
	older := l.older.Load()
	if older != nil && older.live(now) {
		if rest, ok := older.grantOwn(cost); ok {
			return rest + max(0, l.left.Load()), true
		}
	}
	if !l.live(now) {
		return 0, false
	}
	if left, ok = l.grantOwn(cost); ok && older != nil && older.live(now) {
		left += max(0, older.left.Load())
	}
	return left, ok
}

func (l *lease) grantOwn(cost int64) (left int64, ok bool) {
	for {
		left = l.left.Load()
		if left < cost {
			return 0, false
		}
		if l.left.CompareAndSwap(left, left-cost) {
			return left - cost, true
		}
	}
}

// held returns the units that can be granted, including those of the older lease.
func (l *lease) held(now time.Time) (units int64) {
	if l == nil {
		return 0
	}
	if l.live(now) {
		units = max(0, l.left.Load())
	}
	if older := l.older.Load(); older != nil && older.live(now) {
		units += max(0, older.left.Load())
	}
	return units
}

// low reports whether it is time to prefetch more units.
func (l *lease) low(now time.Time) bool { return l.held(now) < max(1, l.size/leaseLow) }

// end ends the lease and returns the units that were not granted; ok is false if it had already
// ended.
func (l *lease) end() (left int64, ok bool) {
	left = l.left.Swap(leaseEnded)
	return left, left != leaseEnded
}

// storeNow returns the latest time that the store's clock can show at now.
func (l *lease) storeNow(now time.Time) int64 {
	elapsed := max(0, now.Sub(l.sent))
	return l.nowMS + int64((elapsed+time.Millisecond-1)/time.Millisecond) + 1
}

// base returns an instant before which bucket i would not have been full without these units.
func (l *lease) base(n *limit.Numbers, i int) int64 {
	longer, rest := limit.MulDiv(l.total, n.WindowMS, n.Limit, 0)
	if rest > 0 {
		longer++
	}
	return l.verdicts[i].ResetMS - 1 - longer
}

// refundUntil returns the instant up to which units can be returned to bucket i although it was
// charged again (RefundPart.Until). Without these units, it would not be full while any lease of it
// that others have taken since is alive.
func (l *lease) refundUntil(n *limit.Numbers, i int) int64 {
	return max(0, l.base(n, i)-limit.MaxLeaseMS)
}

// drained returns how many units of bucket i must stay charged if others are granted until the
// instant atMS.
func (l *lease) drained(n *limit.Numbers, i int, atMS int64) int64 {
	gap := atMS - l.base(n, i)
	if gap <= 0 {
		return 0
	}
	units, rest := limit.MulDiv(gap, n.Limit, n.WindowMS, 0)
	if rest > 0 {
		units++
	}
	return units
}

// windowEndOf returns the end of the window that the charge with verdict v was counted in, and
// false for a bucket.
func windowEndOf(n *limit.Numbers, v *limit.Verdict, nowMS int64) (int64, bool) {
	switch n.Algorithm {
	case limit.SlidingWindowCounter:
		return (nowMS/n.WindowMS + 1) * n.WindowMS, true
	case limit.SlidingWindowBuckets:
		return (nowMS/n.PrecisionMS + 1) * n.PrecisionMS, true
	case limit.FixedWindow, limit.FixedWindowFirstHit:
		return v.ResetMS, true
	}
	return 0, false
}

// leaseTerms are the bounds of a lease.
type leaseTerms struct {
	sent   time.Time // before the call that charged the units
	holdMS int64     // how long they may be held
	least  int64     // units that should remain to be granted: the lease is shortened for them
}

// ownTerms are the terms of a lease of this process. If a bucket is less full than expected, a
// short lease is better than one that consists only of the cushion.
func ownTerms(counters []Counter, units int64, sent time.Time) leaseTerms {
	t := leaseTerms{sent: sent, holdMS: limit.LeaseHold.Milliseconds(), least: units - units/2}
	for i := range counters {
		if counters[i].Numbers.Algorithm.Bucket() {
			t.holdMS = limit.LeaseHoldBucket.Milliseconds()
		}
	}
	return t
}

// newLease returns a lease of the units that a call charged in addition to the cost of its check.
// The units include the cushion.
func newLease(counters []Counter, call *Call, units int64, t leaseTerms) *lease {
	l := &lease{
		total: call.Cost, sent: t.sent, nowMS: call.Outcome.NowMS,
		verdicts: append([]limit.Verdict(nil), call.Outcome.Verdicts...),
	}
	untilMS := l.nowMS + t.holdMS
	for i := range counters {
		if end, window := windowEndOf(&counters[i].Numbers, &l.verdicts[i], l.nowMS); window {
			untilMS = min(untilMS, end)
		}
	}
	for {
		l.cushion = 0
		for i := range counters {
			if n := &counters[i].Numbers; n.Algorithm.Bucket() {
				l.cushion = max(l.cushion, l.drained(n, i, untilMS))
			}
		}
		if l.cushion <= units-t.least || untilMS <= l.nowMS {
			break
		}
		untilMS = l.nowMS + (untilMS-l.nowMS)/2
	}
	l.cushion = min(l.cushion, units)
	l.left.Store(units - l.cushion)
	// The store's clock shows untilMS no earlier than this, because nowMS was rounded down.
	length := time.Duration(untilMS-1-l.nowMS) * time.Millisecond
	l.until = t.sent.Add(length)
	l.wallMS = t.sent.UnixMilli() + max(0, length.Milliseconds())
	return l
}
