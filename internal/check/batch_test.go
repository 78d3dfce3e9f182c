package check

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gate is an exchange that lets a test see each batch and say when it is through.
type gate struct {
	batches chan []*scriptCmd
	through chan struct{}
}

func newGate() *gate { return &gate{batches: make(chan []*scriptCmd), through: make(chan struct{})} }

func (g *gate) exchange(ctx context.Context, cmds []*scriptCmd) bool {
	g.batches <- cmds
	select {
	case <-g.through:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *gate) sender(deadline time.Duration, maxBatch, pipelines int) *batchSender {
	return &batchSender{exchange: g.exchange, deadline: deadline, maxBatch: maxBatch, pipelines: pipelines}
}

func requestOf(cmds ...*scriptCmd) *redisRequest {
	r := newRedisRequest()
	r.cmds = cmds
	return r
}

// waitQueued returns when so many requests wait for a pipeline.
func waitQueued(t *testing.T, s *batchSender, count int) {
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == count
	}, time.Minute, time.Millisecond)
}

// A lone check goes at once; those that come meanwhile share the next pipeline, in order and
// never in parts.
func TestBatchSender(t *testing.T) {
	g := newGate()
	s := g.sender(time.Minute, 4, 1)
	done := make(chan error)
	send := func(r *redisRequest) { done <- s.send(context.Background(), r) }

	first := &scriptCmd{}
	go send(requestOf(first))
	require.Equal(t, []*scriptCmd{first}, <-g.batches, "at once")
	cmds := make([]*scriptCmd, 6)
	for i := range cmds {
		cmds[i] = &scriptCmd{}
	}
	for i, r := range []*redisRequest{requestOf(cmds[0]), requestOf(cmds[1:3]...), requestOf(cmds[3:5]...), requestOf(cmds[5])} {
		go send(r)
		waitQueued(t, s, i+1)
	}
	g.through <- struct{}{}
	require.NoError(t, <-done)
	require.Equal(t, cmds[:3], <-g.batches, "two more would be five")
	g.through <- struct{}{}
	require.Equal(t, cmds[3:], <-g.batches)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	g.through <- struct{}{}
	require.NoError(t, <-done)
	require.NoError(t, <-done)

	huge := make([]*scriptCmd, 9)
	go send(requestOf(huge...))
	require.Len(t, <-g.batches, 9, "a request is never split")
	g.through <- struct{}{}
	require.NoError(t, <-done)
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.busy == 0
	}, time.Minute, time.Millisecond, "pipelines are given back")
}

// Who left while waiting is not sent: it would be counted with nobody there to use it.
func TestBatchSenderAbandoned(t *testing.T) {
	g := newGate()
	s := g.sender(time.Minute, 100, 1)
	done := make(chan error, 3)
	go func() { done <- s.send(context.Background(), requestOf(&scriptCmd{})) }()
	<-g.batches
	ctx, leave := context.WithCancel(context.Background())
	go func() { done <- s.send(ctx, requestOf(&scriptCmd{})) }()
	waitQueued(t, s, 1)
	stays := &scriptCmd{}
	go func() { done <- s.send(context.Background(), requestOf(stays)) }()
	waitQueued(t, s, 2)
	leave()
	require.ErrorIs(t, <-done, context.Canceled)
	g.through <- struct{}{}
	require.Equal(t, []*scriptCmd{stays}, <-g.batches)
	g.through <- struct{}{}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.ErrorIs(t, s.send(ctx, requestOf(&scriptCmd{})), context.Canceled)
}

// However many wait behind a server that hangs, each gives up in time.
func TestBatchSenderDeadline(t *testing.T) {
	var batches atomic.Int64
	s := &batchSender{deadline: 30 * time.Millisecond, maxBatch: 1, pipelines: 2, exchange: func(ctx context.Context, _ []*scriptCmd) bool {
		batches.Add(1)
		<-ctx.Done()
		return false
	}}
	const callers = 50
	took := make(chan time.Duration)
	for range callers {
		go func() {
			began := time.Now()
			_ = s.send(context.Background(), requestOf(&scriptCmd{}))
			took <- time.Since(began)
		}()
	}
	for range callers {
		require.Less(t, <-took, time.Second)
	}
	require.Less(t, batches.Load(), int64(callers), "those who gave up are not sent")

	hurried, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.send(hurried, requestOf(&scriptCmd{})), context.DeadlineExceeded)
}
