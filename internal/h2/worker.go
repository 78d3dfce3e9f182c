package h2

import (
	"golang.org/x/net/http2"

	"weir/internal/origin"
)

// maxIdleWorkers is the number of goroutines that a connection keeps for its next calls. They keep
// their stacks, which would otherwise have to grow for each call.
const maxIdleWorkers = 64

// worker is a goroutine that answers calls one after the other.
type worker struct{ calls chan *Call }

// begin gives a call to a worker, or a request to the handler. The caller holds the lock.
func (c *conn) begin(s *Call) {
	s.begun = true
	if !s.direct {
		c.handle(s)
		return
	}
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		w.calls <- s // has space, because the worker is idle
		return
	}
	w := &worker{make(chan *Call, 1)}
	w.calls <- s
	go c.work(w)
}

func (c *conn) work(w *worker) {
	for s := range w.calls {
		answered := c.serveDirect(s)
		if !answered {
			c.serveInstead(s)
		}
		c.mu.Lock()
		if answered {
			if c.accepts(s) { // it says so, but has not
				c.reset(s, http2.ErrCodeInternal)
			}
			s.served = true
			c.settle(s)
			c.flush(true)
		}
		if c.dead || len(c.idle) == maxIdleWorkers {
			c.mu.Unlock()
			return
		}
		c.idle = append(c.idle, w)
		c.mu.Unlock()
	}
}

// serveDirect reports whether Config.Call has answered. A panic is an answer: the stream is reset.
func (c *conn) serveDirect(s *Call) (answered bool) {
	defer func() {
		if fault := recover(); fault != nil {
			answered = true
			c.server.Panicked(fault)
		}
	}()
	return c.server.Call(s)
}

// serveInstead gives a direct call that was not answered to the handler.
func (c *conn) serveInstead(s *Call) {
	c.mu.Lock()
	ctx := c.forHandler(s)
	c.checkDrained()
	c.mu.Unlock()
	if starts := c.server.Starts; starts != nil {
		var end func()
		ctx, end = starts.Begin(ctx, origin.Within(s.client()).Client())
		defer end()
	}
	c.serveHandler(ctx, s)
}
