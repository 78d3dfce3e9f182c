package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// ErrBreakerOpen is a call's error while the circuit breaker is open.
var ErrBreakerOpen = errors.New("the circuit breaker of the counter store is open")

// A Breaker opens when the next engine is silent: five consecutive calls failed, and nothing was
// answered for some time. That time is short if calls are refused. If calls time out, it is longer
// than one timeout, because a short pause of the machine is not an outage. The breaker also opens
// when at least half of 20 or more calls failed over that time.
//
// While it is open, every call fails immediately with ErrBreakerOpen, and nothing is sent. A probe
// in the background runs the real script. Three consecutive successful probes close the breaker. It
// then lets calls through gradually over a quarter of a second, so that a store that has just
// started does not receive all of them at once.
//
// A success costs two atomic writes; the lock is taken only on failure.
type Breaker struct {
	next    Engine
	clock   func() time.Time // awake time: see awakeClock
	probe   func(context.Context) error
	metrics *Metrics
	stop    chan struct{} // closed by Close

	state       atomic.Int32
	succeeded   atomic.Int64
	lastSuccess atomic.Int64 // instant of clock, nanoseconds
	inARow      atomic.Int64 // failures since the last success
	rampFrom    atomic.Int64 // instant of clock, nanoseconds

	mu       sync.Mutex // guards the fields below
	window   time.Time  // when the present window began, with a failure
	failed   int64      // in it
	before   int64      // succeeded, when it began
	openedAt time.Time  // by the wall clock
}

const (
	breakerInARow     = 5
	breakerRefused    = 25 * time.Millisecond
	breakerTimedOut   = 150 * time.Millisecond
	breakerWindow     = time.Second
	breakerMinCalls   = 20
	breakerGoodProbes = 3
	breakerRamp       = 250 * time.Millisecond
	probeEvery        = 100 * time.Millisecond // plus a random delay of up to the same duration
)

type breakerState int32

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerRamping
)

// NewBreaker returns a breaker in front of next. It uses the clock to measure how long next is
// silent.
func NewBreaker(next Engine, metrics *Metrics, clock func() time.Time) *Breaker {
	b := &Breaker{next: next, clock: clock, metrics: metrics, stop: make(chan struct{})}
	b.probe = func(ctx context.Context) error { return probeCall(ctx, next) }
	b.lastSuccess.Store(clock().UnixNano()) // silence is measured from the start of the process
	return b
}

// Close stops the probes.
func (b *Breaker) Close() { close(b.stop) }

// Evaluate implements Engine.
func (b *Breaker) Evaluate(ctx context.Context, calls ...*Call) {
	if !b.allow() {
		for _, c := range calls {
			c.Err = ErrBreakerOpen
		}
		return
	}
	start := time.Now()
	b.next.Evaluate(ctx, calls...)
	b.metrics.store.Observe(time.Since(start).Seconds())
	// The calls of one Evaluate succeed or fail together, so they count as one.
	failure := calls[0].Err
	for _, c := range calls {
		if c.Err == nil {
			failure = nil
		} else {
			b.metrics.storeErrors.Inc()
		}
	}
	b.done(failure)
}

// Reset implements Engine. A client that disconnects is not a failure of the store.
func (b *Breaker) Reset(ctx context.Context, counters ...Counter) error {
	if !b.allow() {
		return ErrBreakerOpen
	}
	err := b.next.Reset(context.WithoutCancel(ctx), counters...)
	b.done(err)
	if err != nil {
		b.metrics.storeErrors.Inc()
	}
	return err
}

// Refund implements Engine.
func (b *Breaker) Refund(ctx context.Context, refunds ...*Refund) {
	if !b.allow() {
		for _, r := range refunds {
			r.Err = ErrBreakerOpen
		}
		return
	}
	b.next.Refund(ctx, refunds...)
	failure := refunds[0].Err
	for _, r := range refunds {
		if r.Err == nil {
			failure = nil
		}
	}
	b.done(failure)
}

// probeCall runs the real script on its own counter. A store that answers PING but refuses writes
// (full, read-only, loading) therefore does not count as healthy.
func probeCall(ctx context.Context, engine Engine) error {
	call := Call{Cost: 1, Counters: []Counter{{
		Key:     KeyPrefix + "probe}",
		Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: limit.MaxFixedLimit, WindowMS: limit.MinWindowMS},
	}}}
	engine.Evaluate(ctx, &call)
	return call.Err
}

// allow reports whether a call may be sent to the store.
func (b *Breaker) allow() bool {
	switch breakerState(b.state.Load()) {
	case breakerClosed:
		return true
	case breakerRamping:
		since := time.Duration(b.clock().UnixNano() - b.rampFrom.Load())
		if since >= breakerRamp {
			b.state.CompareAndSwap(int32(breakerRamping), int32(breakerClosed))
			return true
		}
		return rand.N(breakerRamp) < since
	default:
		return false
	}
}

// done records the result of an exchange that was allowed.
func (b *Breaker) done(err error) {
	now := b.clock()
	if err == nil {
		b.succeeded.Add(1)
		b.lastSuccess.Store(now.UnixNano())
		if b.inARow.Load() != 0 {
			b.inARow.Store(0)
		}
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if breakerState(b.state.Load()) == breakerOpen {
		return // sent before it opened
	}
	if now.Sub(b.window) > breakerWindow {
		b.window, b.failed, b.before = now, 0, b.succeeded.Load()
	}
	b.failed++
	while := breakerRefused
	if timedOut(err) {
		while = breakerTimedOut
	}
	silent := time.Duration(now.UnixNano()-b.lastSuccess.Load()) >= while
	total := b.failed + b.succeeded.Load() - b.before
	mostly := total >= breakerMinCalls && 2*b.failed >= total && now.Sub(b.window) >= while
	if b.inARow.Add(1) >= breakerInARow && silent || mostly {
		b.open()
	}
}

// timedOut reports whether err means that no answer came in time, or that no connection was free.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

func (b *Breaker) open() {
	b.state.Store(int32(breakerOpen))
	b.openedAt, b.window = time.Now(), time.Time{}
	b.inARow.Store(0)
	b.metrics.breakerOpen.Set(1)
	b.metrics.breakerOpened.Inc()
	go b.recover()
}

// recover sends probes until the store answers again. Then the breaker lets calls through
// gradually.
func (b *Breaker) recover() {
	for good := 0; good < breakerGoodProbes; {
		timer := time.NewTimer(probeEvery + rand.N(probeEvery))
		select {
		case <-timer.C:
		case <-b.stop:
			timer.Stop()
			return
		}
		if b.probe(context.Background()) == nil {
			good++
		} else {
			good = 0
		}
	}
	now := b.clock().UnixNano()
	b.lastSuccess.Store(now)
	b.rampFrom.Store(now)
	b.state.Store(int32(breakerRamping))
	b.metrics.breakerOpen.Set(0)
}

// DegradedSince returns when the breaker opened, by the wall clock; zero if it is not open.
func (b *Breaker) DegradedSince() time.Time {
	if breakerState(b.state.Load()) != breakerOpen {
		return time.Time{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openedAt
}
