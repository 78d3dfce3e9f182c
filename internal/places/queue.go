package places

import (
	"context"
	"slices"
	"sync"
)

// Queue has items of holders that wait to be processed in batches. Holders take turns, and one has
// at most one batch in process, so one with very many or slow items delays its own. An item is in
// the queue once, until it was processed.
//
// An example, with batches of two: holder a has the items 1, 2, 3 and 4, and b then adds 5. The
// batches are 1 and 2, then 5, then 3 and 4.
//
// The number of items is bounded. A holder has at most a quarter of what is left, but at least
// some.
type Queue[K, V comparable] struct {
	most, each, least int
	ready             chan struct{} // has an element while there may be a turn for somebody

	mu    sync.Mutex
	size  int
	lines map[K]*items[K, V]
	turns []*items[K, V] // of holders with waiting items and no batch in process
}

// items are those of a holder.
type items[K, V comparable] struct {
	holder  K
	waiting []V
	known   map[V]struct{} // that wait, or are in process
	busy    bool           // a batch is in process
}

// NewQueue returns a queue of most items. A holder may have up to each of them, and least also
// beyond most.
func NewQueue[K, V comparable](most, each, least int) *Queue[K, V] {
	return &Queue[K, V]{most: most, each: each, least: least, ready: make(chan struct{}, 1), lines: map[K]*items[K, V]{}}
}

// Add adds an item of a holder. It returns false if the holder has too many. It never waits for a
// batch.
func (q *Queue[K, V]) Add(holder K, item V) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[holder]
	if l == nil {
		l = &items[K, V]{holder: holder, known: map[V]struct{}{}}
	}
	if _, known := l.known[item]; known {
		return true
	}
	if len(l.known) >= min(q.each, max(q.least, (q.most-q.size)/4)) {
		return false
	}
	q.lines[holder] = l
	l.known[item] = struct{}{}
	l.waiting = append(l.waiting, item)
	q.size++
	if len(l.waiting) == 1 && !l.busy {
		q.turn(l)
	}
	return true
}

// Next waits for the next turn, and returns up to most items of a holder. If there is no error, the
// caller must call done once, after it has processed them. Error: that of ctx.
func (q *Queue[K, V]) Next(ctx context.Context, most int) (holder K, batch []V, done func(), err error) {
	for {
		select {
		case <-q.ready:
		case <-ctx.Done():
			return holder, nil, nil, ctx.Err()
		}
		q.mu.Lock()
		if len(q.turns) > 0 {
			l := q.turns[0]
			q.turns = slices.Delete(q.turns, 0, 1)
			batch = slices.Clone(l.waiting[:min(most, len(l.waiting))])
			l.waiting, l.busy = slices.Delete(l.waiting, 0, len(batch)), true
			q.wake()
			q.mu.Unlock()
			return l.holder, batch, func() { q.done(l, batch) }, nil
		}
		q.mu.Unlock()
	}
}

func (q *Queue[K, V]) done(l *items[K, V], batch []V) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range batch {
		delete(l.known, item)
	}
	q.size -= len(batch)
	l.busy = false
	if len(l.waiting) > 0 {
		q.turn(l)
	} else {
		delete(q.lines, l.holder)
	}
}

// turn puts a holder behind the others that wait for their turn. The caller holds the lock.
func (q *Queue[K, V]) turn(l *items[K, V]) {
	q.turns = append(q.turns, l)
	q.wake()
}

// wake lets one caller of Next look for a turn, if there is one. The caller holds the lock.
func (q *Queue[K, V]) wake() {
	if len(q.turns) == 0 {
		return
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
