package simulate

import (
	"math/rand/v2"
	"time"
)

// A clock has the virtual time and the events that are due. Events at the same instant happen in
// the order in which they were added, so a run depends only on its inputs and its seed.
type clock struct {
	now    time.Duration // since the start of the run
	events []event       // a heap
	added  uint64
	rand   *rand.Rand
}

type event struct {
	at    time.Duration
	order uint64
	do    func()
}

func newClock(seed uint64) *clock {
	return &clock{rand: rand.New(rand.NewPCG(seed, 0))}
}

// after adds an event. The delay must not be negative.
func (c *clock) after(delay time.Duration, do func()) {
	c.added++
	c.events = append(c.events, event{c.now + delay, c.added, do})
	for i := len(c.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !c.events[i].before(&c.events[parent]) {
			break
		}
		c.events[i], c.events[parent] = c.events[parent], c.events[i]
		i = parent
	}
}

func (e *event) before(other *event) bool {
	return e.at < other.at || e.at == other.at && e.order < other.order
}

// runUntil processes the events up to an instant, and moves the clock there.
func (c *clock) runUntil(end time.Duration) {
	for len(c.events) > 0 && c.events[0].at <= end {
		next := c.pop()
		c.now = next.at
		next.do()
	}
	c.now = end
}

func (c *clock) pop() event {
	first, last := c.events[0], len(c.events)-1
	c.events[0], c.events[last] = c.events[last], event{}
	c.events = c.events[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if right := child + 1; right < last && c.events[right].before(&c.events[child]) {
			child = right
		}
		if !c.events[child].before(&c.events[i]) {
			return first
		}
		c.events[i], c.events[child] = c.events[child], c.events[i]
		i = child
	}
}

// exponential returns a random duration with this mean.
func (c *clock) exponential(mean time.Duration) time.Duration {
	return time.Duration(float64(mean) * c.rand.ExpFloat64())
}

// every calls do at even intervals, until it returns false.
func (c *clock) every(interval time.Duration, do func() bool) {
	c.after(interval, func() {
		if do() {
			c.every(interval, do)
		}
	})
}

// ring is a queue that grows.
type ring[T any] struct {
	items []T
	first int
	count int
}

func (r *ring[T]) grow() {
	if r.count < len(r.items) {
		return
	}
	larger := make([]T, max(16, 2*len(r.items)))
	for i := range r.count {
		larger[i] = r.items[(r.first+i)%len(r.items)]
	}
	r.items, r.first = larger, 0
}

func (r *ring[T]) push(item T) {
	r.grow()
	r.items[(r.first+r.count)%len(r.items)] = item
	r.count++
}

func (r *ring[T]) pushFront(item T) {
	r.grow()
	r.first = (r.first - 1 + len(r.items)) % len(r.items)
	r.items[r.first] = item
	r.count++
}

func (r *ring[T]) pop() (item T) {
	var zero T
	item, r.items[r.first] = r.items[r.first], zero
	r.first = (r.first + 1) % len(r.items)
	r.count--
	return item
}
