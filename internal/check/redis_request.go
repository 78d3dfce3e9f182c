package check

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// redisRequest is one Evaluate on its way. It holds copies of all that is sent: its caller may give
// up, and use the calls for something else, before it is.
type redisRequest struct {
	calls      []sentCall
	counters   []Counter // of all calls, one after the other
	values     []int64   // what hot.lua answered, copied
	judgements []judgement
	states     []hotState

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
	hot          bool         // hot.lua can decide it
	algorithms   algorithmSet // of its counters

	err   error
	reply string // of main.lua
	// Of hot.lua: so many of the equal calls before this one and it are allowed, from the state
	// that begins there in values.
	decidedMS     int64
	allowed, turn int64
	value         int
}

func newRedisRequest() *redisRequest { return &redisRequest{done: make(chan struct{}, 1)} }

// maxHotCounters is how many counters a call may have for hot.lua, which counts them in a byte.
const maxHotCounters = 255

func (r *redisRequest) add(c *Call) {
	s := sentCall{
		first: len(r.counters), count: len(c.Counters), cost: min(c.Cost, maxScriptCost), nowMS: c.NowMS, dryRun: c.DryRun,
		hot: len(c.Counters) <= maxHotCounters,
	}
	for i := range c.Counters {
		n := &c.Counters[i].Numbers
		s.algorithms = s.algorithms.with(n.Algorithm)
		s.hot = s.hot && n.PenaltyMS == 0 && n.Algorithm != SlidingWindowLog && n.Algorithm != SlidingWindowBuckets
	}
	r.counters = append(r.counters, c.Counters...)
	r.calls = append(r.calls, s)
}

func (r *redisRequest) countersOf(s *sentCall) []Counter {
	return r.counters[s.first : s.first+s.count]
}

func (r *redisRequest) reset() {
	clear(r.counters) // the keys
	clear(r.calls)
	clear(r.judgements)
	r.calls, r.counters, r.values = r.calls[:0], r.counters[:0], r.values[:0]
	r.state.Store(waiting)
	r.err, r.looked = nil, false
}

// abandon ends the waiting for a request whose answer has not come, and reports whether it did.
func (r *redisRequest) abandon() bool {
	return r.state.CompareAndSwap(waiting, abandoned) || r.state.CompareAndSwap(sent, abandoned)
}

// finish tells the caller that the replies are there, unless it has gone.
func (r *redisRequest) finish() {
	if r.state.CompareAndSwap(sent, finished) {
		r.done <- struct{}{}
	}
}

// wait returns when waiting is over.
func (r *redisRequest) wait(ctx context.Context) error {
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
func (r *redisRequest) late(now time.Duration, life *pulse) bool {
	if now < r.until {
		return false
	}
	more := life.more(r.patience, r.began, !r.looked)
	r.until, r.looked = now+more, true
	return more <= 0
}

// hotState is room for the state of one counter, of whatever algorithm hot.lua knows.
type hotState struct {
	counter  slidingWindowCounter
	fixed    fixedWindow
	firstHit fixedWindowFirstHit
	bucket   tokenBucket
	queue    leakyBucketQueue
}

// load makes a state of the values that hot.lua answered for a counter; ok is false where
// they can be none.
func (s *hotState) load(n *Numbers, v []int64) (state, bool) {
	ok := v[0] >= 0 && v[1] >= 0 && v[0] < maxReplyInt && v[1] < maxReplyInt
	switch n.Algorithm {
	case SlidingWindowCounter:
		s.counter = slidingWindowCounter{index: v[0], cur: v[1], prev: v[2]}
		return &s.counter, ok && v[0] <= MaxInstantMS && v[1] <= MaxLimit && v[2] >= 0 && v[2] <= MaxLimit
	case FixedWindow:
		s.fixed = fixedWindow{end: v[0], count: v[1]}
		return &s.fixed, ok
	case FixedWindowFirstHit:
		s.firstHit = fixedWindowFirstHit{fixedWindow{end: v[0], count: v[1]}}
		return &s.firstHit, ok
	}
	b := bucket{full: v[0], part: v[1], limit: n.Limit}
	ok = ok && v[1] < n.Limit
	if n.Algorithm == LeakyBucketQueue {
		s.queue = leakyBucketQueue{b}
		return &s.queue, ok
	}
	s.bucket = tokenBucket{bucket: b} // a leaky bucket decides alike
	return &s.bucket, ok
}

// maxReplyInt bounds the integers that scripts answer.
const maxReplyInt = 1 << 53

// hotValues is how many integers hot.lua answers for a counter.
func hotValues(a Algorithm) int {
	if a == SlidingWindowCounter {
		return 3
	}
	return 2
}

// judge works out the outcome of c from what hot.lua answered: the state before all calls that are
// equal to this one, and how many of them were allowed.
func (r *redisRequest) judge(c *Call, s *sentCall) error {
	count := len(c.Counters)
	out := &c.Outcome
	out.NowMS, out.Allowed = s.decidedMS, s.turn < s.allowed
	out.Verdicts = slices.Grow(out.Verdicts[:0], count)[:count]
	r.states = slices.Grow(r.states[:0], count)[:count]
	r.judgements = slices.Grow(r.judgements[:0], count)[:count]
	values := r.values[s.value:]
	allowed := true
	for i := range c.Counters {
		counter, v := &c.Counters[i], &out.Verdicts[i]
		n := &counter.Numbers
		state, ok := r.states[i].load(n, values)
		if !ok {
			return errReply
		}
		values = values[hotValues(n.Algorithm):]
		if before := min(s.turn, s.allowed); before > 0 && c.Cost > 0 {
			if counter.Shadow {
				before = min(before, state.remaining(n, out.NowMS)/c.Cost)
			}
			state.charge(n, before*c.Cost, out.NowMS)
		}
		r.judgements[i] = judgement{numbers: n, state: state}
		*v = r.judgements[i].admit(c.Cost, out.NowMS)
		allowed = allowed && (v.Allowed || counter.Shadow)
	}
	if allowed != out.Allowed {
		return errReply // the twins disagree: a defect, and no verdict is safe
	}
	for i := range c.Counters {
		v := &out.Verdicts[i]
		if allowed && v.Allowed {
			r.judgements[i].charge(v, c.Cost, out.NowMS)
		}
		r.judgements[i].finish(v, c.Cost, out.NowMS)
	}
	return nil
}
