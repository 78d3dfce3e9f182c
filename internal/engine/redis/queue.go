package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// exchangeFunc sends requests, waits until each has its replies or an error, and reports whether
// the last one was answered. When ctx ends, it stops waiting for a silent store. For a busy store
// it waits longer (pulse).
type exchangeFunc func(ctx context.Context, reqs []*request) (answered bool)

// queue lets requests share pipelines. No request waits for a batch to fill. A request that finds a
// free pipeline is sent immediately, by its own goroutine, together with the waiting requests.
// Requests that arrive while all pipelines are in use are sent together in the next one.
type queue struct {
	exchange  exchangeFunc
	deadline  time.Duration // of a request, including its wait, and of a pipeline
	maxBatch  int           // calls
	pipelines int
	// gather is how many requests must wait until another pipeline is sent while one is in flight.
	// The fewer requests share a pipeline, the more each costs.
	gather int
	life   pulse // of answers to this queue

	waits    waits
	trips    trips
	answered atomic.Bool // by the last pipeline

	mu       sync.Mutex
	busy     int  // pipelines in flight
	heavy    bool // one of them has a heavy request
	fair     fairness
	unsent   map[limit.TenantID]unsent // since they were last read
	waiting  []*request
	underway []*batch
	watch    *time.Timer // checks all waiting requests; most are answered in a thousandth of their timeout
	watching bool
}

// batch has the requests of one pipeline.
type batch struct {
	reqs  []*request
	heavy bool // one of them is
}

// The states of a request. The first change from waitingState determines whether it is sent.
const (
	waitingState int32 = iota
	sent
	finished
	abandoned
)

func (q *queue) send(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return notReached{err}
	}
	r.patience = q.deadline
	if end, set := ctx.Deadline(); set {
		r.patience = min(r.patience, time.Until(end))
	}
	r.began = engine.Awake()
	r.until = r.began + r.patience
	q.mu.Lock()
	q.waiting = append(q.waiting, r)
	q.guard()
	free := q.busy < q.pipelines && q.worth(q.busy)
	if free {
		q.busy++
	}
	q.mu.Unlock()
	switch {
	case !free:
	case r.patience > q.deadline/2:
		q.lead()
	default: // an exchange may take longer than the caller waits
		go q.run()
	}
	return r.wait(ctx)
}

// lead sends the waiting requests in the goroutine of a caller. Its own request is among them,
// unless another pipeline has just taken it. If more requests have arrived, another goroutine sends
// them.
func (q *queue) lead() {
	var b batch
	// Let other callers run first: their requests add little to the cost of an exchange.
	runtime.Gosched()
	if q.take(&b) && q.exchangeBatch(&b) {
		go q.run()
	}
}

// run sends batches until no request waits.
func (q *queue) run() {
	var b batch
	for more := true; more; {
		// The callers that the last pipeline answered will soon send their next calls: let them run
		// first.
		runtime.Gosched()
		more = q.take(&b) && q.exchangeBatch(&b)
	}
}

// exchangeBatch exchanges a batch and reports whether there is more to send. If not, it has
// released the pipeline.
func (q *queue) exchangeBatch(b *batch) (more bool) {
	began := time.Now()
	answered := q.exchange(deadlineContext{began.Add(q.deadline)}, b.reqs)
	q.answered.Store(answered)
	trip := time.Since(began)
	if answered {
		q.life.beat()
	}
	q.mu.Lock()
	if answered {
		q.trips.note(trip)
	}
	q.underway = slices.DeleteFunc(q.underway, func(other *batch) bool { return other == b })
	q.heavy = q.heavy && !b.heavy
	if more = len(q.waiting) > 0 && q.worth(q.busy-1); !more {
		q.busy--
	}
	q.mu.Unlock()
	for i, r := range b.reqs {
		r.finish()
		b.reqs[i] = nil
	}
	return more
}

// worth reports whether the waiting requests are worth a pipeline while so many others are in
// flight. The caller holds the lock.
func (q *queue) worth(others int) bool { return others == 0 || len(q.waiting) >= q.gather }

// take moves waiting requests into a batch. If there is none, it releases the pipeline and reports
// false.
func (q *queue) take(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.reqs, b.heavy = b.reqs[:0], false
	q.fair.light = q.heavy
	var wait time.Duration
	q.waiting, wait = q.fair.pick(b, q.waiting, q.maxBatch)
	if len(b.reqs) == 0 {
		q.busy--
		return false
	}
	if q.answered.Load() {
		q.waits.note(wait)
	}
	q.heavy = q.heavy || b.heavy
	q.underway = append(q.underway, b)
	return true
}

// guard starts the timer that checks the requests. The caller holds the lock.
func (q *queue) guard() {
	switch {
	case q.watching:
	case q.watch == nil:
		q.watch = time.AfterFunc(engine.AwakeTick, q.look)
	default:
		q.watch.Reset(engine.AwakeTick)
	}
	q.watching = true
}

// look ends the wait of every request that has waited long enough.
func (q *queue) look() {
	now := engine.Awake()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watching = false
	for _, r := range q.waiting {
		q.lookAfter(r, now)
	}
	for _, b := range q.underway {
		for _, r := range b.reqs {
			q.lookAfter(r, now)
		}
	}
}

func (q *queue) lookAfter(r *request, now time.Duration) {
	if r.state.Load() > sent {
		return
	}
	if !r.late(now, &q.life) {
		q.guard()
		return
	}
	queued := r.state.CompareAndSwap(waitingState, abandoned)
	if !queued && !r.state.CompareAndSwap(sent, abandoned) {
		return
	}
	switch {
	case !queued:
		r.err = context.DeadlineExceeded
	case q.life.silent(r.patience):
		r.err = behindSilence{notReached{context.DeadlineExceeded}}
	default:
		r.err = engine.ErrNotSent
		q.noteUnsent(r, now)
	}
	r.done <- struct{}{}
}

// deadlineContext is a context with a deadline but without a timer: its reader compares the
// deadline.
type deadlineContext struct{ at time.Time }

func (c deadlineContext) Deadline() (time.Time, bool) { return c.at, true }
func (deadlineContext) Done() <-chan struct{}         { return nil }
func (deadlineContext) Err() error                    { return nil }
func (deadlineContext) Value(any) any                 { return nil }
