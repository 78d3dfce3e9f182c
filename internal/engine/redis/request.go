package redis

import (
	"context"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// redisRequest is one Evaluate on its way. It holds copies of all that is sent: its caller may give
// up, and use the calls for something else, before it is.
type request struct {
	calls      []sentCall
	counters   []engine.Counter // of all calls, one after the other
	entries    []hotEntry       // of all calls that are hot
	order      []int32          // places of a call's counters, by entry
	judgements []limit.Judgement
	states     []limit.StoredState

	// The sender's.
	state    atomic.Int32
	done     chan struct{} // holds one value when waiting is over
	err      error         // why it is, if not by a reply
	began    time.Duration // awake time
	until    time.Duration // awake time at which to look whether waiting is to go on
	patience time.Duration
	looked   bool
}

// sentCall is a call of a redisRequest, and its answer.
type sentCall struct {
	first, count int // in the request's counters
	cost, nowMS  int64
	dryRun       bool
	entry, width int          // where its entries begin, and how many they are
	hot          bool         // hot.lua can decide it
	algorithms   algorithmSet // of its counters

	err error
	// reply is that of main.lua, or of hot.lua the states of this call's entries.
	reply string
	// Of hot.lua: so many of the equal calls before this one and it are allowed.
	decidedMS     int64
	allowed, turn int64
}

// hotEntry is what of a call is under one key: a counter, or a group of them.
type hotEntry struct {
	from, count int    // in order
	signature   uint64 // of a group: its rules, their order and limits
	grouped     bool
}

func newRequest() *request { return &request{done: make(chan struct{}, 1)} }

// maxHotCounters is how many counters a call may have for hot.lua, which counts them in a byte.
const maxHotCounters = 255

func (r *request) add(c *engine.Call) {
	s := sentCall{
		first: len(r.counters), count: len(c.Counters), cost: min(c.Cost, maxScriptCost), nowMS: c.NowMS, dryRun: c.DryRun,
		hot: len(c.Counters) <= maxHotCounters, entry: len(r.entries),
	}
	for i := range c.Counters {
		n := &c.Counters[i].Numbers
		s.algorithms = s.algorithms.with(n.Algorithm)
		s.hot = s.hot && n.Compact()
	}
	r.counters = append(r.counters, c.Counters...)
	if s.hot {
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
			r.entries = append(r.entries, hotEntry{from: len(r.order), count: 1})
			r.order = append(r.order, int32(i)) //nolint:gosec // at most maxHotCounters
			continue
		}
		if r.inGroup(entries, counters, c.Key) {
			continue
		}
		e := hotEntry{from: len(r.order), grouped: true}
		for j := i; j < len(counters); j++ {
			if o := &counters[j]; o.Grouped && o.Key == c.Key {
				e.signature = sign(e.signature, o)
				e.count++
				r.order = append(r.order, int32(j)) //nolint:gosec // at most maxHotCounters
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

// sign goes on with a signature. IDs are keyed hashes, so no tenant can make up two lists of
// rules that have the same one.
func sign(signature uint64, c *engine.Counter) uint64 {
	const odd = 0x9e3779b97f4a7c15
	id := engine.ReadName(c.ID)
	signature = (bits.RotateLeft64(signature, 29) ^ id.Low) * odd
	signature = (bits.RotateLeft64(signature, 31) ^ id.High<<1 ^ uint64(oneIf(c.Shadow))) * odd
	return (bits.RotateLeft64(signature, 37) ^ uint64(c.Numbers.Limit)) * odd //nolint:gosec // positive
}

func (r *request) countersOf(s *sentCall) []engine.Counter {
	return r.counters[s.first : s.first+s.count]
}

func (r *request) entriesOf(s *sentCall) []hotEntry {
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

// The lengths of what hot.lua answers.
const (
	hotHeadBytes  = 10
	hotSpentBytes = 7
	hotStateBytes = 17
)

// replyBytes is how long hot.lua's answer for an entry is.
func (e *hotEntry) replyBytes() int {
	if e.grouped {
		return hotSpentBytes + hotStateBytes*e.count
	}
	return hotStateBytes
}

// judge works out the outcome of c from what hot.lua answered: the state before all calls that are
// equal to this one, and how many of them were allowed.
func (r *request) judge(c *engine.Call, s *sentCall) error {
	count := len(c.Counters)
	out := &c.Outcome
	out.NowMS, out.Allowed = s.decidedMS, s.turn < s.allowed
	out.Verdicts = slices.Grow(out.Verdicts[:0], count)[:count]
	r.states = slices.Grow(r.states[:0], count)[:count]
	r.judgements = slices.Grow(r.judgements[:0], count)[:count]
	reply := s.reply
	allowed := true
	entries := r.entriesOf(s)
	for e := range entries {
		entry, spent := &entries[e], int64(0)
		if entry.grouped {
			spent, reply = readUint(reply[:hotSpentBytes]), reply[hotSpentBytes:]
		}
		for _, i := range r.order[entry.from : entry.from+entry.count] {
			counter, v := &c.Counters[i], &out.Verdicts[i]
			n := &counter.Numbers
			state, ok := r.states[i].Load(n, readUint(reply[:6]), readUint(reply[6:13]), readUint(reply[13:17]), spent)
			if !ok {
				return errReply
			}
			reply = reply[hotStateBytes:]
			if before := min(s.turn, s.allowed); before > 0 && c.Cost > 0 {
				if counter.Shadow {
					before = min(before, state.Remaining(n, out.NowMS)/c.Cost)
				}
				if before > 0 {
					state.Charge(n, before*c.Cost, out.NowMS)
				}
			}
			r.judgements[i] = limit.Judgement{Numbers: n, State: state}
			*v = r.judgements[i].Admit(c.Cost, out.NowMS)
			allowed = allowed && (v.Allowed || counter.Shadow)
		}
	}
	if allowed != out.Allowed {
		return errReply // the twins disagree: a defect, and no verdict is safe
	}
	for i := range c.Counters {
		v := &out.Verdicts[i]
		if allowed && v.Allowed {
			r.judgements[i].Charge(v, c.Cost, out.NowMS)
		}
		r.judgements[i].Finish(v, c.Cost, out.NowMS)
	}
	return nil
}
