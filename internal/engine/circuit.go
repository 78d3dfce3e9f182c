package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// circuit is the circuit breaker of one server of the counter store. It opens when the server is
// silent: five consecutive calls failed, and nothing was answered for some time. That time is short
// if calls are refused. If calls time out, it is longer than one timeout, because a short pause of
// the machine is not an outage. The circuit also opens when at least half of 20 or more calls
// failed over that time. Calls that were not sent, because others were before them, say nothing
// about the server. Of those that waited for their turn while it was silent, the number says
// nothing: a pause of 50 ms would be an outage for all tenants if a queue of one of them is long.
//
// While it is open, only probes are sent. The first one is sent soon, because most outages are
// short: a server that forks answers again after 200 ms. The interval grows only while probes fail.
// Three consecutive successful probes close the circuit. It then lets calls through gradually, over
// as long as it was open but at most a quarter of a second, so that a server that has just started
// does not receive all of them at once.
//
// A success costs two atomic writes; the lock is taken only on failure.
type circuit struct {
	breaker *Breaker
	server  Server
	clock   func() time.Time // awake time: see awakeClock
	probe   func(context.Context) error
	looking atomic.Bool

	state       atomic.Int32
	succeeded   atomic.Int64
	lastSuccess atomic.Int64 // instant of clock, nanoseconds
	inARow      atomic.Int64 // failures since the last success
	rampFrom    atomic.Int64 // instant of clock, nanoseconds
	rampFor     atomic.Int64 // nanoseconds

	mu       sync.Mutex // guards what follows
	window   time.Time  // when the present window began, with a failure
	failed   int64      // in it
	before   int64      // succeeded, when it began
	openedAt time.Time  // by the wall clock
	opened   time.Time  // by clock
}

const (
	breakerInARow     = 5
	breakerRefused    = 25 * time.Millisecond
	breakerTimedOut   = 150 * time.Millisecond
	breakerWindow     = time.Second
	breakerMinCalls   = 20
	breakerGoodProbes = 3
	breakerRamp       = 250 * time.Millisecond // at most

	probeFirst = 20 * time.Millisecond  // after the circuit opened; a random delay is added
	probeNext  = 10 * time.Millisecond  // after a probe that succeeded
	probeMost  = 100 * time.Millisecond // after many that failed; a random delay is added
)

type breakerState int32

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerRamping
)

// errNoKeys is a probe's error when the server holds no keys any more.
var errNoKeys = errors.New("the server holds no counters any more")

func newCircuit(b *Breaker, server Server) *circuit {
	c := &circuit{breaker: b, server: server, clock: b.clock}
	c.probe = func(ctx context.Context) error { return b.probe(ctx, server) }
	c.lastSuccess.Store(b.clock().UnixNano()) // silence begins no earlier than the circuit
	return c
}

// allow reports whether a call may be sent to the server.
func (c *circuit) allow() bool {
	switch breakerState(c.state.Load()) {
	case breakerClosed:
		return true
	case breakerRamping:
		since, ramp := time.Duration(c.clock().UnixNano()-c.rampFrom.Load()), time.Duration(c.rampFor.Load())
		if since >= ramp {
			c.state.CompareAndSwap(int32(breakerRamping), int32(breakerClosed))
			return true
		}
		return rand.N(ramp) < since
	default:
		return false
	}
}

// done records the result of a call that was allowed.
func (c *circuit) done(err error) {
	now := c.clock()
	if err == nil {
		c.succeeded.Add(1)
		c.lastSuccess.Store(now.UnixNano())
		if c.inARow.Load() != 0 {
			c.inARow.Store(0)
		}
		return
	}
	c.breaker.note(err)
	if errors.Is(err, ErrNotSent) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if breakerState(c.state.Load()) == breakerOpen {
		return // sent before it opened
	}
	if now.Sub(c.window) > breakerWindow {
		c.window, c.failed, c.before = now, 0, c.succeeded.Load()
	}
	if !errors.Is(err, ErrStoreSilent) {
		c.failed++
	}
	while := breakerRefused
	if timedOut(err) {
		while = breakerTimedOut
	}
	silent := time.Duration(now.UnixNano()-c.lastSuccess.Load()) >= while
	total := c.failed + c.succeeded.Load() - c.before
	mostly := total >= breakerMinCalls && 2*c.failed >= total && now.Sub(c.window) >= while
	if c.inARow.Add(1) >= breakerInARow && silent || mostly {
		c.open(now)
	}
}

// timedOut reports whether err means that no answer came in time, or that no connection was free.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// open opens the circuit. The caller holds the lock.
func (c *circuit) open(now time.Time) {
	c.state.Store(int32(breakerOpen))
	c.openedAt, c.opened, c.window = time.Now(), now, time.Time{}
	c.inARow.Store(0)
	c.breaker.openings(1)
	c.breaker.metrics.breakerOpened.Inc()
	go c.recover()
}

// recover sends probes until the server answers again, or until it holds no counters any more. Then
// the circuit lets calls through gradually.
func (c *circuit) recover() {
	wait := probeFirst + rand.N(probeFirst/2)
	for good, backoff := 0, probeFirst; good < breakerGoodProbes; {
		if !c.breaker.sleep(wait) {
			return
		}
		switch err := c.probe(context.Background()); {
		case err == nil:
			good++
			wait, backoff = probeNext, probeFirst
		case errors.Is(err, errNoKeys):
			c.breaker.forget(c)
			c.close(0)
			return
		default:
			good = 0
			c.breaker.note(c.server.Renew(err))
			wait = backoff + rand.N(backoff)
			backoff = min(2*backoff, probeMost)
		}
	}
	c.mu.Lock()
	open := c.clock().Sub(c.opened)
	c.mu.Unlock()
	c.close(min(open, breakerRamp))
}

// close lets calls through gradually over the given time.
func (c *circuit) close(ramp time.Duration) {
	now := c.clock().UnixNano()
	c.lastSuccess.Store(now)
	c.rampFrom.Store(now)
	c.rampFor.Store(int64(ramp))
	c.state.Store(int32(breakerRamping))
	c.breaker.openings(-1)
}

// look probes a server that is not known to be unavailable. If it does not answer, look repeats the
// probe until the circuit opens. So a failure is found even if there are no checks.
func (c *circuit) look(ctx context.Context) {
	if !c.looking.CompareAndSwap(false, true) {
		return
	}
	defer c.looking.Store(false)
	for range breakerInARow + 1 {
		if breakerState(c.state.Load()) == breakerOpen {
			return
		}
		err := c.probe(ctx)
		if errors.Is(err, errNoKeys) {
			c.breaker.forget(c)
			return
		}
		c.done(err)
		if err == nil || !c.breaker.sleep(breakerRefused) {
			return
		}
	}
}

// degradedSince returns when the circuit opened, by the wall clock; zero if it is not open.
func (c *circuit) degradedSince() time.Time {
	if breakerState(c.state.Load()) != breakerOpen {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.openedAt
}
