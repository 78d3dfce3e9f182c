package check

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// errBreakerOpen is a call's error while the counter store is taken to be away.
var errBreakerOpen = errors.New("the counter store is taken to be away")

// The breaker opens when at least half of the calls of a second failed (of 20 or more), or
// when five in a row did, for times with little traffic. While it is open no caller waits: a
// probe in the background runs the real script, and three good ones in a row close it. Then
// calls return over a quarter of a second, so that a store that has only just come up is not
// met by all of them at once.
const (
	breakerWindow     = time.Second
	breakerMinCalls   = 20
	breakerInARow     = 5
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

// breaker guards the counter store. The zero of its counts is closed; a success while closed
// costs one addition.
type breaker struct {
	clock   func() time.Time // monotonic
	probe   func(context.Context) error
	metrics *Metrics
	stop    chan struct{} // closed when the process ends its checks

	state     atomic.Int32
	succeeded atomic.Int64 // in the present window
	rampFrom  atomic.Int64 // instant of clock, nanoseconds

	mu       sync.Mutex // guards what follows; taken only on failure and by the prober
	window   time.Time
	failed   int64
	inARow   atomic.Int64 // written under mu, but for the reset by a success
	openedAt time.Time
}

func newBreaker(clock func() time.Time, probe func(context.Context) error, metrics *Metrics) *breaker {
	return &breaker{clock: clock, probe: probe, metrics: metrics, stop: make(chan struct{})}
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

// done records how a call that was sent ended.
func (b *breaker) done(err error) {
	if err == nil {
		b.succeeded.Add(1)
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
	now := b.clock()
	if now.Sub(b.window) > breakerWindow {
		b.window, b.failed = now, 0
		b.succeeded.Store(0)
	}
	b.failed++
	row := b.inARow.Add(1)
	total := b.failed + b.succeeded.Load()
	if row >= breakerInARow || total >= breakerMinCalls && 2*b.failed >= total {
		b.open(now)
	}
}

func (b *breaker) open(now time.Time) {
	b.state.Store(int32(breakerOpen))
	b.openedAt = now
	b.failed = 0
	b.inARow.Store(0)
	b.succeeded.Store(0)
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
	b.rampFrom.Store(b.clock().UnixNano())
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
