package redis

import (
	"context"
	"math/bits"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// request is one Evaluate on its way. It holds copies of all that is sent: its caller may stop
// waiting, and use the calls for something else, before they are sent.
type request struct {
	calls      []sentCall
	counters   []engine.Counter // of all calls, one after the other
	entries    []keyEntry       // of all compact calls
	order      []int32          // places of a call's counters, by entry
	judgements []limit.Judgement
	states     []limit.StoredState

	// For the queue.
	state    atomic.Int32
	done     chan struct{} // holds one value when waiting is over
	err      error         // why it is, if not by a reply
	began    time.Duration // awake time
	until    time.Duration // awake time at which to look whether waiting is to go on
	patience time.Duration
	looked   bool
}

// sentCall is a call of a request, and its answer.
type sentCall struct {
	first, count int // in the request's counters
	cost, nowMS  int64
	perCounter   bool // each counter has its own cost
	dryRun       bool
	entry, width int          // where its entries begin, and how many they are
	compact      bool         // evaluate_many.lua can decide it
	algorithms   algorithmSet // of its counters

	err error
	// reply is that of evaluate_one.lua, or of evaluate_many.lua the states of this call's entries.
	reply string
	// Of evaluate_many.lua: so many of the equal calls before this one and it are allowed.
	decidedMS     int64
	allowed, turn int64
}

// keyEntry is what of a call is under one key: a counter, or a group of them.
type keyEntry struct {
	from, count int    // in order
	signature   uint64 // of a group: its rules, their order and limits
	bounds      uint64 // of a group: a hash of the calendar windows of its rules
	grouped     bool
}

func newRequest() *request { return &request{done: make(chan struct{}, 1)} }

// maxManyCounters is how many counters a call may have for evaluate_many.lua, which counts them in
// a byte.
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
		s.compact = s.compact && n.Compact()
	}
	r.counters = append(r.counters, c.Counters...)
	if s.compact {
		r.arrange(c.Counters)
		s.width = len(r.entries) - s.entry
	}
	r.calls = append(r.calls, s)
}

// arrange makes the entries of a call's counters.
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

// inGroup reports whether one of the entries from the given one on is the group of this key.
func (r *request) inGroup(entries int, counters []engine.Counter, key string) bool {
	for i := entries; i < len(r.entries); i++ {
		if e := &r.entries[i]; e.grouped && counters[r.order[e.from]].Key == key {
			return true
		}
	}
	return false
}

const oddFactor = 0x9e3779b97f4a7c15

// sign goes on with a signature. IDs are keyed hashes, so no tenant can make up two lists of
// rules that have the same one.
func sign(signature uint64, c *engine.Counter) uint64 {
	const odd = oddFactor
	id := engine.ReadName(c.ID)
	signature = (bits.RotateLeft64(signature, 29) ^ id.Low) * odd
	if b := c.Numbers.Bounds; b != nil {
		signature = (signature ^ b.Schedule()) * odd
	}
	signature = (bits.RotateLeft64(signature, 31) ^ id.High<<1 ^ uint64(oneIf(c.Shadow))) * odd
	return (bits.RotateLeft64(signature, 37) ^ uint64(c.Numbers.Limit)) * odd // positive
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
	r.state.Store(waiting)
	r.err, r.looked = nil, false
}

// abandon ends the waiting for a request whose answer has not come, and reports whether it did.
func (r *request) abandon() bool {
	return r.state.CompareAndSwap(waiting, abandoned) || r.state.CompareAndSwap(sent, abandoned)
}

// finish tells the caller that the replies are there, unless it has gone.
func (r *request) finish() {
	if r.state.CompareAndSwap(sent, finished) {
		r.done <- struct{}{}
	}
}

// wait returns when waiting is over.
func (r *request) wait(ctx context.Context) error {
	if gone := ctx.Done(); gone != nil {
		select {
		case <-r.done:
			return r.err
		case <-gone:
			if r.abandon() {
				return ctx.Err()
			}
		}
	}
	<-r.done
	return r.err
}

// late reports whether waiting is to end now.
func (r *request) late(now time.Duration, life *pulse) bool {
	if now < r.until {
		return false
	}
	more := life.more(r.patience, r.began, !r.looked)
	r.until, r.looked = now+more, true
	return more <= 0
}

// The lengths of what evaluate_many.lua answers.
const (
	manyHeadBytes = 10
	spentBytes    = 7
	stateBytes    = 17
)

// replyBytes is how long evaluate_many.lua's answer for an entry is.
func (e *keyEntry) replyBytes() int {
	if e.grouped {
		return spentBytes + stateBytes*e.count
	}
	return stateBytes
}
