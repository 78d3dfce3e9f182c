package engine

import (
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// A lease is units that this instance prefetched, in one call for all counters of a check, and
// grants from memory to checks that ask the same counters.
//
// Granting a unit at an instant is right if charging it only then would have left its counters
// no fuller than they are, because then a strict engine could have admitted it. That is so while
// the window that was charged lasts (of sub-buckets: the one that was), since the counts of one
// window have no order. A bucket drains meanwhile, unless it was full: units that were charged to a
// full bucket at T0 and are granted at T1 have let it drain from T0 to T1 for nothing, and others
// would be admitted on top. So some units are held back, the cushion: as many as drain between the
// instant at which the bucket would have been full without these units and the end of the lease.
// They keep the level of the bucket where it would be. docs/decisions/0007 has the proof.
type lease struct {
	left    atomic.Int64 // to be granted; below 0 when the lease has ended
	cushion int64        // charged, and not to be granted
	size    int64        // that left began with, and what the one before had left then
	total   int64        // that was charged, the own cost of the check included
	older   atomic.Pointer[lease]
	// sent is an instant before the store was asked, so that the store's clock at a later instant x
	// is at most nowMS + (x - sent).
	sent     time.Time
	until    time.Time // by the monotonic clock
	wallMS   int64     // until, by the wall clock: leases end while a machine sleeps
	nowMS    int64     // of the store, when it charged
	verdicts []limit.Verdict
}

const (
	leaseEvery   = 50 * time.Millisecond  // a busy set prefetches what it needs in this time
	leaseIdle    = 100 * time.Millisecond // units that nobody asked for so long are returned
	leaseBackoff = 50 * time.Millisecond  // after a prefetch that was denied
	leaseLow     = 4                      // more is prefetched when less than one part in so many is left

	leaseEnded = -1 << 62
)

// live reports whether units may still be granted.
func (l *lease) live(now time.Time) bool {
	return now.Before(l.until) && now.UnixMilli() < l.wallMS
}

// grant takes cost units out of what is held, from the older lease first, and returns how many are
// left.
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

// held returns what can be granted, the older lease included.
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

// low reports whether it is time to prefetch more.
func (l *lease) low(now time.Time) bool { return l.held(now) < max(1, l.size/leaseLow) }

// end ends the lease and returns what was left to be granted; ok is false where it had ended
// before.
func (l *lease) end() (left int64, ok bool) {
	left = l.left.Swap(leaseEnded)
	return left, left != leaseEnded
}

// storeNow returns the latest that the store's clock can show at now.
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

// drained returns how many units of bucket i must stay charged so that granting others until the
// instant atMS was right.
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

// windowEndOf returns the end of the window that a charge with verdict v went to, and false for a
// bucket.
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

// newLease returns a lease of what a call charged to counters: units of it, the cushion included,
// are beyond the check's own cost.
func newLease(counters []Counter, call *Call, units int64, sent time.Time) *lease {
	l := &lease{
		total: call.Cost, sent: sent, nowMS: call.Outcome.NowMS,
		verdicts: append([]limit.Verdict(nil), call.Outcome.Verdicts...),
	}
	hold, buckets := limit.LeaseHold, false
	for i := range counters {
		buckets = buckets || counters[i].Numbers.Algorithm.Bucket()
	}
	if buckets {
		hold = limit.LeaseHoldBucket
	}
	untilMS := l.nowMS + hold.Milliseconds()
	for i := range counters {
		if end, window := windowEndOf(&counters[i].Numbers, &l.verdicts[i], l.nowMS); window {
			untilMS = min(untilMS, end)
		}
	}
	// Where the bucket is less full than expected, a short lease is better than one that is all
	// cushion.
	for {
		l.cushion = 0
		for i := range counters {
			if n := &counters[i].Numbers; n.Algorithm.Bucket() {
				l.cushion = max(l.cushion, l.drained(n, i, untilMS))
			}
		}
		if l.cushion <= units/2 || untilMS <= l.nowMS {
			break
		}
		untilMS = l.nowMS + (untilMS-l.nowMS)/2
	}
	l.cushion = min(l.cushion, units)
	l.left.Store(units - l.cushion)
	// The store's clock shows untilMS no earlier than this: nowMS was rounded down.
	length := time.Duration(untilMS-1-l.nowMS) * time.Millisecond
	l.until = sent.Add(length)
	l.wallMS = sent.UnixMilli() + max(0, length.Milliseconds())
	return l
}
