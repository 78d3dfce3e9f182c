package check

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
)

// leases answers checks of leased rules from units that this instance holds. It keeps nothing of
// counters that are asked seldom but a cell of a small table that many share; only a set of counters
// that is asked leaseHot times within a tick becomes a leaseSet.
type leases struct {
	store   *guarded
	metrics *Metrics
	clock   func() time.Time
	own     bool // looks after its sets by itself; else somebody moves the clock, and calls look
	seed    maphash.Seed
	heats   [leaseHeats]heat
	sets    *xsync.Map[uint64, *leaseSet]
	count   atomic.Int64

	mu      sync.Mutex
	watch   *time.Timer
	watched bool
	closed  bool
	pending []pendingRefund
	looking sync.Mutex
}

const (
	leaseHot   = 4 // checks in a tick
	leaseHeats = 1 << 14
	leaseSets  = 1 << 14 // some 500 bytes each
)

func newLeases(store *guarded, metrics *Metrics, clock func() time.Time, own bool) *leases {
	return &leases{
		store: store, metrics: metrics, clock: clock, own: own, seed: maphash.MakeSeed(),
		sets: xsync.NewMap[uint64, *leaseSet](),
	}
}

// leasing is a check's part in leases.
type leasing struct {
	leased bool      // every counter of it may be leased
	hash   uint64    // of its counters
	set    *leaseSet // that it asks; nil: none is known
	warm   bool      // it is asked often enough to become one
	takes  bool      // it takes units ahead, by its own call
	units  int64     // so many
	resets int64     // of the set, before it was sent
	given  bool      // it was answered from memory
	held   int64     // units that the answer may count as remaining, beside what the store says
}

func (l *leases) hash(counters []Counter) (h uint64) {
	for i := range counters {
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(l.seed, counters[i].Key)
	}
	return h
}

// answer answers e from memory, or prepares its call: where it is time to, for more units than it
// asks for itself.
func (l *leases) answer(e *evaluation) bool {
	now := e.started
	e.hash = l.hash(e.call.Counters)
	set, known := l.sets.Load(e.hash)
	switch {
	case !known:
		e.warm = l.heats[e.hash%leaseHeats].add(now, e.call.Cost) >= leaseHot && l.count.Load() < leaseSets
		return false
	case !slices.Equal(set.counters, e.call.Counters):
		return false // the numbers have changed, or two sets have met: the other is soon given up
	}
	e.set = set
	held := set.lease.Load()
	if (held == nil || held.low(now)) && l.prepare(e, now) {
		return false
	}
	if held != nil && l.give(e, held) {
		return true
	}
	set.heat.add(now, e.call.Cost)
	return false
}

// give answers e from memory, if enough is held.
func (l *leases) give(e *evaluation, from *lease) bool {
	left, ok := from.give(e.started, e.call.Cost)
	if ok {
		e.answerLeased(from, left)
		e.given = true
	}
	return ok
}

// prepare makes e the check that takes more units, if it is time and nobody else does. The units are
// charged as one cost to all counters or to none: so no counter is in shadow in this call.
func (l *leases) prepare(e *evaluation, now time.Time) bool {
	set := e.set
	if set.taking.Load() {
		return false
	}
	units := set.plan(now, e.call.Cost)
	if units == 0 || !set.taking.CompareAndSwap(false, true) {
		return false
	}
	e.takes, e.units, e.resets = true, units, set.resets.Load()
	e.call.Cost += units
	for i := range e.call.Counters {
		e.call.Counters[i].Shadow = false
	}
	return true
}

// settle follows what the store said of e. It reports whether e is to be asked anew, by what it
// asks for itself: gave tells that units went back since it was asked.
func (l *leases) settle(e *evaluation, gave bool) (again bool) {
	set := e.set
	if set == nil {
		if e.warm && e.call.Err == nil {
			l.add(e)
		}
		return false
	}
	if e.takes {
		defer set.taking.Store(false)
		if e.call.Err == nil && e.call.Outcome.Allowed {
			l.took(e)
			return false
		}
		e.takes = false
		e.call.Cost = e.decision.Cost
		for n, i := range e.counted {
			e.call.Counters[n].Shadow = e.decision.Rules[i].Mode == Shadow
		}
		if held := set.lease.Load(); held != nil && l.give(e, held) {
			e.counted = e.counted[:0]
		}
		if e.call.Err != nil || len(e.counted) == 0 {
			return false
		}
		set.note(&e.call.Outcome)
		set.calm.Store(e.started.Add(leaseCalm).UnixNano())
		l.giveBack(set)
		return true
	}
	if e.call.Err != nil {
		return false
	}
	set.note(&e.call.Outcome)
	if e.call.Outcome.Allowed {
		e.held = set.lease.Load().held(e.started)
		return false
	}
	// What this instance holds must not deny what it is asked for: a great cost, of which a part
	// is held.
	return l.giveBack(set) || gave
}

// add makes a set of e's counters, from what the store has said of them.
func (l *leases) add(e *evaluation) {
	set := newLeaseSet(e.hash, &e.call, e.started)
	if _, known := l.sets.LoadOrStore(e.hash, set); known {
		return
	}
	l.count.Add(1)
	set.heat.Store(l.heats[e.hash%leaseHeats].Load())
	l.guard()
}

// took keeps what e was charged for ahead.
func (l *leases) took(e *evaluation) {
	set, now := e.set, l.clock()
	set.note(&e.call.Outcome)
	fresh := newLease(set.counters, &e.call, e.units, e.started)
	l.metrics.leaseTakes.Inc()
	l.metrics.leaseTaken.Add(float64(e.units))
	e.call.Cost = e.decision.Cost
	if set.resets.Load() != e.resets { // the counters were forgotten, perhaps after they were charged
		l.metrics.leaseStranded.Add(float64(e.units))
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
	if set.resets.Load() != e.resets { // a reset has come in between, and may have missed it
		l.drop(fresh)
	}
	e.held = fresh.held(now)
}

// answerLeased answers e with what is certain at this instant: a unit was given out that was charged
// before, and there remain what the store said and what is held.
func (e *evaluation) answerLeased(l *lease, left int64) {
	d := &e.decision
	d.NowMS = l.nowMS + max(0, e.started.Sub(l.sent).Milliseconds())
	for n, i := range e.counted {
		r, v := &d.Rules[i], &l.verdicts[n]
		r.Allowed = true
		r.Remaining = min(v.Remaining+left, r.Quota)
		r.ResetAfterMS = max(1, v.ResetMS-d.NowMS)
		r.NextAfterMS = max(1, v.NextMS-d.NowMS)
	}
	d.conclude()
}

// settleLeased settles all evaluations that the store has answered, and asks it anew where that
// is needed.
func (c *Checker) settleLeased(evaluations []evaluation, calls []*Call) {
	calls = calls[:0]
	for i := range evaluations {
		if e := &evaluations[i]; e.leased && len(e.counted) > 0 && c.leases.settle(e, len(calls) > 0) {
			calls = append(calls, &e.call)
		}
	}
	if len(calls) > 0 {
		c.shared.evaluate(context.Background(), calls)
	}
}
