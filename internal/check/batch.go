package check

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// sender carries requests to Redis.
type sender interface {
	// send returns when the replies are in the request's commands, errors of Redis included, or
	// with an error when the caller should wait no longer; the request is then not the
	// caller's any more.
	send(ctx context.Context, r *redisRequest) error
}

// exchangeFunc sends commands and waits until each has its reply or error, and reports whether
// the last was answered. It gives a silent store up when ctx ends, and a busy one later (pulse).
type exchangeFunc func(ctx context.Context, cmds []*scriptCmd) (answered bool)

// directSender gives every request a connection of its own.
type directSender struct {
	exchange exchangeFunc
	deadline time.Duration
}

func (s *directSender) send(ctx context.Context, r *redisRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	till := time.Now().Add(s.deadline)
	if earlier, set := ctx.Deadline(); set && earlier.Before(till) {
		till = earlier
	}
	// A caller that goes away must not break the connection in the middle of an answer.
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), till)
	defer cancel()
	s.exchange(ctx, r.cmds)
	return nil
}

// batchSender lets requests share pipelines. Nobody waits for a batch to fill: a request that
// finds a pipeline free is sent at once, by its own goroutine; those that come while all are
// under way go together in the next.
type batchSender struct {
	exchange  exchangeFunc
	deadline  time.Duration // of a request, waiting included, and of a pipeline
	maxBatch  int           // commands
	pipelines int
	life      pulse // of answers to this sender

	mu    sync.Mutex
	busy  int // pipelines under way
	queue []*redisRequest
}

// The states of a request. Whoever leaves waiting first decides whether it is sent.
const (
	waiting int32 = iota
	sent
	abandoned
)

func (s *batchSender) send(ctx context.Context, r *redisRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	patience := s.deadline
	if end, set := ctx.Deadline(); set {
		patience = min(patience, time.Until(end))
	}
	s.mu.Lock()
	if s.busy < s.pipelines {
		s.busy++
		if patience > s.deadline/2 {
			s.mu.Unlock()
			r.state.Store(sent)
			s.flush(patience, r.cmds)
			s.next()
			return nil
		}
		go s.run()
	}
	s.queue = append(s.queue, r)
	s.mu.Unlock()

	r.timer.Reset(patience)
	defer r.timer.Stop()
	began := awake()
	for first := true; ; first = false {
		select {
		case <-r.done:
			return nil
		case <-r.timer.C:
			if more := s.life.more(patience, began, first); more > 0 {
				r.timer.Reset(more)
				continue
			}
			r.state.CompareAndSwap(waiting, abandoned)
			return context.DeadlineExceeded
		case <-ctx.Done():
			r.state.CompareAndSwap(waiting, abandoned)
			return ctx.Err()
		}
	}
}

func (s *batchSender) flush(within time.Duration, cmds []*scriptCmd) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if s.exchange(ctx, cmds) {
		s.life.beat()
	}
}

// next hands the pipeline on, to a goroutine if others wait for it, after a request that had
// it for itself.
func (s *batchSender) next() {
	s.mu.Lock()
	if len(s.queue) == 0 {
		s.busy--
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	go s.run()
}

// run sends batch after batch until nobody waits.
func (s *batchSender) run() {
	var batch []*redisRequest
	var cmds []*scriptCmd
	for {
		// Those whose answers the last pipeline brought are about to ask again: let them.
		runtime.Gosched()
		batch, cmds = s.take(batch[:0], cmds[:0])
		if len(batch) == 0 {
			return
		}
		s.flush(s.deadline, cmds)
		for i, r := range batch {
			r.done <- struct{}{}
			batch[i] = nil
		}
		clear(cmds)
	}
}

// take moves what waits, up to maxBatch commands, into a batch. It gives the pipeline up where
// nothing does.
func (s *batchSender) take(batch []*redisRequest, cmds []*scriptCmd) ([]*redisRequest, []*scriptCmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := 0
	for _, r := range s.queue {
		if len(cmds) > 0 && len(cmds)+len(r.cmds) > s.maxBatch {
			break
		}
		taken++
		if r.state.CompareAndSwap(waiting, sent) {
			batch, cmds = append(batch, r), append(cmds, r.cmds...)
		}
	}
	left := copy(s.queue, s.queue[taken:])
	clear(s.queue[left:])
	s.queue = s.queue[:left]
	if len(batch) == 0 {
		s.busy--
	}
	return batch, cmds
}
