package simulate

import (
	"time"

	"weir/internal/overload"
)

// capacity bounds the concurrent requests of an instance, with the code of package overload.
type capacity struct {
	instance *instance
	bound    *overload.Bound
	inFlight int64
	most     int64 // in flight since the last adjustment
	serving  map[*tenant]int64
	waited   time.Duration // of the process, at the last adjustment
	taken    int64
}

// maxInFlight is the default of WEIR_MAX_IN_FLIGHT.
const maxInFlight = 10_000

func newCapacity(i *instance) *capacity {
	c := &capacity{instance: i, bound: overload.New(maxInFlight, i.process.threads, redisTimeout), serving: map[*tenant]int64{}}
	for range 10 { // the instance has been running for a while
		c.bound.Adjust(overload.Signals{})
	}
	i.world.clock.every(overload.Interval, c.adjust)
	return c
}

// enter reports whether a request may be decided. If so, leave must follow.
func (c *capacity) enter(r *request) bool {
	c.most = max(c.most, c.inFlight+1)
	if c.inFlight >= c.bound.Limit() || c.serving[r.subject.tenant] >= c.bound.ShareOf(r.subject.tenant.id) {
		c.bound.Refuse()
		return false
	}
	c.inFlight++
	c.serving[r.subject.tenant]++
	return true
}

func (c *capacity) leave(r *request) {
	c.inFlight--
	c.serving[r.subject.tenant]--
}

// adjust adapts the bound to the waits since the last call.
func (c *capacity) adjust() bool {
	s := overload.Signals{InFlight: c.most, Refused: c.bound.TakeRefused()}
	for _, q := range c.instance.queues {
		s.Queued, s.Trip = max(s.Queued, q.waits.read()), max(s.Trip, q.trip)
		s.Standing = q.standing(s.Standing)
	}
	p := c.instance.process
	if taken := p.taken - c.taken; taken > 0 {
		s.Runnable = (p.waited - c.waited) / time.Duration(taken)
	}
	c.taken, c.waited, c.most = p.taken, p.waited, c.inFlight
	c.bound.Adjust(s)
	return true
}
