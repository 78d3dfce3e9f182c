package places

import (
	"context"
	"slices"
	"sync"
)

// Turns is a number of places like Places, for which holders wait. A free place goes to the holder
// who has the fewest, and among those to the one who has waited longest, so that a holder with many
// requests does not delay the others. Use NewTurns.
type Turns[K comparable] struct {
	mu         sync.Mutex
	most, each int
	taken      int
	held       map[K]int
	queue      []*waiter[K] // in the order of arrival
}

type waiter[K comparable] struct {
	holder K
	turn   chan struct{} // closed when the place is theirs
}

// NewTurns returns most places, of which a holder may have up to each.
func NewTurns[K comparable](most, each int) *Turns[K] {
	return &Turns[K]{most: most, each: each, held: map[K]int{}}
}

// Take takes a place, and waits for it until ctx ends. It does not wait for a free place, even if
// ctx has ended. If it returns no error, the caller must call leave once.
func (t *Turns[K]) Take(ctx context.Context, holder K) (leave func(), err error) {
	leave = func() { t.leave(holder) }
	t.mu.Lock()
	if t.taken < t.most && t.held[holder] < t.each { // nobody who waits could use this place
		t.give(holder)
		t.mu.Unlock()
		return leave, nil
	}
	w := &waiter[K]{holder, make(chan struct{})}
	t.queue = append(t.queue, w)
	t.mu.Unlock()
	select {
	case <-w.turn:
		return leave, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(t.queue, w)
	if at >= 0 {
		t.queue = slices.Delete(t.queue, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // the place was given at the same time
		leave()
	}
	return nil, ctx.Err()
}

// Waiting returns how many requests of a holder wait.
func (t *Turns[K]) Waiting(holder K) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, w := range t.queue {
		if w.holder == holder {
			n++
		}
	}
	return n
}

// give gives a place to a holder. The caller holds the lock.
func (t *Turns[K]) give(holder K) {
	t.taken++
	t.held[holder]++
}

// leave returns a place, and gives it to the next one.
func (t *Turns[K]) leave(holder K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	if t.held[holder]--; t.held[holder] == 0 {
		delete(t.held, holder)
	}
	next := -1
	for i, w := range t.queue {
		if held := t.held[w.holder]; held < t.each && (next < 0 || held < t.held[t.queue[next].holder]) {
			next = i
		}
	}
	if next >= 0 {
		w := t.queue[next]
		t.queue = slices.Delete(t.queue, next, next+1)
		t.give(w.holder)
		close(w.turn)
	}
}
