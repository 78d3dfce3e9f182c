package check

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// errBreakerOpen is a call's error while the counter store is taken to be away.
var errBreakerOpen = errors.New("the counter store is taken to be away")

// The breaker opens when the store is silent: five calls in a row failed, and nothing was
// answered for a while. The while is short where calls are refused, and longer than one
// deadline where they time out, for a machine that stood still for a moment is no outage. It
// also opens when at least half of the calls failed over such a while, of 20 or more.
//
// While it is open no caller waits: a probe in the background runs the real script, and three
// good ones in a row close it. Then calls return over a quarter of a second, so that a store
// that has only just come up is not met by all of them at once.
const (
	breakerInARow     = 5
	breakerRefused    = 25 * time.Millisecond
	breakerTimedOut   = 150 * time.Millisecond
	breakerWindow     = time.Second
	breakerMinCalls   = 20
	breakerGoodProbes = 3
	breakerRamp       = 250 * time.Millisecond
	probeEvery        = 100 * time.Millisecond // and up to as much again, at random
)

type breakerState int32

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerRamping
)

// breaker guards the counter store. A success costs two atomic writes; the lock is taken only
// on failure.
type breaker struct {
	clock   func() time.Time // awake time: see pulse
	probe   func(context.Context) error
	metrics *Metrics
	stop    chan struct{} // closed when the process ends its checks

	state       atomic.Int32
	succeeded   atomic.Int64
	lastSuccess atomic.Int64 // instant of clock, nanoseconds
	inARow      atomic.Int64 // failures since the last success
	rampFrom    atomic.Int64 // instant of clock, nanoseconds

	mu       sync.Mutex // guards what follows
	window   time.Time  // when the present window began, with a failure
	failed   int64      // in it
	before   int64      // succeeded, when it began
	openedAt time.Time  // of the wall
}

func newBreaker(clock func() time.Time, probe func(context.Context) error, metrics *Metrics) *breaker {
	b := &breaker{clock: clock, probe: probe, metrics: metrics, stop: make(chan struct{})}
	b.lastSuccess.Store(clock().UnixNano()) // silence begins no earlier than we do
	return b
}

// allow reports whether a call may be sent to the store.
func (b *breaker) allow() bool {
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

// done records how an exchange that was allowed ended.
func (b *breaker) done(err error) {
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

// timedOut reports whether err says that no answer came in time, or no connection was free to ask.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, redis.ErrPoolTimeout)
}

func (b *breaker) open() {
	b.state.Store(int32(breakerOpen))
	b.openedAt, b.window = time.Now(), time.Time{}
	b.inARow.Store(0)
	b.metrics.breakerOpen.Set(1)
	b.metrics.breakerOpened.Inc()
	go b.recover()
}

// recover probes until the store answers again. It ends with the breaker ramping up.
func (b *breaker) recover() {
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

// degradedSince returns since when the store is taken to be away; zero if it is not.
func (b *breaker) degradedSince() time.Time {
	if breakerState(b.state.Load()) != breakerOpen {
		return time.Time{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openedAt
}

// retryAfterMS is how long a caller that was denied for want of counters should wait: until
// the probes can have closed the breaker, spread at random.
func retryAfterMS() int64 {
	least := breakerGoodProbes * probeEvery
	return (least + rand.N(least)).Milliseconds()
}
