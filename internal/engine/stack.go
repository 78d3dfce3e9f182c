package engine

import "time"

// Stack is the engine that serves checks: each layer answers what it can and asks the next for
// the rest.
//
//	Denials   a denial that is certain to hold is answered from memory
//	Fallback  what the store cannot answer, each rule's OnUnavailable answers
//	Leases    units of leased rules are prefetched and granted from memory
//	Breaker   no call waits for a store that does not answer
//	Shared    the counter store of all instances
//
// Every layer is an Engine and knows calls alone: counters, their numbers and a cost. A changed
// number is therefore another question, which no layer has an answer to yet.
type Stack struct {
	Engine
	breaker *Breaker
	leases  *Leases
	clock   func() time.Time
}

// StackOptions are the parts of a Stack. All fields but Clock are required.
type StackOptions struct {
	Shared  Engine       // the counter store that all instances share
	Local   Engine       // counters in this process, for rules that are Local while Shared is unavailable
	Share   func() Share // this instance's part of a limit
	Metrics *Metrics
	// Clock is the wall clock with a monotonic reading. Default time.Now. With a clock of its own
	// a Stack does not return idle leases by itself: call ReturnIdle.
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
	fallback := &Fallback{next: leases, local: o.Local, share: o.Share, clock: clock}
	return &Stack{Engine: NewDenials(fallback, o.Metrics), breaker: breaker, leases: leases, clock: clock}
}

// Now is the instant by the clock of the stack, for Call.Started.
func (s *Stack) Now() time.Time { return s.clock() }

// DegradedSince returns when the circuit breaker opened; zero if it is not open.
func (s *Stack) DegradedSince() time.Time { return s.breaker.DegradedSince() }

// ReturnIdle returns prefetched units that nobody asks for. A Stack with a clock of its own needs
// it; any other does it by itself.
func (s *Stack) ReturnIdle() { s.leases.inspect(s.clock(), false) }

// Close ends the work in the background and returns all prefetched units.
func (s *Stack) Close() {
	s.leases.Close()
	s.breaker.Close()
}

var (
	_ Engine = (*Denials)(nil)
	_ Engine = (*Fallback)(nil)
	_ Engine = (*Leases)(nil)
	_ Engine = (*Breaker)(nil)
)
