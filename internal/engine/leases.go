package engine

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/limit"
)

// Leases prefetches units of leased rules and grants them from memory. A set of counters becomes a
// leaseSet only if it is used leaseBusy times within a tick. For all other counters, Leases stores
// nothing except a cell in a small shared table.
//
// One check at a time prefetches for a set: it charges its own cost and the units in one call. If
// that call is denied, the check is sent again with its own cost only.
type Leases struct {
	next    Engine
	metrics *Metrics
	clock   func() time.Time
	own     bool // it inspects its sets with a timer; otherwise the owner of the clock calls inspect
	seed    maphash.Seed
	rates   [leaseRates]rate
	sets    *xsync.Map[uint64, *leaseSet]
	count   atomic.Int64

	mu         sync.Mutex
	timer      *time.Timer
	timed      bool
	closed     bool
	pending    []pendingRefund
	moving     []pendingRefund // postponed until the next inspection
	returning  int             // calls of returnPending that are under way
	resets     int
	reset      map[string]int // while one is: the number of the last reset of each counter
	inspecting sync.Mutex
}

const (
	leaseBusy  = 4 // checks in a tick
	leaseRates = 1 << 14
	leaseSets  = 1 << 14 // some 500 bytes each
)

// NewLeases returns leases of the units of next. If own is true, it returns idle units with a
// timer.
func NewLeases(next Engine, metrics *Metrics, clock func() time.Time, own bool) *Leases {
	return &Leases{
		next: next, metrics: metrics, clock: clock, own: own, seed: maphash.MakeSeed(),
		sets: xsync.NewMap[uint64, *leaseSet](),
	}
}

// leasing is the state of a call in Leases.
type leasing struct {
	hash       uint64    // of its counters
	set        *leaseSet // of its counters; nil if there is none
	busy       bool      // its counters are used often enough to become a set
	prefetches bool      // its cost includes units to prefetch
	units      int64     // as many
	shadow     uint64    // which counters are in shadow mode, while it prefetches
	resets     int64     // of the set, before the call was sent
}

// Evaluate implements Engine.
func (l *Leases) Evaluate(ctx context.Context, calls ...*Call) {
	calls = keepUnanswered(calls, l.answer)
	if len(calls) == 0 {
		return
	}
	l.next.Evaluate(ctx, calls...)
	again := calls[:0]
	returned := false
	for i, c := range calls {
		if !c.mayLease() || c.lease.hash == 0 {
			continue
		}
		if l.settle(c, returned) {
			calls[len(again)], calls[i] = c, calls[len(again)]
			again, returned = again[:len(again)+1], true
		}
	}
	if len(again) > 0 {
		l.next.Evaluate(ctx, again...)
	}
}

// mayLease reports whether the call may be answered from prefetched units.
func (c *Call) mayLease() bool {
	return c.Leased && !c.Spread && !c.PerCounter && c.Cost > 0 && !c.DryRun && !c.Fresh && c.NowMS == 0 && len(c.Counters) > 0 && len(c.Counters) <= maxLeased
}

// maxLeased is the maximum number of counters of one lease, because leasing.shadow has one bit for
// each.
const maxLeased = 64

// hash returns a hash of the counters. It is never 0.
func (l *Leases) hash(counters []Counter) (h uint64) {
	for i := range counters {
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(l.seed, counters[i].Key)
	}
	return max(h, 1)
}

// answer answers c from memory or prepares its call to the store. When it is time to prefetch, the
// call requests more units than the cost of its check.
func (l *Leases) answer(c *Call) bool {
	c.lease = leasing{} // the call may have been used before
	if !c.mayLease() {
		return false
	}
	c.lease.hash = l.hash(c.Counters)
	now := c.Started
	set, known := l.sets.Load(c.lease.hash)
	switch {
	case !known:
		c.lease.busy = l.rates[c.lease.hash%leaseRates].add(now, c.Cost) >= leaseBusy && l.count.Load() < leaseSets
		return false
	case !slices.Equal(set.counters, c.Counters):
		c.lease.hash = 0 // the numbers have changed, or two sets have the same hash: the other one will soon be removed
		return false
	}
	c.lease.set = set
	held := set.lease.Load()
	if (held == nil || held.low(now)) && l.prepare(c, now) {
		return false
	}
	if held != nil && l.grant(c, held) {
		return true
	}
	set.rate.add(now, c.Cost)
	return false
}

// grant answers c from memory if enough units are held.
func (l *Leases) grant(c *Call, from *lease) bool {
	left, ok := from.grant(c.Started, c.Cost)
	if ok {
		from.answer(c, left)
		l.metrics.leaseGranted.Inc()
	}
	return ok
}

// answer answers c from memory. The granted unit was charged before. The remaining units are those
// of the store's last answer plus those that are held.
func (l *lease) answer(c *Call, left int64) {
	out := &c.Outcome
	*out = Outcome{Allowed: true, NowMS: l.nowMS + max(0, c.Started.Sub(l.sent).Milliseconds()), Verdicts: out.Verdicts[:0]}
	c.Err = nil
	for i := range l.verdicts {
		v := &l.verdicts[i]
		out.Verdicts = append(out.Verdicts, limit.Verdict{
			Allowed: true, Remaining: min(v.Remaining+left, c.Counters[i].Numbers.Quota()),
			ResetMS: max(v.ResetMS, out.NowMS+1), NextMS: max(v.NextMS, out.NowMS+1),
		})
	}
}

// prepare makes c the call that prefetches, if it is time and no other call does. The units are
// charged as one cost to all counters or to none, so no counter is in shadow mode in this call.
func (l *Leases) prepare(c *Call, now time.Time) bool {
	set := c.lease.set
	if set.busy.Load() {
		return false
	}
	units := set.plan(now, c.Cost)
	if units == 0 || !set.busy.CompareAndSwap(false, true) {
		return false
	}
	c.lease.prefetches, c.lease.units, c.lease.resets = true, units, set.resets.Load()
	c.Cost += units
	for i := range c.Counters {
		if c.Counters[i].Shadow {
			c.lease.shadow |= 1 << i
			c.Counters[i].Shadow = false
		}
	}
	return true
}

// restore gives c back the cost and the counters of its caller.
func (l *leasing) restore(c *Call) {
	c.Cost -= l.units
	for i := range c.Counters {
		c.Counters[i].Shadow = c.Counters[i].Shadow || l.shadow&(1<<i) != 0
	}
	l.prefetches = false
}

// settle handles the store's answer to c. It reports whether c must be sent again with its own
// cost. Returned means that other units were returned to the store since c was sent.
func (l *Leases) settle(c *Call, returned bool) (again bool) {
	set := c.lease.set
	switch {
	case set == nil:
		if c.lease.busy && c.Err == nil {
			l.add(c)
		}
		return false
	case c.lease.prefetches:
		return l.settlePrefetch(c)
	case c.Err != nil:
		return false
	}
	set.note(&c.Outcome)
	if c.Outcome.Allowed {
		c.addRemaining(set.lease.Load().held(c.Started))
		return false
	}
	// Units that this instance holds must not cause a denial. This can happen if the cost is
	// greater than the units held.
	return l.returnAll(set) || returned
}

// settlePrefetch handles the answer to a call that requested units to prefetch.
func (l *Leases) settlePrefetch(c *Call) (again bool) {
	set := c.lease.set
	defer set.busy.Store(false)
	allowed := c.Err == nil && c.Outcome.Allowed
	if allowed {
		l.prefetched(c)
	}
	c.lease.restore(c)
	if allowed {
		return false
	}
	if held := set.lease.Load(); held != nil && l.grant(c, held) || c.Err != nil {
		return false
	}
	set.note(&c.Outcome)
	set.backoffUntil.Store(c.Started.Add(leaseBackoff).UnixNano())
	l.returnAll(set)
	return true
}

// addRemaining adds units that this instance holds to the remaining units of the store's answer.
func (c *Call) addRemaining(held int64) {
	if held == 0 {
		return
	}
	for i := range c.Outcome.Verdicts {
		v := &c.Outcome.Verdicts[i]
		v.Remaining = min(v.Remaining+held, c.Counters[i].Numbers.Quota())
	}
}

// add creates a set for c's counters, from the store's answer.
func (l *Leases) add(c *Call) {
	set := newLeaseSet(c.lease.hash, c, c.Started)
	if _, known := l.sets.LoadOrStore(c.lease.hash, set); known {
		return
	}
	l.count.Add(1)
	set.rate.Store(l.rates[c.lease.hash%leaseRates].Load())
	l.inspectLater()
}

// prefetched stores the units that c charged.
func (l *Leases) prefetched(c *Call) {
	set, units, now := c.lease.set, c.lease.units, l.clock()
	set.note(&c.Outcome)
	fresh := newLease(set.counters, c, units, ownTerms(set.counters, units, c.Started))
	l.metrics.leasePrefetches.Inc()
	l.metrics.leasePrefetched.Add(float64(units))
	if set.resets.Load() != c.lease.resets { // the counters were deleted, perhaps after the charge
		l.metrics.leaseStranded.Add(float64(units))
		return
	}
	before := set.lease.Load()
	if before != nil {
		if oldest := before.older.Swap(nil); oldest != nil {
			l.retire(set, oldest, now, false)
		}
		if before.live(now) && before.left.Load() > 0 {
			fresh.older.Store(before)
		} else {
			l.retire(set, before, now, false)
		}
	}
	fresh.size = fresh.held(now)
	set.lease.Store(fresh)
	if set.resets.Load() != c.lease.resets { // a reset happened in between, and may have missed this lease
		l.drop(fresh)
	}
	c.addRemaining(fresh.held(now))
}

// Held are the units that this process holds of one set of counters. A caller that uses the same
// counters repeatedly can grant them directly.
type Held struct{ set *leaseSet }

// Held returns the units held for the call's counters, after Evaluate; false if they are not
// leased.
func (c *Call) Held() (Held, bool) { return Held{c.lease.set}, c.Leased && c.lease.set != nil }

// Grant grants cost units if more than a few are held. Otherwise it changes nothing, and the caller
// has to Evaluate the call.
func (h Held) Grant(now time.Time, cost int64) bool {
	held := h.set.lease.Load()
	if held == nil || held.low(now) {
		return false
	}
	_, ok := held.grant(now, cost)
	return ok
}
