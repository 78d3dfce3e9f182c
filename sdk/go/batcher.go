package weir

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// A batcher sends checks that start during another request together in the next one. If no request
// is in flight, a check is sent immediately and alone, in its caller's goroutine.
type batcher struct {
	client *Client

	mu       sync.Mutex
	underWay int
	waiting  []*waiter
	bytes    int // approximate size of the waiting questions
}

// A waiter is a check that waits to be sent, and then for its answer.
type waiter struct {
	ctx      context.Context // the caller's, with the call's deadline
	until    time.Time       // the client's timeout; the caller's own deadline may be earlier
	question question
	done     chan struct{}
	decision Decision
	err      error
}

// ask answers a question.
func (b *batcher) ask(ctx context.Context, q *question) (Decision, error) {
	c := b.client
	if c.brk.blocked(c.clock.Now()) {
		return c.fallback(q, &NoDecision{Cause: CauseBreakerOpen}), nil
	}
	until := time.Now().Add(c.timeout)
	ctx, cancel := context.WithDeadlineCause(ctx, until, errTimeout)
	defer cancel()
	b.mu.Lock()
	if b.underWay == 0 {
		b.underWay++
		b.mu.Unlock()
		defer b.ended()
		return c.ask(ctx, q)
	}
	w := &waiter{ctx: ctx, until: until, question: *q, done: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.bytes += w.size()
	if len(b.waiting) >= maxBatch || b.bytes >= maxBatchBytes/2 {
		b.send()
	}
	b.mu.Unlock()

	select {
	case <-w.done:
		return w.decision, w.err
	case <-ctx.Done():
	}
	b.withdraw(w)
	if errors.Is(ctx.Err(), context.Canceled) {
		return Decision{}, context.Canceled
	}
	return c.fallback(q, timedOut(ctx)), nil
}

// size returns the approximate size of a question in a batch.
func (w *waiter) size() int {
	n := 128 + len(w.question.Subject) + len(w.question.Resource) + len(w.question.Plan)
	for name, value := range w.question.Attributes {
		n += 8 + len(name) + len(value)
	}
	return n
}

// withdraw removes a check whose caller no longer waits, unless it was sent.
func (b *batcher) withdraw(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.waiting {
		if b.waiting[i] == w {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.bytes -= w.size()
			return
		}
	}
}

// ended is called when a request has ended. It sends the waiting checks.
func (b *batcher) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underWay--
	if b.underWay == 0 && len(b.waiting) > 0 {
		b.send()
	}
}

// send sends all waiting checks. The caller holds the lock.
func (b *batcher) send() {
	batch := b.waiting
	b.waiting, b.bytes = nil, 0
	b.underWay++
	go func() {
		defer b.ended()
		if len(batch) == 1 {
			b.alone(batch[0])
			return
		}
		b.together(batch)
	}()
}

func (b *batcher) alone(w *waiter) {
	w.decision, w.err = b.client.ask(w.ctx, &w.question)
	close(w.done)
}

// together sends a batch and distributes the answers. The batch ends with the client's timeout for
// its newest check, not with the callers' deadlines. The end would count as a failure of the
// server, and customers who choose the deadlines of their calls could open the breaker.
func (b *batcher) together(batch []*waiter) {
	c := b.client
	questions := make([]question, len(batch))
	var deadline time.Time
	for i, w := range batch {
		questions[i] = w.question
		if w.until.After(deadline) {
			deadline = w.until
		}
	}
	ctx, cancel := context.WithDeadlineCause(context.Background(), deadline, errTimeout)
	defer cancel()
	sentAt := c.clock.Now()
	decisions, failure, err := c.askTogether(ctx, questions, true)
	if refusedForOne(err) {
		b.oneByOne(batch)
		return
	}
	for i, w := range batch {
		switch {
		case err != nil:
			w.err = err
		case failure != nil:
			w.decision = c.fallback(&w.question, failure)
		default:
			c.learn(&w.question, &decisions[i], sentAt)
			w.decision = decisions[i]
		}
		close(w.done)
	}
}

// refusedForOne reports whether a batch was refused because of one of its checks. Nothing was
// counted in this case.
func refusedForOne(err error) bool {
	var misuse *MisuseError
	if !errors.As(err, &misuse) {
		return false
	}
	if misuse.Code == "RESOURCE_NOT_ALLOWED" {
		return true
	}
	switch misuse.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// oneByOne sends each check alone, so that only the invalid one returns a misuse.
func (b *batcher) oneByOne(batch []*waiter) {
	var all sync.WaitGroup
	for _, w := range batch {
		all.Add(1)
		go func() {
			defer all.Done()
			b.alone(w)
		}()
	}
	all.Wait()
}
