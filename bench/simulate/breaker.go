package simulate

import "time"

// circuit is the circuit breaker of an instance for one server, as in package engine. The model has
// silent servers only, so every failure is a timeout.
type circuit struct {
	queue       *queue
	state       int
	successes   int64
	lastSuccess time.Duration
	inARow      int
	window      time.Duration
	failures    int64
	before      int64
	opened      time.Duration
	rampFrom    time.Duration
	rampFor     time.Duration
}

const (
	closedCircuit = iota
	openCircuit
	rampingCircuit
)

func (c *circuit) now() time.Duration { return c.queue.instance.world.clock.now }

func (c *circuit) allow() bool {
	switch c.state {
	case closedCircuit:
		return true
	case rampingCircuit:
		since := c.now() - c.rampFrom
		if since >= c.rampFor {
			c.state = closedCircuit
			return true
		}
		return time.Duration(c.queue.instance.world.clock.rand.Int64N(int64(c.rampFor))) < since
	default:
		return false
	}
}

func (c *circuit) succeeded() {
	c.successes++
	c.lastSuccess, c.inARow = c.now(), 0
}

func (c *circuit) failed() {
	now := c.now()
	if c.state == openCircuit {
		return
	}
	if c.window < 0 || now-c.window > breakerWindow {
		c.window, c.failures, c.before = now, 0, c.successes
	}
	c.failures++
	c.inARow++
	silent := now-c.lastSuccess >= breakerTimedOut
	total := c.failures + c.successes - c.before
	mostly := total >= breakerMinCalls && 2*c.failures >= total && now-c.window >= breakerTimedOut
	if c.inARow >= breakerInARow && silent || mostly {
		c.open()
	}
}

func (c *circuit) open() {
	world := c.queue.instance.world
	world.stats.opened++
	c.state, c.opened, c.window, c.inARow = openCircuit, c.now(), -1, 0
	c.probe(probeFirst+c.random(probeFirst/2), 0, probeFirst)
}

func (c *circuit) random(below time.Duration) time.Duration {
	return time.Duration(c.queue.instance.world.clock.rand.Int64N(int64(below)))
}

// probe sends a probe after a wait, until enough of them were answered in a row.
func (c *circuit) probe(wait time.Duration, good int, backoff time.Duration) {
	i := c.queue.instance
	i.world.clock.after(wait, func() {
		r := &request{subject: i.world.canary, instance: i, work: 1}
		r.probe = func(answered bool) {
			if !answered {
				c.probe(backoff+c.random(backoff), 0, min(2*backoff, probeMost))
				return
			}
			if good+1 < breakerGoodProbes {
				c.probe(probeNext, good+1, probeFirst)
				return
			}
			c.lastSuccess, c.rampFrom, c.rampFor = c.now(), c.now(), min(c.now()-c.opened, breakerRamp)
			c.state = rampingCircuit
		}
		i.process.run(0, func() { c.queue.send(r) })
	})
}
