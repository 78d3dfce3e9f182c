package redis

import (
	"slices"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// fairness chooses the requests of the next pipeline. While all waiting requests fit into one
// pipeline, it takes all of them, in order. If they do not fit, tenants take turns, by deficit
// round robin (Shreedhar and Varghese, 1996): at each turn a tenant may send requests for
// fairQuantum more units of work. A tenant that sends many or expensive calls therefore delays its
// own calls, and not those of other tenants.
//
// An example: a tenant has 500 waiting calls of 100 units each, and another one has a single call
// of one unit. One pipeline takes two calls of the first tenant, and the call of the second one.
type fairness struct {
	flows  map[limit.TenantID]*flow // of tenants that wait; empty while everything fits
	active []*flow                  // in the order of their turns
	spare  []*flow
	// light leaves out heavy requests, and those of the same tenant behind them.
	light bool
	held  []*flow // that are left out
}

// flow has the waiting requests of one tenant.
type flow struct {
	tenant  limit.TenantID
	reqs    []*request
	deficit int64 // units of work that it may send
	picked  bool  // it has a request in this pipeline
	waits   waits // of its oldest request in each pipeline
}

const (
	// maxBatchWork is the maximum work of a pipeline with several requests. Redis serves nothing
	// else while it processes a pipeline, so this is also how long a call of another tenant waits:
	// about 1.3 ms.
	maxBatchWork = 256
	fairQuantum  = 8
	// heavyWork is the work of a request from which on only one is in flight. With one in each
	// pipeline, a call of another tenant would wait for one of them to end, and for the other one
	// in Redis.
	heavyWork = 128
)

// pick moves waiting requests into b: up to most calls, and up to maxBatchWork. It returns the
// others, and the wait of the pipeline, which is that of its oldest request.
func (f *fairness) pick(b *batch, waiting []*request, most int) (left []*request, wait time.Duration) {
	now := engine.Awake()
	if f.fitting(waiting, most) {
		for _, r := range waiting {
			if b.take(r) {
				wait = max(wait, now-r.began)
			}
		}
		f.forget()
		clear(waiting)
		return waiting[:0], wait
	}
	f.sort(waiting)
	wait = f.serve(b, most, now)
	left = waiting[:0]
	for _, r := range waiting {
		if r.state.Load() == waitingState {
			left = append(left, r)
		}
	}
	clear(waiting[len(left):])
	return left, wait
}

// serve moves requests of the tenants whose turn it is into b, and returns the wait of the
// pipeline.
func (f *fairness) serve(b *batch, most int, now time.Duration) (wait time.Duration) {
	calls, work := 0, int64(0)
	for full := false; !full && len(f.active) > 0; {
		turn := f.active[0]
		f.active = f.active[:copy(f.active, f.active[1:])]
		turn.deficit += fairQuantum
		next, held := 0, false
		for ; next < len(turn.reqs) && turn.reqs[next].work <= turn.deficit; next++ {
			r := turn.reqs[next]
			if held = f.light && r.work >= heavyWork; held {
				break
			}
			if full = calls > 0 && (calls+len(r.calls) > most || work+r.work > maxBatchWork); full {
				break
			}
			if b.take(r) {
				calls, work = calls+len(r.calls), work+r.work
				turn.deficit -= r.work
				if !turn.picked {
					turn.picked = true
					turn.waits.note(now - r.began)
					wait = max(wait, now-r.began)
				}
			}
		}
		turn.reqs = turn.reqs[:copy(turn.reqs, turn.reqs[next:])]
		switch {
		case len(turn.reqs) == 0:
			f.leave(turn)
		case held: // it has its turn in the next pipeline that may have heavy requests
			turn.deficit -= fairQuantum
			f.held = append(f.held, turn)
		case full: // it continues its turn in the next pipeline
			turn.deficit -= fairQuantum
			f.active = append(f.active, nil)
			copy(f.active[1:], f.active)
			f.active[0] = turn
		default:
			f.active = append(f.active, turn)
		}
	}
	f.active = slices.Insert(f.active, 0, f.held...)
	clear(f.held)
	f.held = f.held[:0]
	return wait
}

// fitting reports whether all waiting requests may be sent in one pipeline.
func (f *fairness) fitting(waiting []*request, most int) bool {
	calls, work := 0, int64(0)
	for i, r := range waiting {
		calls, work = calls+len(r.calls), work+r.work
		if i > 0 && (calls > most || work > maxBatchWork) || f.light && r.work >= heavyWork {
			return false
		}
	}
	return true
}

// take adds a request, unless its caller has stopped waiting.
func (b *batch) take(r *request) bool {
	if !r.state.CompareAndSwap(waitingState, sent) {
		return false
	}
	b.reqs = append(b.reqs, r)
	b.heavy = b.heavy || r.work >= heavyWork
	return true
}

// sort distributes the waiting requests over the flows of their tenants. A tenant without waiting
// requests loses its turn.
func (f *fairness) sort(waiting []*request) {
	if f.flows == nil {
		f.flows = map[limit.TenantID]*flow{}
	}
	for _, turn := range f.active {
		turn.reqs, turn.picked = turn.reqs[:0], false
	}
	for _, r := range waiting {
		turn := f.flows[r.tenant]
		if turn == nil {
			turn = f.join(r.tenant)
		}
		turn.reqs = append(turn.reqs, r)
	}
	kept := f.active[:0]
	for _, turn := range f.active {
		if len(turn.reqs) == 0 {
			f.leave(turn)
			continue
		}
		kept = append(kept, turn)
	}
	f.active = kept
}

func (f *fairness) join(tenant limit.TenantID) (turn *flow) {
	if last := len(f.spare) - 1; last >= 0 {
		turn, f.spare = f.spare[last], f.spare[:last]
	} else {
		turn = new(flow)
	}
	turn.tenant = tenant
	f.flows[tenant] = turn
	f.active = append(f.active, turn)
	return turn
}

// leave ends the turns of a tenant. The caller has removed it from active.
func (f *fairness) leave(turn *flow) {
	delete(f.flows, turn.tenant)
	clear(turn.reqs[:cap(turn.reqs)])
	turn.reqs, turn.deficit, turn.picked = turn.reqs[:0], 0, false
	turn.waits.read() // nothing of it waits any more
	f.spare = append(f.spare, turn)
}

// forget ends all turns, because nothing waits any more.
func (f *fairness) forget() {
	for _, turn := range f.active {
		f.leave(turn)
	}
	f.active = f.active[:0]
}

// waits has the smallest wait since it was last read.
type waits struct{ least atomic.Int64 } // ns, plus 1; 0: none

// note notes the wait of a pipeline. The caller holds the lock of the queue.
func (w *waits) note(wait time.Duration) {
	if least := w.least.Load(); least == 0 || int64(wait) < least-1 {
		w.least.Store(int64(wait) + 1)
	}
}

// read returns the smallest wait since the last call, or 0 if nothing was sent.
func (w *waits) read() time.Duration { return time.Duration(max(w.least.Swap(0)-1, 0)) }

// Waited returns for how long calls waited for a pipeline since its last call: the smallest wait of
// a server's pipelines, for the server where it is the longest. Pipelines to a silent server do not
// count, because those calls wait for an answer and not for their turn.
func (e *Engine) Waited() (longest time.Duration) {
	e.eachQueue(func(q *queue) { longest = max(longest, q.waits.read()) })
	return longest
}

// Waiting calls each for the tenants whose calls wait behind other calls of the same tenant: with
// the smallest wait since the last call of Waiting, as in Waited, and the numbers of requests that
// wait and that are in a pipeline now. It calls each for every server for which a tenant waits.
func (e *Engine) Waiting(each func(tenant limit.TenantID, wait time.Duration, requests, underway int64)) {
	e.eachQueue(func(q *queue) { q.standing(each) })
}

// standing calls each for the tenants that wait in one queue.
func (q *queue) standing(each func(limit.TenantID, time.Duration, int64, int64)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.fair.active) == 0 && len(q.unsent) == 0 {
		return
	}
	underway := q.underwayOf()
	for _, turn := range q.fair.active {
		if wait := turn.waits.read(); wait > 0 && q.answered.Load() {
			each(turn.tenant, wait, int64(len(turn.reqs)), underway[turn.tenant])
		}
	}
	for tenant, u := range q.unsent {
		each(tenant, u.wait, u.requests, underway[tenant])
	}
	clear(q.unsent)
}

// underwayOf returns the number of requests of each tenant that are in a pipeline. The caller holds
// the lock.
func (q *queue) underwayOf() map[limit.TenantID]int64 {
	underway := map[limit.TenantID]int64{}
	for _, b := range q.underway {
		for _, r := range b.reqs {
			underway[r.tenant]++
		}
	}
	return underway
}

// Trip returns the shortest round trip of a pipeline in the last seconds, for the server where it
// is the longest. It must be called once per interval of overload.Bound.
func (e *Engine) Trip() (longest time.Duration) {
	e.eachQueue(func(q *queue) { longest = max(longest, q.trips.read()) })
	return longest
}

// trips has the shortest round trip of the last tripReads to 2 × tripReads reads.
type trips struct {
	waits
	last, before time.Duration // 0: none
	reads        int
}

// tripReads is the number of reads after which a round trip may be forgotten: five seconds.
const tripReads = 50

// read returns the shortest round trip, or 0 if there was none.
func (t *trips) read() time.Duration {
	if t.reads++; t.reads >= tripReads && t.last > 0 {
		t.reads, t.before, t.last = 0, t.last, 0
	}
	if trip := t.waits.read(); trip > 0 && (t.last == 0 || trip < t.last) {
		t.last = trip
	}
	if t.last == 0 || t.before > 0 && t.before < t.last {
		return t.before
	}
	return t.last
}

// unsent are the requests of a tenant that waited for too long and were not sent.
type unsent struct {
	wait     time.Duration // the shortest
	requests int64
}

// noteUnsent notes the wait of a request that was not sent. It counts where no pipeline was sent,
// for example because the server's machine is busy. The caller holds the lock.
func (q *queue) noteUnsent(r *request, now time.Duration) {
	wait := now - r.began
	q.waits.note(wait)
	if q.unsent == nil {
		q.unsent = map[limit.TenantID]unsent{}
	}
	u, found := q.unsent[r.tenant]
	if !found || wait < u.wait {
		u.wait = wait
	}
	u.requests++
	q.unsent[r.tenant] = u
}

// eachQueue calls f for the queues of all servers.
func (e *Engine) eachQueue(f func(*queue)) {
	e.first.eachQueue(f)
	for _, s := range e.servers.All() {
		s.eachQueue(f)
	}
}

func (s *server) eachQueue(f func(*queue)) {
	for _, q := range s.queues {
		if q != nil {
			f(q)
		}
	}
}
