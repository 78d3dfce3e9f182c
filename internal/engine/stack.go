package engine

import (
	"context"
	"time"
)

// Stack is the engine that serves checks. Each layer answers the calls that it can answer and
// passes the others to the next layer.
//
//	Denials   a denial that is certain to hold is answered from memory
//	Spread    a call of a tenant with several partitions is split by hash tag, a heavy one by work
//	Fallback  what the store cannot answer, each rule's OnUnavailable answers
//	Leases    units of leased rules are prefetched and granted from memory
//	Breaker   no call waits for a store that does not answer
//	Shared    the counter store of all instances
//
// Every layer is an Engine and knows only calls: counters, their numbers and a cost. A changed
// number therefore makes another call, for which no layer has an answer.
type Stack struct {
	Engine
	breaker  *Breaker
	leases   *Leases
	fallback *Fallback
	clock    func() time.Time
}

// StackOptions are the parts of a Stack. All fields but Clock are required.
type StackOptions struct {
	Shared  Engine       // the counter store that all instances share
	Local   Engine       // counters in this process, for rules with on_unavailable "local"
	Share   func() Share // this instance's part of a limit
	Metrics *Metrics
	// Clock returns the wall clock with a monotonic reading. Default time.Now. A Stack with another
	// clock does not return idle leases with a timer (call ReturnIdle), and does not probe an idle
	// store.
	Clock func() time.Time
}

// NewStack returns a Stack. Close it after its last call has ended.
func NewStack(o StackOptions) *Stack {
	clock, breakerClock := o.Clock, o.Clock
	if clock == nil {
		clock, breakerClock = time.Now, awakeClock
	}
	breaker := NewBreaker(o.Shared, o.Metrics, breakerClock)
	leases := NewLeases(breaker, o.Metrics, clock, o.Clock == nil)
	fallback := newFallback(leases, breaker, o, clock)
	if o.Clock == nil {
		go breaker.Watch()
		go fallback.run(breaker)
	}
	return &Stack{Engine: NewDenials(NewSpread(fallback, breaker.only != nil, o.Metrics), o.Metrics, clock), breaker: breaker, leases: leases, fallback: fallback, clock: clock}
}

// Now returns the time of the stack's clock, for Call.Started.
func (s *Stack) Now() time.Time { return s.clock() }

// StoreMS returns the time of the counter store's clock at an instant of the stack's clock, in
// milliseconds since 1970. It is an estimate by the store's answers and this process's monotonic
// clock, so it hardly depends on the clock of the machine, nor on steps of it. It is off by up to
// maxClockError and the time that an answer takes.
func (s *Stack) StoreMS(at time.Time) int64 { return s.fallback.storeMS(at) }

// DegradedSince returns when the circuit breaker opened; zero if it is not open.
func (s *Stack) DegradedSince() time.Time { return s.breaker.DegradedSince() }

// Health returns the state of the counter store.
func (s *Stack) Health() Health { return s.breaker.Health() }

// Away reports whether the server that holds a key is known to be unavailable.
func (s *Stack) Away(key string) bool { return s.breaker.Away(key) }

// ReturnIdle returns unused prefetched units, and charges to the store what was admitted without
// it, and removes local counters that are of no use any more. Only a Stack with its own Clock needs
// it; any other does this with a timer.
func (s *Stack) ReturnIdle() {
	s.leases.inspect(s.clock(), false)
	s.fallback.settleAll(context.Background())
	for range memoryShards {
		s.fallback.tidy()
	}
}

// Close stops the background work and returns all prefetched units.
func (s *Stack) Close() {
	s.leases.Close()
	s.breaker.Close()
}

var (
	_ Engine = (*Denials)(nil)
	_ Engine = (*Spread)(nil)
	_ Engine = (*Fallback)(nil)
	_ Engine = (*Leases)(nil)
	_ Engine = (*Breaker)(nil)
)
