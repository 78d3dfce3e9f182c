package weir

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// A batcher sends checks together that are asked while another request is under way. A check that
// meets nothing under way goes out at once, alone, in its caller's goroutine.
type batcher struct {
	client *Client

	mu       sync.Mutex
	underWay int
	waiting  []*waiter
	bytes    int // of the waiting questions, about
}

// A waiter is a check that waits for its turn, and then for its answer.
type waiter struct {
	ctx      context.Context // the caller's, with the call's deadline
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
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	b.mu.Lock()
	if b.underWay == 0 {
		b.underWay++
		b.mu.Unlock()
		defer b.ended()
		return c.ask(ctx, q)
	}
	w := &waiter{ctx: ctx, question: *q, done: make(chan struct{})}
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

// size is about how many bytes a question takes in a batch.
func (w *waiter) size() int {
	n := 128 + len(w.question.Subject) + len(w.question.Resource) + len(w.question.Plan)
	for name, value := range w.question.Attributes {
		n += 8 + len(name) + len(value)
	}
	return n
}

// withdraw takes a check back that nobody waits for any more, unless it is under way.
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

// ended is called when a request has ended: what has waited for it goes out.
func (b *batcher) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underWay--
	if b.underWay == 0 && len(b.waiting) > 0 {
		b.send()
	}
}

// send sends all that waits. The caller holds the lock.
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

// together sends a batch and hands the answers out.
func (b *batcher) together(batch []*waiter) {
	c := b.client
	questions := make([]question, len(batch))
	var deadline time.Time
	for i, w := range batch {
		questions[i] = w.question
		if d, _ := w.ctx.Deadline(); d.After(deadline) {
			deadline = d
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

// refusedForOne reports whether a batch was refused for what one of its checks asks. Nothing was
// counted then.
func refusedForOne(err error) bool {
	var misuse *MisuseError
	if !errors.As(err, &misuse) {
		return false
	}
	switch misuse.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// oneByOne sends each check alone, so that only the wrong one sees a misuse.
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
