package places

import (
	"sync"
	"time"
)

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
	return c.enter(&turn[K]{parts: parts, lost: lost}, within)
}

// enter adds a request, and ends those beyond the bound. The caller holds the lock.
func (c *Crowd[K]) enter(t *turn[K], within []K) (leave func()) {
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
	return c.enter(&turn[K]{parts: 1, lost: lost}, within), true
}

// EnterNext is EnterShare for holders that wait in a line, of whom so many are before this one. If
// each widest holder has one, they take turns: one that has none gets the place of the oldest
// request that has lasted for hold. Each of those before it in the line may take one, too.
//
// An example with 2, which a and b have: c comes, and is the first in the line. After hold, c gets
// the place of a, which is the first in the line then, and gets that of b.
func (c *Crowd[K]) EnterNext(before int, now time.Time, hold time.Duration, lost func(), within ...K) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &turn[K]{parts: 1, lost: lost, since: now}
	own, free := c.all.sizeOf(within), max(0, c.most-c.all.size)
	if own+1 < c.all.longest { // then those before it get a place, too
		return c.enter(t, within), true
	}
	var oldest *turn[K]
	due := 0
	if own == 0 {
		oldest, due = c.due(now.Add(-hold))
	}
	if free+due <= before {
		return nil, false
	}
	if free == 0 {
		crowded := oldest.dequeue()
		go crowded.lost()
	}
	return c.enter(t, within), true
}

// due returns the oldest request, and how many have lasted since a time. Each widest holder has at
// most one. The caller holds the lock.
func (c *Crowd[K]) due(since time.Time) (oldest *turn[K], due int) {
	if c.all.longest == 0 {
		return nil, 0
	}
	for e := c.all.bySize[1].Front(); e != nil; e = e.Next() {
		t := e.Value.(*line[K]).oldest()
		if !t.since.After(since) {
			due++
		}
		if oldest == nil || t.since.Before(oldest.since) {
			oldest = t
		}
	}
	return oldest, due
}

// Waiting returns how many requests wait, or their parts.
func (c *Crowd[K]) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.size
}
