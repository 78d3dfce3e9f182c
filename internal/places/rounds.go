package places

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Rounds are places for which very many wait, each for a moment. Holders get a place in rounds, one
// after the other, so that a holder with many waiting requests keeps out no other one. Among the
// requests of a holder, the newest is first, because the client of an old one has probably given
// up. All operations take constant time, however many wait.
//
// An example, with one place, which is taken: holder a has the requests 1, 2 and 3 waiting, and b
// then comes with 4. They get the place in the order 3, 4, 2, 1.
//
// The number of waiting requests is bounded. Beyond it, the holder with the most waiting requests
// loses its oldest.
type Rounds[K comparable] struct {
	most, queue int

	mu      sync.Mutex
	taken   int
	waiting int
	lines   map[K]*line[K]
	round   list.List    // of *line, in the order of their next turn
	bySize  []*list.List // of *line, at the index of the number of their requests
	longest int          // the highest index that has lines
}

// line is the waiting requests of a holder.
type line[K comparable] struct {
	holder  K
	waiting list.List // of *turn, the newest first
	inRound *list.Element
	inSize  *list.Element
}

// turn is a request that waits.
type turn[K comparable] struct {
	line  *line[K]
	at    *list.Element // in its line; nil: it waits no longer
	given chan error    // the outcome, for one receiver
}

// ErrCrowded is the error of a request that waited when too many others came.
var ErrCrowded = errors.New("places: too many wait")

// NewRounds returns most places, for which up to queue requests wait.
func NewRounds[K comparable](most, queue int) *Rounds[K] {
	return &Rounds[K]{most: max(1, most), queue: max(1, queue), lines: map[K]*line[K]{}}
}

// Take waits for a place, until ctx ends. If it returns no error, the caller must call Leave once.
func (r *Rounds[K]) Take(ctx context.Context, holder K) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	if r.taken < r.most { // then the queue is empty
		r.taken++
		r.mu.Unlock()
		return nil
	}
	t := r.enqueue(holder)
	if r.waiting > r.queue {
		crowded := r.bySize[r.longest].Front().Value.(*line[K])
		r.dequeue(crowded.waiting.Back().Value.(*turn[K])).given <- ErrCrowded
	}
	r.mu.Unlock()
	select {
	case err := <-t.given:
		return err
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.at == nil { // it had its outcome at this moment
		return <-t.given
	}
	r.dequeue(t)
	return ctx.Err()
}

// Leave gives a place to the next one.
func (r *Rounds[K]) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.round.Front()
	if first == nil {
		r.taken--
		return
	}
	r.round.MoveToBack(first)
	r.dequeue(first.Value.(*line[K]).waiting.Front().Value.(*turn[K])).given <- nil
}

// Waiting returns how many requests wait.
func (r *Rounds[K]) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// enqueue adds a request of a holder. The caller holds the lock.
func (r *Rounds[K]) enqueue(holder K) *turn[K] {
	l := r.lines[holder]
	if l == nil {
		l = &line[K]{holder: holder}
		l.inRound = r.round.PushBack(l)
		r.lines[holder] = l
	}
	t := &turn[K]{line: l, given: make(chan error, 1)}
	t.at = l.waiting.PushFront(t)
	r.waiting++
	r.resized(l, l.waiting.Len()-1)
	return t
}

// dequeue removes a request that waits, and returns it. The caller holds the lock.
func (r *Rounds[K]) dequeue(t *turn[K]) *turn[K] {
	l := t.line
	l.waiting.Remove(t.at)
	t.at = nil
	r.waiting--
	r.resized(l, l.waiting.Len()+1)
	if l.waiting.Len() == 0 {
		r.round.Remove(l.inRound)
		delete(r.lines, l.holder)
	}
	return t
}

// resized notes that a line has one request more or fewer than before. The caller holds the lock.
func (r *Rounds[K]) resized(l *line[K], before int) {
	if before > 0 {
		r.bySize[before].Remove(l.inSize)
	}
	size := l.waiting.Len()
	for len(r.bySize) <= size {
		r.bySize = append(r.bySize, list.New())
	}
	if size > 0 {
		l.inSize = r.bySize[size].PushBack(l)
	}
	// The line itself is at size now, so the longest changes by one at most.
	if size > r.longest || r.longest == before && r.bySize[before].Len() == 0 {
		r.longest = size
	}
}
