package check

import (
	"slices"
	"sync/atomic"
	"time"
)

// leaseSet is the counters of checks that ask the same ones, with the same numbers, so often that units of
// them are leased.
type leaseSet struct {
	hash     uint64
	tenant   TenantID
	counters []Counter
	rooms    []atomic.Int64 // what remained under each counter when the store last said
	lease    atomic.Pointer[lease]
	heat     heat // of checks that went to the store
	// taking is held by the check that takes more, and by whoever ends leases. A set that is
	// given up is never let go.
	taking atomic.Bool
	resets atomic.Int64 // how often its counters were forgotten
	calm   atomic.Int64 // UnixNano before which nothing is taken

	// Of who looks after the sets (lease_return.go).
	seenLeft int64
	seenHeat uint64
	seenAt   time.Time // since when nothing has changed
}

func newLeaseSet(hash uint64, call *Call, now time.Time) *leaseSet {
	s := &leaseSet{
		hash: hash, tenant: call.Tenant, counters: slices.Clone(call.Counters),
		rooms: make([]atomic.Int64, len(call.Counters)), seenAt: now,
	}
	s.note(&call.Outcome)
	return s
}

// note keeps what the store says of the counters.
func (s *leaseSet) note(out *Outcome) {
	for i := range s.rooms {
		s.rooms[i].Store(out.Verdicts[i].Remaining)
	}
}

// plan returns how many units more than the cost of the check that takes them should be charged now,
// the cushion of buckets included; 0 for none.
func (s *leaseSet) plan(now time.Time, cost int64) int64 {
	if now.UnixNano() < s.calm.Load() {
		return 0
	}
	wanted, since, held := s.heat.units(now), time.Duration(0), int64(0)
	if l := s.lease.Load(); l != nil && now.Sub(l.sent) < leaseHold {
		held = l.held(now)
		given := l.size - held
		since = max(now.Sub(l.sent), time.Millisecond)
		wanted = max(wanted, int64(float64(given)*float64(leaseEvery)/float64(since)))
	}
	most, cushion := MaxFixedLimit, int64(0)
	for i := range s.counters {
		n, room := &s.counters[i].Numbers, s.rooms[i].Load()
		most = min(most, (room+held-cost)/leaseShare-held)
		if n.Algorithm.Bucket() {
			// What refills until the lease ends, less what was charged when the store last said.
			cushion = max(cushion, n.refillWhileLeased(since.Milliseconds())-(n.Burst-room))
		}
	}
	give := min(wanted, most-cushion)
	if give < max(leaseLeast, cost) {
		return 0
	}
	return give + cushion
}

// heat counts how often something was asked in the present tick: the tick's number 28 bits, checks 10,
// units 26; the last two stop at their most.
type heat struct{ atomic.Uint64 }

const (
	heatTickMS    = 64
	heatUnitBits  = 26
	heatCheckBits = 10
	mostHeatUnits = 1<<heatUnitBits - 1
	mostHeat      = 1<<heatCheckBits - 1
)

func heatTick(now time.Time) uint64 {
	return uint64(now.UnixMilli()/heatTickMS) & (1<<28 - 1) //nolint:gosec // a part of an instant since 1970
}

// add counts a check and returns how many there were in this tick.
func (h *heat) add(now time.Time, units int64) (checks int) {
	tick := heatTick(now)
	for {
		old := h.Load()
		n, sum := uint64(0), uint64(0)
		if old>>(heatUnitBits+heatCheckBits) == tick {
			n, sum = old>>heatUnitBits&mostHeat, old&mostHeatUnits
		}
		n, sum = min(n+1, mostHeat), min(sum+uint64(min(units, mostHeatUnits)), mostHeatUnits) //nolint:gosec // units >= 0
		if h.CompareAndSwap(old, tick<<(heatUnitBits+heatCheckBits)|n<<heatUnitBits|sum) {
			return int(n) //nolint:gosec // 10 bits
		}
	}
}

// units returns how many units were asked for in the present tick.
func (h *heat) units(now time.Time) int64 {
	if v := h.Load(); v>>(heatUnitBits+heatCheckBits) == heatTick(now) {
		return int64(v & mostHeatUnits) //nolint:gosec // 26 bits
	}
	return 0
}
