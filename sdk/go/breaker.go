package weir

import (
	"sync"
	"time"
)

// A BreakerState is a state of the circuit breaker.
type BreakerState string

// The states.
const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half_open" // a probe is in flight
)

const (
	breakerWindow        = time.Second
	breakerBuckets       = 10
	breakerBucket        = breakerWindow / breakerBuckets
	breakerMinCalls      = 20
	breakerRefusedInARow = 5
	breakerProbeInterval = 200 * time.Millisecond
)

// A breaker prevents calls from waiting for a dead server. It counts the calls of the last second.
// It opens if at least 20 calls ended and half of them failed, or if 5 consecutive calls were
// refused. Calls then fail immediately, except one every 200 ms, which is sent as a probe. A probe
// that gets an answer closes the breaker.
type breaker struct {
	changed func(from, to BreakerState) // called outside the lock

	mu      sync.Mutex
	state   BreakerState
	buckets [breakerBuckets]struct {
		slot          int64 // the tenth of a second that it counts
		calls, failed int
	}
	refused   int       // in a row
	probeFrom time.Time // when the next probe may start
}

// A ticket is the permission to send one call.
type ticket struct {
	probe bool
}

// blocked reports whether a call would be refused now. It takes no ticket.
func (b *breaker) blocked(now time.Time) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == BreakerHalfOpen || b.state == BreakerOpen && now.Before(b.probeFrom)
}

// enter returns a ticket if a call may be sent. The caller must then call leave or cancel.
func (b *breaker) enter(now time.Time) (ticket, bool) {
	if b == nil {
		return ticket{}, true
	}
	b.mu.Lock()
	switch {
	case b.state == BreakerClosed:
		b.mu.Unlock()
		return ticket{}, true
	case b.state == BreakerOpen && !now.Before(b.probeFrom):
		b.state = BreakerHalfOpen
		b.probeFrom = now.Add(breakerProbeInterval)
		b.mu.Unlock()
		b.changed(BreakerOpen, BreakerHalfOpen)
		return ticket{probe: true}, true
	}
	b.mu.Unlock()
	return ticket{}, false
}

// cancel returns a ticket without a result.
func (b *breaker) cancel(t ticket, now time.Time) {
	if b == nil || !t.probe {
		return
	}
	b.mu.Lock()
	b.state = BreakerOpen
	b.probeFrom = now
	b.mu.Unlock()
	b.changed(BreakerHalfOpen, BreakerOpen)
}

// leave records the result of a call: failure is nil if the server answered.
func (b *breaker) leave(t ticket, failure *NoDecision, now time.Time) {
	if b == nil {
		return
	}
	failed := failure != nil && failure.fails()
	b.mu.Lock()
	from := b.state
	switch {
	case t.probe && failed:
		b.state = BreakerOpen
	case t.probe:
		b.close()
	default:
		b.count(failed, failed && failure.Cause == CauseConnectionRefused, now)
	}
	to := b.state
	b.mu.Unlock()
	if from != to {
		b.changed(from, to)
	}
}

func (b *breaker) close() {
	b.state, b.refused = BreakerClosed, 0
	clear(b.buckets[:])
}

// count counts an ordinary call and opens the breaker if necessary. Calls that were sent before it
// opened may end later: they change nothing.
func (b *breaker) count(failed, refused bool, now time.Time) {
	if b.state != BreakerClosed {
		return
	}
	slot := now.UnixNano() / int64(breakerBucket)
	bucket := &b.buckets[slot%breakerBuckets]
	if bucket.slot != slot {
		bucket.slot, bucket.calls, bucket.failed = slot, 0, 0
	}
	bucket.calls++
	if !failed {
		b.refused = 0
		return
	}
	bucket.failed++
	if refused {
		b.refused++
	} else {
		b.refused = 0
	}
	if b.refused >= breakerRefusedInARow || b.halfFailed(slot) {
		b.state = BreakerOpen
		b.probeFrom = now.Add(breakerProbeInterval)
	}
}

func (b *breaker) halfFailed(slot int64) bool {
	calls, failed := 0, 0
	for i := range b.buckets {
		if bucket := &b.buckets[i]; bucket.slot > slot-breakerBuckets {
			calls += bucket.calls
			failed += bucket.failed
		}
	}
	return calls >= breakerMinCalls && failed*2 >= calls
}

func (b *breaker) current() BreakerState {
	if b == nil {
		return BreakerClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}
