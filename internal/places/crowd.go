package places

import "sync"

// Crowd bounds the number of requests that wait for their own clients, for example to read an
// answer. It refuses no new one: beyond the bound, the widest holder with the most loses one, the
// oldest of the narrowest holder with the most. So a holder with very many loses its own.
//
// An example with 3: holder a has the requests 1 and 2, and b has 3. Then b comes with 4, and a
// loses 1, because it has reached this number first. If c comes with 5, b loses 3.
type Crowd[K comparable] struct {
	most int

	mu  sync.Mutex
	all line[K] // of the widest holders
}

// NewCrowd bounds to most requests.
func NewCrowd[K comparable](most int) *Crowd[K] { return &Crowd[K]{most: max(1, most)} }

// Enter counts a request that waits. The holders are those of Rounds.Take. If the request is the
// one that must go, lost is called on another goroutine, because the caller of Enter may hold a
// lock that lost needs. The caller must call leave once in either case.
func (c *Crowd[K]) Enter(lost func(), within ...K) (leave func()) {
	return c.EnterParts(1, lost, within...)
}

// EnterParts is Enter for a request that counts as parts of them, because it keeps more than
// others. The bound and the order of those who lose one are then by parts. A request of more parts
// than the bound is lost at once.
func (c *Crowd[K]) EnterParts(parts int, lost func(), within ...K) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enter(parts, lost, within)
}

// enter adds a request, and ends those beyond the bound. The caller holds the lock.
func (c *Crowd[K]) enter(parts int, lost func(), within []K) (leave func()) {
	t := &turn[K]{parts: parts, lost: lost}
	c.all.enqueue(t, within)
	for c.all.size > c.most {
		crowded := c.all.oldest().dequeue()
		go crowded.lost()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.at != nil {
			t.dequeue()
		}
	}
}

// EnterShare is Enter that returns false if the crowd is full and no widest holder has at least two
// more than the one that enters. So the shares of widest holders become equal, and requests that
// come again do not end each other in turn.
func (c *Crowd[K]) EnterShare(lost func(), within ...K) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all.size >= c.most && c.all.sizeOf(within)+1 >= c.all.longest {
		return nil, false
	}
	return c.enter(1, lost, within), true
}

// Waiting returns how many requests wait, or their parts.
func (c *Crowd[K]) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.size
}
