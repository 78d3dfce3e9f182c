package places

import "time"

// WaitingOf returns how many requests of a holder wait.
func (t *Turns[K]) WaitingOf(holder K) int { return t.waitingOf(holder) }

// SingleWaiting returns how many wait for the one turn of all kinds of their tenants.
func (p *Processors) SingleWaiting() int { return p.Short.single.Waiting() }

// Compared returns how many comparisons of those who wait there were.
func (t *Turns[K]) Compared() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting.compared
}

// Used returns how many holders a pace keeps of which it knows what they have used.
func (p *Pace[K]) Used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.used)
}

// SetLong sets after which time a request is taken to wait.
func (s *Starts[K]) SetLong(d time.Duration) { s.long = d }

// Waiting returns how many requests of a holder wait to begin.
func (s *Starts[K]) Waiting(holder K) int {
	cell := s.cell(holder)
	cell.mu.Lock()
	defer cell.mu.Unlock()
	return len(cell.waiting)
}
