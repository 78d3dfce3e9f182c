package redis

import (
	"context"
	"math/bits"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// request is one Evaluate. It has copies of everything that is sent, because its caller may stop
// waiting and reuse the calls before they are sent.
type request struct {
	calls      []sentCall
	counters   []engine.Counter // of all calls, consecutively
	entries    []keyEntry       // of all compact calls
	order      []int32          // indexes of a call's counters, by entry
	judgements []limit.Judgement
	states     []limit.StoredState

	// Fields of the queue.
	tenant   limit.TenantID // of the first call
	work     int64          // of all calls
	state    atomic.Int32
	done     chan struct{} // has one value when the wait is over
	err      error         // the reason, if there is no reply
	began    time.Duration // awake time
	until    time.Duration // awake time of the next check whether the wait is over
	patience time.Duration
	looked   bool
}

// sentCall is a call of a request, with its answer.
type sentCall struct {
	first, count int // in the request's counters
	cost, nowMS  int64
	perCounter   bool // each counter has its own cost
	dryRun       bool
	entry, width int          // first entry, and number of entries
	compact      bool         // evaluate_many.lua can decide it
	algorithms   algorithmSet // of its counters

	// Fields of the Census.
	of       *tenantCounters
	reserved int64      // counters that the call may create
	spare    *spareKeys // of a bounded call; nil for another

	err error
	// reply is the reply of evaluate_one.lua, or the states of this call's entries in the reply of
	// evaluate_many.lua.
	reply string
	// For evaluate_many.lua: how many of the equal calls up to this one are allowed.
	decidedMS     int64
	allowed, turn int64
	// diverted has a byte for each key of a bounded call: 1 if its spare key was used.
	diverted string
}

// keyEntry is a key of a call: a counter, or a group of counters.
type keyEntry struct {
	from, count int    // in order
	signature   uint64 // of a group: its rules, their order and limits
	bounds      uint64 // of a group: a hash of the calendar windows of its rules
	grouped     bool
}

func newRequest() *request { return &request{done: make(chan struct{}, 1)} }

// maxManyCounters is the maximum number of counters of a call for evaluate_many.lua, which counts
// them in one byte.
const maxManyCounters = 255

func (r *request) add(c *engine.Call) {
	s := sentCall{
		first: len(r.counters), count: len(c.Counters), cost: min(c.Cost, maxScriptCost), nowMS: c.NowMS,
		perCounter: c.PerCounter, dryRun: c.DryRun,
		compact: len(c.Counters) <= maxManyCounters && !c.PerCounter, entry: len(r.entries),
	}
	for i := range c.Counters {
		n := &c.Counters[i].Numbers
		s.algorithms = s.algorithms.with(n.Algorithm)
		s.compact = s.compact && n.Compact() && c.Counters[i].Credits == nil
		if c.Counters[i].Credits != nil {
			s.algorithms |= withCredits
		}
	}
	r.counters = append(r.counters, c.Counters...)
	if s.compact {
		r.arrange(c.Counters)
		s.width = len(r.entries) - s.entry
	}
	if len(r.calls) == 0 {
		r.tenant = c.Tenant
	}
	r.work += s.units(c.Counters)
	r.calls = append(r.calls, s)
}

// units estimates the work of a call for Redis.
func (s *sentCall) units(counters []engine.Counter) (units int64) {
	if s.compact {
		return int64(s.work())
	}
	for i := range counters {
		units += engine.CounterWork(&counters[i].Numbers, counters[i].Credits)
	}
	return units
}

// arrange creates the entries of a call's counters.
func (r *request) arrange(counters []engine.Counter) {
	entries := len(r.entries)
	for i := range counters {
		c := &counters[i]
		if !c.Grouped {
			r.entries = append(r.entries, keyEntry{from: len(r.order), count: 1})
			r.order = append(r.order, int32(i)) // at most maxManyCounters
			continue
		}
		if r.inGroup(entries, counters, c.Key) {
			continue
		}
		e := keyEntry{from: len(r.order), grouped: true}
		for j := i; j < len(counters); j++ {
			if o := &counters[j]; o.Grouped && o.Key == c.Key {
				e.signature = sign(e.signature, o)
				if b := o.Numbers.Bounds; b != nil {
					e.bounds = (e.bounds ^ uint64(b.EndMS)) * oddFactor // positive
				}
				e.count++
				r.order = append(r.order, int32(j)) // at most maxManyCounters
			}
		}
		r.entries = append(r.entries, e)
	}
}

// inGroup reports whether one of the entries from the given one on is the group with this key.
func (r *request) inGroup(entries int, counters []engine.Counter, key string) bool {
	for i := entries; i < len(r.entries); i++ {
		if e := &r.entries[i]; e.grouped && counters[r.order[e.from]].Key == key {
			return true
		}
	}
	return false
}

const oddFactor = 0x9e3779b97f4a7c15

// sign adds a counter to a signature. IDs are keyed hashes, so no tenant can construct two lists of
// rules with the same signature.
func sign(signature uint64, c *engine.Counter) uint64 {
	const odd = oddFactor
	id := engine.ReadName(c.ID)
	signature = (bits.RotateLeft64(signature, 29) ^ id.Low) * odd
	if b := c.Numbers.Bounds; b != nil {
		signature = (signature ^ b.Schedule()) * odd
	}
	signature = (bits.RotateLeft64(signature, 31) ^ id.High<<1 ^ uint64(oneIf(c.Shadow))) * odd
	return (bits.RotateLeft64(signature, 37) ^ uint64(c.Numbers.Enforced())) * odd // positive
}

func (r *request) countersOf(s *sentCall) []engine.Counter {
	return r.counters[s.first : s.first+s.count]
}

func (r *request) entriesOf(s *sentCall) []keyEntry {
	return r.entries[s.entry : s.entry+s.width]
}

func (r *request) reset() {
	clear(r.counters) // the keys
	clear(r.calls)
	clear(r.judgements)
	r.calls, r.counters, r.entries, r.order = r.calls[:0], r.counters[:0], r.entries[:0], r.order[:0]
	r.state.Store(waitingState)
	r.err, r.looked, r.work = nil, false, 0
}

// abandon ends the wait for a request that has no answer yet, and reports whether it did, and
// whether the request will never be sent.
func (r *request) abandon() (ended, unsent bool) {
	if r.state.CompareAndSwap(waitingState, abandoned) {
		return true, true
	}
	return r.state.CompareAndSwap(sent, abandoned), false
}

// finish tells the caller that the replies have arrived, unless it has stopped waiting.
func (r *request) finish() {
	if r.state.CompareAndSwap(sent, finished) {
		r.done <- struct{}{}
	}
}

// wait returns when the wait is over.
func (r *request) wait(ctx context.Context) error {
	if gone := ctx.Done(); gone != nil {
		select {
		case <-r.done:
			return r.err
		case <-gone:
			switch ended, unsent := r.abandon(); {
			case unsent:
				return notReached{ctx.Err()}
			case ended:
				return ctx.Err()
			}
		}
	}
	<-r.done
	return r.err
}

// late reports whether the wait must end now.
func (r *request) late(now time.Duration, life *pulse) bool {
	if now < r.until {
		return false
	}
	more := life.more(r.patience, r.began, !r.looked)
	r.until, r.looked = now+more, true
	return more <= 0
}

// The lengths of parts of evaluate_many.lua's reply.
const (
	manyHeadBytes = 10
	spentBytes    = 7
	stateBytes    = 17
)

// replyBytes returns the length of evaluate_many.lua's reply for an entry.
func (e *keyEntry) replyBytes() int {
	if e.grouped {
		return spentBytes + stateBytes*e.count
	}
	return stateBytes
}
