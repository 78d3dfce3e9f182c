package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/limit"
)

// ErrBreakerOpen is a call's error while the circuit breaker is open.
var ErrBreakerOpen = errors.New("the circuit breaker of the counter store is open")

// ErrNotSent is the error of a call that waited for its turn for too long and was not sent,
// although the counter store answered other calls all the time: there are more calls than it can
// decide. The store has not failed, and has not counted the call.
var ErrNotSent = errors.New("the call waited behind other calls for too long and was not sent to the counter store")

// ErrNotReached is wrapped by the error of a call that failed before any of it was written to the
// counter store: no connection was free or could be made, or the store was silent while the call
// waited for its turn. That is a failure of the store, but it has not counted the call.
var ErrNotReached = errors.New("the call did not reach the counter store")

// ErrStoreSilent is wrapped, with ErrNotReached, by the error of a call that waited for its turn
// while the store was silent. How many such calls there are says how many waited, and nothing more
// about the store than those that were sent.
var ErrStoreSilent = errors.New("the counter store was silent while the call waited for its turn")

// ErrMoving is wrapped by the error of a refund that no server could decide while its counters are
// moving to another one. Nothing was returned, and no server has failed.
var ErrMoving = fmt.Errorf("no units were returned: %w", ErrRedirected)

// NotCounted reports whether the store has certainly not executed a call, a refund or a step of an
// amendment with this error.
func NotCounted(err error) bool {
	return errors.Is(err, ErrBreakerOpen) || errors.Is(err, ErrNotSent) || errors.Is(err, ErrNotReached) || errors.Is(err, ErrMoving)
}

// A Breaker fails calls immediately with ErrBreakerOpen while the server that holds their counters
// does not answer. Each server has its own circuit, so a server that fails degrades only its own
// counters.
//
// It also probes each server every second with the real script. So it finds a store that cannot
// count, or that has lost its counters (see canaries), even if there are no checks.
type Breaker struct {
	next     Engine
	servers  Servers // nil: next is one server
	only     *circuit
	circuits *xsync.Map[Server, *circuit]
	clock    func() time.Time // awake time: see awakeClock
	metrics  *Metrics
	stop     chan struct{}            // closed when the process ends its checks
	sleep    func(time.Duration) bool // reports false once the breaker is closed
	canaries canaries
	probed   func(storeMS int64) // is told the store's clock by each probe; nil: nobody is
	last     atomic.Pointer[lastFailure]

	mu   sync.Mutex
	open int // circuits
}

type lastFailure struct {
	class Failure
	err   error
}

const watchEvery = time.Second

// NewBreaker returns a breaker in front of next. The clock measures how long a server is silent.
func NewBreaker(next Engine, metrics *Metrics, clock func() time.Time) *Breaker {
	b := &Breaker{
		next: next, clock: clock, metrics: metrics, stop: make(chan struct{}),
		circuits: xsync.NewMap[Server, *circuit](),
	}
	b.canaries.metrics, b.sleep = metrics, b.wait
	b.servers, _ = next.(Servers)
	switch {
	case b.servers == nil:
		b.only = newCircuit(b, oneServer{})
	case b.servers.Only() != nil:
		b.only = newCircuit(b, b.servers.Only())
	}
	return b
}

// oneServer is the server of an engine that tells nothing about its servers.
type oneServer struct{}

func (oneServer) ProbeKey() string      { return CanaryKey(0) }
func (oneServer) Lost(int64)            {}
func (oneServer) Renew(err error) error { return err }

// Close ends the probes.
func (b *Breaker) Close() { close(b.stop) }

// circuitOf returns the circuit of the server that holds a key.
func (b *Breaker) circuitOf(key string) *circuit {
	if b.only != nil {
		return b.only
	}
	return b.circuit(b.servers.ServerOf(key))
}

func (b *Breaker) circuit(server Server) *circuit {
	if c, known := b.circuits.Load(server); known {
		return c
	}
	c, _ := b.circuits.LoadOrStore(server, newCircuit(b, server))
	return c
}

// forget forgets the circuit of a server that holds no counters any more.
func (b *Breaker) forget(c *circuit) {
	if c != b.only {
		b.circuits.Delete(c.server)
	}
}

// Watch probes all servers every second until the breaker is closed.
func (b *Breaker) Watch() {
	for {
		if b.only != nil {
			go b.only.look(context.Background())
		} else {
			ctx, cancel := context.WithTimeout(context.Background(), watchEvery)
			for _, server := range b.servers.All(ctx) {
				go b.circuit(server).look(context.Background())
			}
			cancel()
		}
		if !b.sleep(watchEvery) {
			return
		}
	}
}

// wait waits, and reports whether the breaker is not closed.
func (b *Breaker) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.stop:
		return false
	}
}

// Evaluate implements Engine.
func (b *Breaker) Evaluate(ctx context.Context, calls ...*Call) {
	if b.only != nil {
		b.evaluate(ctx, b.only, calls)
		return
	}
	for len(calls) > 0 {
		server, same, others := SplitByServer(b.servers, calls)
		b.evaluate(ctx, b.circuit(server), same)
		calls = others
	}
}

// evaluate passes on calls whose counters are on one server.
func (b *Breaker) evaluate(ctx context.Context, circuit *circuit, calls []*Call) {
	if !circuit.allow() {
		for _, c := range calls {
			c.Err = ErrBreakerOpen
		}
		return
	}
	start := time.Now()
	b.evaluateOn(ctx, circuit.server, calls...)
	b.metrics.store.Observe(time.Since(start).Seconds())
	// The calls of one Evaluate succeed or fail together, so they count as one.
	failure := calls[0].Err
	for _, c := range calls {
		if c.Err == nil || errors.Is(c.Err, ErrRedirected) {
			failure = nil
		}
		if c.Err != nil {
			b.metrics.storeErrors.Inc()
		}
	}
	circuit.done(failure)
}

func (b *Breaker) evaluateOn(ctx context.Context, server Server, calls ...*Call) {
	if b.servers == nil {
		b.next.Evaluate(ctx, calls...)
		return
	}
	b.servers.EvaluateOn(ctx, server, calls...)
}

// Reset implements Engine. A client that disconnects is not a failure of the store.
func (b *Breaker) Reset(ctx context.Context, counters ...Counter) error {
	if len(counters) == 0 {
		return nil
	}
	circuit := b.circuitOf(counters[0].Key) // of one tenant, so on one server
	if !circuit.allow() {
		return ErrBreakerOpen
	}
	err := b.next.Reset(context.WithoutCancel(ctx), counters...)
	circuit.done(err)
	if err != nil {
		b.metrics.storeErrors.Inc()
	}
	return err
}

// Refund implements Engine.
func (b *Breaker) Refund(ctx context.Context, refunds ...*Refund) {
	for len(refunds) > 0 {
		circuit := b.circuitOf(refunds[0].firstKey())
		together := 1
		for together < len(refunds) && (b.only != nil || b.circuitOf(refunds[together].firstKey()) == circuit) {
			together++
		}
		b.refund(ctx, circuit, refunds[:together])
		refunds = refunds[together:]
	}
}

func (r *Refund) firstKey() string {
	if len(r.Parts) == 0 {
		return ""
	}
	return r.Parts[0].Key
}

func (b *Breaker) refund(ctx context.Context, circuit *circuit, refunds []*Refund) {
	if !circuit.allow() {
		for _, r := range refunds {
			r.Err = ErrBreakerOpen
		}
		return
	}
	b.next.Refund(ctx, refunds...)
	failure := refunds[0].Err
	for _, r := range refunds {
		if r.Err == nil || errors.Is(r.Err, ErrRedirected) {
			failure = nil
		}
	}
	circuit.done(failure)
}

// probe runs the real script on its own counter, a canary. A server that answers PING but refuses
// writes (full, read-only, loading) therefore does not count as healthy.
func (b *Breaker) probe(ctx context.Context, server Server) error {
	key := server.ProbeKey()
	if key == "" {
		return errNoKeys
	}
	call := Call{Cost: 1, Counters: []Counter{{
		Key:     key,
		Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: limit.MaxFixedLimit, WindowMS: limit.MaxWindowMS},
	}}}
	started := time.Now()
	b.evaluateOn(ctx, server, &call)
	if call.Err != nil {
		return call.Err
	}
	if b.canaries.compare(key, started, &call.Outcome) {
		server.Lost(call.Outcome.NowMS)
	}
	if b.probed != nil {
		b.probed(call.Outcome.NowMS)
	}
	return nil
}

// note keeps the class of a failure, for people.
func (b *Breaker) note(err error) {
	class := Failure("other")
	switch {
	case b.servers != nil:
		class = b.servers.Class(err)
	case timedOut(err):
		class = "timeout"
	}
	b.metrics.failures.WithLabelValues(string(class)).Inc()
	b.last.Store(&lastFailure{class, err})
}

// openings follows how many circuits are open.
func (b *Breaker) openings(more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open += more
	b.metrics.serversOpen.Set(float64(b.open))
	b.metrics.breakerOpen.Set(float64(min(b.open, 1)))
}

// Health is the state of the counter store, for people.
type Health struct {
	DegradedSince time.Time // when the first of the open circuits opened, by the wall clock; zero: none is open
	Failure       Failure   // class of the last failure, also if it is over; "": there was none
	Err           error     // that failure
	Losses        int64     // how often a server lost counters
}

// Health returns the state of the counter store.
func (b *Breaker) Health() (h Health) {
	h.DegradedSince, h.Losses = b.DegradedSince(), b.Losses()
	if last := b.last.Load(); last != nil {
		h.Failure, h.Err = last.class, last.err
	}
	return h
}

// DegradedSince returns when the first of the circuits that are open opened, by the wall clock;
// zero if none is open.
func (b *Breaker) DegradedSince() (since time.Time) {
	if b.only != nil {
		return b.only.degradedSince()
	}
	b.circuits.Range(func(_ Server, c *circuit) bool {
		if at := c.degradedSince(); !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
		return true
	})
	return since
}

// down reports whether there is one server only, which is known not to answer.
func (b *Breaker) down() bool {
	return b.only != nil && breakerState(b.only.state.Load()) == breakerOpen
}

// Away reports whether the server that holds a key is known not to answer.
func (b *Breaker) Away(key string) bool {
	return breakerState(b.circuitOf(key).state.Load()) == breakerOpen
}
