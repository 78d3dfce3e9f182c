package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"weir/internal/engine"
)

// exchangeFunc sends requests and waits until each has its replies or errors, and reports whether
// the last was answered. It gives a silent store up when ctx ends, and a busy one later (pulse).
type exchangeFunc func(ctx context.Context, reqs []*request) (answered bool)

// batchSender lets requests share pipelines. Nobody waits for a batch to fill: a request that
// finds a pipeline free is sent at once, by its own goroutine, with those that are there; those
// that come while all are under way go together in the next.
type queue struct {
	exchange  exchangeFunc
	deadline  time.Duration // of a request, waiting included, and of a pipeline
	maxBatch  int           // calls
	pipelines int
	life      pulse // of answers to this sender

	mu       sync.Mutex
	busy     int // pipelines under way
	queue    []*request
	flying   []*batch
	watch    *time.Timer // of those who wait; one for all, since most are answered in a thousandth of their patience
	watching bool
}

// batch is the requests of one pipeline.
type batch struct{ reqs []*request }

// The states of a request. Whoever leaves waiting first decides whether it is sent.
const (
	waiting int32 = iota
	sent
	finished
	abandoned
)

func (s *queue) send(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.patience = s.deadline
	if end, set := ctx.Deadline(); set {
		r.patience = min(r.patience, time.Until(end))
	}
	r.began = engine.Awake()
	r.until = r.began + r.patience
	s.mu.Lock()
	s.queue = append(s.queue, r)
	s.guard()
	free := s.busy < s.pipelines
	if free {
		s.busy++
	}
	s.mu.Unlock()
	switch {
	case !free:
	case r.patience > s.deadline/2:
		s.lead()
	default: // an exchange may take longer than the caller wants to
		go s.run()
	}
	return r.wait(ctx)
}

// lead sends what waits, the request of the caller too unless another pipeline has just taken it,
// and hands the pipeline on where more has come.
func (s *queue) lead() {
	var b batch
	// Others may be about to ask: let them, for an exchange costs hardly more with them.
	runtime.Gosched()
	if s.take(&b) && s.fly(&b) {
		go s.run()
	}
}

// run sends batch after batch until nobody waits.
func (s *queue) run() {
	var b batch
	for more := true; more; {
		// Those whose answers the last pipeline brought are about to ask again: let them.
		runtime.Gosched()
		more = s.take(&b) && s.fly(&b)
	}
}

// fly exchanges a batch and reports whether more is to be sent; otherwise it has given the pipeline up.
func (s *queue) fly(b *batch) (more bool) {
	if s.exchange(deadlineContext{time.Now().Add(s.deadline)}, b.reqs) {
		s.life.beat()
	}
	s.mu.Lock()
	s.flying = slices.DeleteFunc(s.flying, func(other *batch) bool { return other == b })
	if more = len(s.queue) > 0; !more {
		s.busy--
	}
	s.mu.Unlock()
	for i, r := range b.reqs {
		r.finish()
		b.reqs[i] = nil
	}
	return more
}

// take moves what waits, up to maxBatch calls, into a batch. It gives the pipeline up where
// nothing does.
func (s *queue) take(b *batch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.reqs = b.reqs[:0]
	taken, calls := 0, 0
	for _, r := range s.queue {
		if calls > 0 && calls+len(r.calls) > s.maxBatch {
			break
		}
		taken++
		if r.state.CompareAndSwap(waiting, sent) {
			b.reqs = append(b.reqs, r)
			calls += len(r.calls)
		}
	}
	left := copy(s.queue, s.queue[taken:])
	clear(s.queue[left:])
	s.queue = s.queue[:left]
	if len(b.reqs) == 0 {
		s.busy--
		return false
	}
	s.flying = append(s.flying, b)
	return true
}

// guard has somebody look after those who wait. The caller holds the lock.
func (s *queue) guard() {
	switch {
	case s.watching:
	case s.watch == nil:
		s.watch = time.AfterFunc(engine.AwakeTick, s.look)
	default:
		s.watch.Reset(engine.AwakeTick)
	}
	s.watching = true
}

// look ends the waiting of all whose time is up.
func (s *queue) look() {
	now := engine.Awake()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = false
	for _, r := range s.queue {
		s.lookAfter(r, now)
	}
	for _, b := range s.flying {
		for _, r := range b.reqs {
			s.lookAfter(r, now)
		}
	}
}

func (s *queue) lookAfter(r *request, now time.Duration) {
	if r.state.Load() > sent {
		return
	}
	if !r.late(now, &s.life) {
		s.guard()
		return
	}
	if r.abandon() {
		r.err = context.DeadlineExceeded
		r.done <- struct{}{}
	}
}

// deadlineContext has a deadline and no timer: whom it is for looks at the deadline.
type deadlineContext struct{ at time.Time }

func (c deadlineContext) Deadline() (time.Time, bool) { return c.at, true }
func (deadlineContext) Done() <-chan struct{}         { return nil }
func (deadlineContext) Err() error                    { return nil }
func (deadlineContext) Value(any) any                 { return nil }
