package simulate

import "time"

// shard is a Redis server: one thread that decides the calls of one pipeline after the other.
type shard struct {
	world   *world
	region  int
	process *process
	lost    bool // it does not answer; what it receives is discarded
	losses  int  // how often it was lost
	counts  map[*subject]*count
}

// count is the counter of a subject with a limit: a fixed window.
type count struct {
	window time.Duration // number of the window
	used   int64
}

// receive takes a pipeline from the network.
func (s *shard) receive(b *batch) {
	if s.lost {
		return
	}
	losses := s.losses
	s.process.run(s.world.costs.decide(b, s.world.entries(b)), func() {
		if s.losses != losses {
			return
		}
		for _, r := range b.reqs {
			s.decide(r)
		}
		s.world.hop(s.region, b.queue.instance.region, func() {
			if !s.lost {
				b.queue.replied(b)
			}
		})
	})
}

// entries returns how many entries a script run has for a pipeline: equal calls share one.
func (w *world) entries(b *batch) int {
	w.mark++
	entries := 0
	for _, r := range b.reqs {
		if r.subject.mark != w.mark || r.prefetch > 0 {
			r.subject.mark = w.mark
			entries++
		}
	}
	return entries
}

// decide charges a request, also if its caller has stopped waiting.
func (s *shard) decide(r *request) {
	if r.probe != nil {
		return
	}
	r.allowed, r.remaining, r.retryAfter = r.subject.charge(s.counts, s.world.clock.now, 1+r.prefetch, r.subject.limit)
}

// charge charges units to the subject's counter if they fit.
func (s *subject) charge(counts map[*subject]*count, now time.Duration, units, limit int64) (allowed bool, remaining int64, retryAfter time.Duration) {
	if limit == 0 {
		return true, 1 << 40, 0
	}
	c := counts[s]
	if c == nil {
		c = new(count)
		counts[s] = c
	}
	if window := now / s.window; window != c.window {
		c.window, c.used = window, 0
	}
	if c.used+units <= limit {
		c.used += units
		return true, limit - c.used, 0
	}
	return false, limit - c.used, (c.window+1)*s.window - now
}

// lose makes the shard silent, until restore.
func (s *shard) lose() {
	s.lost, s.losses = true, s.losses+1
}

// restore lets the shard answer again, with its counters, as after a failover.
func (s *shard) restore() { s.lost = false }
