package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"weir/internal/engine"
)

// exchangeFunc sends requests, waits until each has its replies or errors, and reports whether
// the last was answered. It stops waiting for a silent store when ctx ends, and for a busy one
// later (pulse).
type exchangeFunc func(ctx context.Context, reqs []*request) (answered bool)

// queue lets requests share pipelines. No request waits for a batch to fill: a request that
// finds a pipeline free is sent at once, by its own goroutine, with those that are waiting.
// Requests that arrive while all pipelines are in use travel together in the next one.
type queue struct {
	exchange  exchangeFunc
	deadline  time.Duration // of a request, waiting included, and of a pipeline
	maxBatch  int           // calls
	pipelines int
	life      pulse // of answers to this sender

	mu       sync.Mutex
	busy     int // pipelines under way
	waiting  []*request
	underway []*batch
	watch    *time.Timer // looks after all requests; most are answered in a thousandth of their patience
	watching bool
}

// batch is the requests of one pipeline.
type batch struct{ reqs []*request }

// The states of a request. The first change from waiting decides whether it is sent.
const (
	waiting int32 = iota
	sent
	finished
	abandoned
)

func (q *queue) send(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
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
	free := q.busy < q.pipelines
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

// lead sends the waiting requests in the goroutine of a caller, whose own request is among them
// unless another pipeline has just taken it. If more requests have arrived, another goroutine goes
// on.
func (q *queue) lead() {
	var b batch
	// Let other callers run first: an exchange costs hardly more with their requests.
	runtime.Gosched()
	if q.take(&b) && q.exchangeBatch(&b) {
		go q.run()
	}
}

// run sends batch after batch until no request waits.
func (q *queue) run() {
	var b batch
	for more := true; more; {
		// The callers that the last pipeline answered are about to ask again: let them run first.
		runtime.Gosched()
		more = q.take(&b) && q.exchangeBatch(&b)
	}
}

// exchangeBatch exchanges a batch and reports whether more is to be sent; if not, it has released
// the pipeline.
func (q *queue) exchangeBatch(b *batch) (more bool) {
	if q.exchange(deadlineContext{time.Now().Add(q.deadline)}, b.reqs) {
		q.life.beat()
	}
	q.mu.Lock()
	q.underway = slices.DeleteFunc(q.underway, func(other *batch) bool { return other == b })
	if more = len(q.waiting) > 0; !more {
		q.busy--
	}
	q.mu.Unlock()
	for i, r := range b.reqs {
		r.finish()
		b.reqs[i] = nil
	}
	return more
}

// take moves waiting requests, up to maxBatch calls, into a batch. If there is none, it releases
// the pipeline and reports false.
func (q *queue) take(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.reqs = b.reqs[:0]
	taken, calls := 0, 0
	for _, r := range q.waiting {
		if calls > 0 && calls+len(r.calls) > q.maxBatch {
			break
		}
		taken++
		if r.state.CompareAndSwap(waiting, sent) {
			b.reqs = append(b.reqs, r)
			calls += len(r.calls)
		}
	}
	left := copy(q.waiting, q.waiting[taken:])
	clear(q.waiting[left:])
	q.waiting = q.waiting[:left]
	if len(b.reqs) == 0 {
		q.busy--
		return false
	}
	q.underway = append(q.underway, b)
	return true
}

// guard starts the timer that looks after the requests. The caller holds the lock.
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

// look ends the wait of every request whose time is up.
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
	if r.abandon() {
		r.err = context.DeadlineExceeded
		r.done <- struct{}{}
	}
}

// deadlineContext has a deadline and no timer: its reader looks at the deadline.
type deadlineContext struct{ at time.Time }

func (c deadlineContext) Deadline() (time.Time, bool) { return c.at, true }
func (deadlineContext) Done() <-chan struct{}         { return nil }
func (deadlineContext) Err() error                    { return nil }
func (deadlineContext) Value(any) any                 { return nil }
