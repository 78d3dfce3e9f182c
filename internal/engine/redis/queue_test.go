package redis

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// gate is an exchange with which a test sees each batch and decides when it ends.
type gate struct {
	batches chan []*request
	through chan bool // whether the batch was answered
}

func newGate() *gate { return &gate{batches: make(chan []*request), through: make(chan bool)} }

func (g *gate) exchange(ctx context.Context, reqs []*request) bool {
	g.batches <- slices.Clone(reqs)
	return <-g.through
}

func (g *gate) sender(deadline time.Duration, maxBatch, pipelines int) *queue {
	return &queue{exchange: g.exchange, deadline: deadline, maxBatch: maxBatch, pipelines: pipelines}
}

func requestOf(calls int) *request {
	r := newRequest()
	r.calls = make([]sentCall, calls)
	return r
}

// waitQueued returns when count requests wait for a pipeline.
func waitQueued(t *testing.T, s *queue, count int) {
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) == count
	}, time.Minute, time.Millisecond)
}

// To a node of a Cluster, a second pipeline is sent only when it has enough calls. A pipeline that
// returns leaves fewer to the one that is in flight.
func TestSecondPipelineHasEnoughCalls(t *testing.T) {
	g := newGate()
	s := g.sender(time.Minute, 128, 2)
	s.gather = 3
	done := make(chan error)
	send := func(r *request) { done <- s.send(context.Background(), r) }
	var reqs []*request
	queued := func(waiting int) {
		reqs = append(reqs, requestOf(1))
		go send(reqs[len(reqs)-1])
		if waiting > 0 {
			waitQueued(t, s, waiting)
		}
	}
	queued(0)
	require.Equal(t, reqs, <-g.batches)
	queued(1)
	queued(2)
	queued(0)
	require.ElementsMatch(t, reqs[1:], <-g.batches, "three are enough")
	queued(1)
	g.through <- true // one of the two returns and leaves the last call to the other
	<-done
	s.mu.Lock()
	require.Equal(t, 1, s.busy)
	require.Len(t, s.waiting, 1)
	s.mu.Unlock()
	require.Eventually(t, func() bool {
		select {
		case g.through <- true:
		default:
		}
		select {
		case b := <-g.batches:
			require.Equal(t, reqs[4:], b)
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	g.through <- true
	for range 4 {
		require.NoError(t, <-done)
	}
}

// A single check is sent immediately. Checks that arrive in the meantime share the next pipeline,
// in order and never split.
func TestBatchSender(t *testing.T) {
	g := newGate()
	s := g.sender(time.Minute, 4, 1)
	done := make(chan error)
	send := func(r *request) { done <- s.send(context.Background(), r) }

	first := requestOf(1)
	go send(first)
	require.Equal(t, []*request{first}, <-g.batches, "at once")
	reqs := []*request{requestOf(1), requestOf(2), requestOf(2), requestOf(1)}
	for i, r := range reqs {
		go send(r)
		waitQueued(t, s, i+1)
	}
	g.through <- true
	require.NoError(t, <-done)
	require.Equal(t, reqs[:2], <-g.batches, "with two more it would be five")
	g.through <- true
	require.Equal(t, reqs[2:], <-g.batches)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	g.through <- true
	require.NoError(t, <-done)
	require.NoError(t, <-done)

	huge := requestOf(9)
	go send(huge)
	require.Equal(t, []*request{huge}, <-g.batches, "a request is never split")
	g.through <- true
	require.NoError(t, <-done)
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.busy == 0
	}, time.Minute, time.Millisecond, "pipelines are released")
}

// If a caller stops waiting, its request is not sent: it would be counted, but nobody would use it.
func TestBatchSenderAbandoned(t *testing.T) {
	g := newGate()
	s := g.sender(time.Minute, 100, 1)
	done := make(chan error, 3)
	go func() { done <- s.send(context.Background(), requestOf(1)) }()
	<-g.batches
	ctx, leave := context.WithCancel(context.Background())
	go func() { done <- s.send(ctx, requestOf(1)) }()
	waitQueued(t, s, 1)
	stays := requestOf(1)
	go func() { done <- s.send(context.Background(), stays) }()
	waitQueued(t, s, 2)
	leave()
	require.ErrorIs(t, <-done, context.Canceled)
	g.through <- true
	require.Equal(t, []*request{stays}, <-g.batches)
	g.through <- true
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.ErrorIs(t, s.send(ctx, requestOf(1)), context.Canceled)
}

// If many requests wait for a server that hangs, each of them times out in time.
func TestBatchSenderDeadline(t *testing.T) {
	var batches atomic.Int64
	s := &queue{deadline: 30 * time.Millisecond, maxBatch: 1, pipelines: 2, exchange: func(ctx context.Context, _ []*request) bool {
		batches.Add(1)
		end, _ := ctx.Deadline()
		<-time.After(time.Until(end))
		return false
	}}
	const callers = 50
	var all sync.WaitGroup
	for range callers {
		all.Go(func() { _ = s.send(context.Background(), requestOf(1)) })
	}
	all.Wait()
	require.Less(t, batches.Load(), int64(callers), "requests that timed out are not sent")

	answer := make(chan struct{})
	defer close(answer)
	hangs := &queue{deadline: time.Hour, maxBatch: 1, pipelines: 1, exchange: func(context.Context, []*request) bool {
		<-answer
		return false
	}}
	hurried, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, hangs.send(hurried, requestOf(1)), context.DeadlineExceeded)
	over := hangs.send(hurried, requestOf(1))
	require.ErrorIs(t, over, context.DeadlineExceeded)
	require.ErrorIs(t, over, engine.ErrNotReached)
}

// A request that was not sent, although the store answered others all the time, has met overload. A
// request that was sent, or that a silent store kept waiting, has met a failure.
func TestRequestsThatWereNotSent(t *testing.T) {
	const patience = time.Hour // so long that the duration of this test does not matter
	var q *queue
	late := func(state int32, silence time.Duration) error {
		q = &queue{deadline: patience}
		q.life.last.Store(int64(engine.Awake() - silence))
		r := requestOf(1)
		r.patience, r.began, r.looked = patience, engine.Awake()-maxPatience*patience, true
		r.state.Store(state)
		q.lookAfter(r, engine.Awake())
		select {
		case <-r.done:
			return r.err
		default:
			return nil
		}
	}
	require.ErrorIs(t, late(waitingState, 0), engine.ErrNotSent)
	require.GreaterOrEqual(t, q.waits.read(), maxPatience*patience, "the bound of requests must fall although no pipeline was sent")
	tenants := 0
	each := func(_ limit.TenantID, wait time.Duration, requests, _ int64) {
		tenants++
		require.GreaterOrEqual(t, wait, maxPatience*patience)
		require.EqualValues(t, 1, requests)
	}
	q.standing(each)
	q.standing(each)
	require.Equal(t, 1, tenants, "once")
	silent := late(waitingState, 2*patience)
	require.ErrorIs(t, silent, context.DeadlineExceeded)
	require.ErrorIs(t, silent, engine.ErrNotReached)
	require.ErrorIs(t, silent, engine.ErrStoreSilent)
	require.NotErrorIs(t, silent, engine.ErrNotSent)
	require.Equal(t, failTimeout, classOf(silent))
	require.Zero(t, q.waits.read())
	perhaps := late(sent, 0)
	require.ErrorIs(t, perhaps, context.DeadlineExceeded)
	require.NotErrorIs(t, perhaps, engine.ErrNotReached, "it was sent, so it may be counted")
	require.NoError(t, late(finished, 2*patience), "it has its answer")
}

// A batch with much work is sent in parts, so that a call of another tenant waits for one of them.
// Before, it was one pipeline, and Redis served nothing else for as long as that took.
func TestBatchInParts(t *testing.T) {
	g := newGate()
	q := g.sender(time.Minute, 128, 1)
	e := &Engine{}
	e.requests.New = func() any { return newRequest() }
	s := &server{queues: [modes]*queue{together: q}}
	calls := make([]*engine.Call, maxBatchWork+50)
	for i := range calls {
		calls[i] = callOf(1)
		calls[i].Counters[0].Key = "w{tag}" + strconv.Itoa(i)
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); e.send(ctx, s, together, calls) }()
	next := func() []*request {
		batch := <-g.batches
		for _, r := range batch { // there is no reply to read
			for i := range r.calls {
				r.calls[i].err = errReply
			}
		}
		return batch
	}
	first := next()
	require.Len(t, first, 1)
	require.Len(t, first[0].calls, maxBatchWork)
	other := requestOf(1)
	other.tenant = limit.TenantID{1}
	done := make(chan error)
	go func() { done <- q.send(t.Context(), other) }()
	waitQueued(t, q, 1)
	g.through <- true
	second := next()
	require.Contains(t, second, other)
	if len(second) == 1 { // it was sent before the next part
		g.through <- true
		second = next()
	}
	rest := slices.IndexFunc(second, func(r *request) bool { return r != other })
	require.Len(t, second[rest].calls, 50)
	g.through <- true
	require.NoError(t, <-done)
	<-ended

	go func() { done <- q.send(t.Context(), requestOf(1)) }()
	<-g.batches
	again := make(chan struct{})
	go func() { defer close(again); e.send(ctx, s, together, calls) }()
	waitQueued(t, q, 1)
	leave()
	<-again
	for _, c := range calls {
		require.ErrorIs(t, c.Err, context.Canceled, "the other part is not sent")
	}
	require.ErrorIs(t, calls[len(calls)-1].Err, engine.ErrNotReached, "it is certain of the other part")
	g.through <- true
	require.NoError(t, <-done)
}
