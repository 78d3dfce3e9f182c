package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// leaseSet is a set of counters, with their numbers, that is used often enough to lease units of
// it.
type leaseSet struct {
	hash      uint64
	tenant    limit.TenantID
	counters  []Counter
	remaining []atomic.Int64 // of each counter, by the store's last answer
	lease     atomic.Pointer[lease]
	rate      rate // of checks that went to the store
	// busy is held by the call that prefetches, and while leases are ended. A removed set stays
	// busy.
	busy         atomic.Bool
	resets       atomic.Int64 // number of resets of its counters
	backoffUntil atomic.Int64 // UnixNano before which nothing is prefetched

	// For Leases.inspect.
	seenLeft int64
	seenRate uint64
	seenAt   time.Time // since when nothing has changed
}

func newLeaseSet(hash uint64, call *Call, now time.Time) *leaseSet {
	s := &leaseSet{
		hash: hash, tenant: call.Tenant, counters: slices.Clone(call.Counters),
		remaining: make([]atomic.Int64, len(call.Counters)), seenAt: now,
	}
	s.note(&call.Outcome)
	return s
}

// note stores the remaining units of the counters.
func (s *leaseSet) note(out *Outcome) {
	for i := range s.remaining {
		s.remaining[i].Store(out.Verdicts[i].Remaining)
	}
}

// plan returns how many units a check of this cost should prefetch now, including the cushion of
// buckets; 0 for none.
func (s *leaseSet) plan(now time.Time, cost int64) int64 {
	if now.UnixNano() < s.backoffUntil.Load() {
		return 0
	}
	wanted, since, held := s.rate.units(now), time.Duration(0), int64(0)
	if l := s.lease.Load(); l != nil && now.Sub(l.sent) < limit.LeaseHold {
		held = l.held(now)
		granted := l.size - held
		since = max(now.Sub(l.sent), time.Millisecond)
		wanted = max(wanted, int64(float64(granted)*float64(leaseEvery)/float64(since)))
	}
	most, cushion := limit.MaxFixedLimit, int64(0)
	for i := range s.counters {
		n, remaining := &s.counters[i].Numbers, s.remaining[i].Load()
		most = min(most, (remaining+held-cost)/limit.LeaseShare-held)
		if n.Algorithm.Bucket() {
			// The units that refill until the lease ends, less the units that were used at the
			// store's last answer.
			cushion = max(cushion, n.RefillWithin(limit.LeaseHoldBucket.Milliseconds()+since.Milliseconds())-(n.Burst-remaining))
		}
	}
	grant := min(wanted, most-cushion)
	if grant < max(limit.LeaseLeast, cost) {
		return 0
	}
	return grant + cushion
}

// rate counts checks in the current tick: the number of the tick in 28 bits, checks in 10, units in
// 26. The last two stop at their maximum.
type rate struct{ atomic.Uint64 }

const (
	rateTickMS    = 64
	rateUnitBits  = 26
	rateCheckBits = 10
	maxRateUnits  = 1<<rateUnitBits - 1
	maxRateChecks = 1<<rateCheckBits - 1
)

func rateTick(now time.Time) uint64 {
	return uint64(now.UnixMilli()/rateTickMS) & (1<<28 - 1) // a part of an instant since 1970
}

// add counts a check and returns the number of checks in this tick.
func (r *rate) add(now time.Time, units int64) (checks int) {
	tick := rateTick(now)
	for {
		old := r.Load()
		n, sum := uint64(0), uint64(0)
		if old>>(rateUnitBits+rateCheckBits) == tick {
			n, sum = old>>rateUnitBits&maxRateChecks, old&maxRateUnits
		}
		n, sum = min(n+1, maxRateChecks), min(sum+uint64(min(units, maxRateUnits)), maxRateUnits) // units >= 0
		if r.CompareAndSwap(old, tick<<(rateUnitBits+rateCheckBits)|n<<rateUnitBits|sum) {
			return int(n) // 10 bits
		}
	}
}

// units returns the number of units requested in the current tick.
func (r *rate) units(now time.Time) int64 {
	if v := r.Load(); v>>(rateUnitBits+rateCheckBits) == rateTick(now) {
		return int64(v & maxRateUnits) // 26 bits
	}
	return 0
}
