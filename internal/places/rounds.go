package places

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// Rounds are places for which very many wait, each for a moment. Holders get a place in rounds, one
// after the other, so that a holder with many waiting requests keeps out no other one. Among the
// requests of a holder, the newest is first, because the client of an old one has probably given
// up. The time of an operation does not depend on how many wait.
//
// An example, with one place, which is taken: holder a has the requests 1, 2 and 3 waiting, and b
// then comes with 4. They get the place in the order 3, 4, 2, 1.
//
// Holders may be within wider ones, such as an address within a site. Then sites take turns, and in
// the turn of a site, its addresses: a site has as many turns with 65,536 addresses as with one.
//
// The number of waiting requests is bounded. Beyond it, the widest holder with the most waiting
// requests loses one: the oldest of the narrowest holder with the most.
type Rounds[K comparable] struct {
	most, queue int

	mu    sync.Mutex
	taken int
	all   line[K] // of the widest holders
}

// line is the waiting requests of a holder: its own, or those of the holders within it.
type line[K comparable] struct {
	holder  K
	wider   *line[K]  // nil: this is the line of all
	size    int       // parts of the requests that wait, with those of holders within it
	waiting list.List // of *turn, the newest first
	inRound *list.Element
	inSize  *list.Element

	lines   map[K]*line[K] // of the holders within it
	round   list.List      // of these, in the order of their next turn
	bySize  []*list.List   // of these, at the index of their size
	longest int            // the highest index that has lines
}

// turn is a request that waits.
type turn[K comparable] struct {
	line  *line[K]
	parts int           // as how many it counts
	at    *list.Element // in its line; nil: it waits no longer
	given chan error    // of Rounds: the outcome, for one receiver
	lost  func()        // of Crowd
	since time.Time     // of Crowd.EnterNext: when it entered
}

// ErrCrowded is the error of a request that waited when too many others came.
var ErrCrowded = errors.New("places: too many wait")

// NewRounds returns most places, for which up to queue requests wait.
func NewRounds[K comparable](most, queue int) *Rounds[K] {
	return &Rounds[K]{most: max(1, most), queue: max(1, queue)}
}

// Take waits for a place, until ctx ends. The holders are the narrowest and those that it is
// within; wider ones that do not exist are the zero value. If it returns no error, the caller must
// call Leave once.
func (r *Rounds[K]) Take(ctx context.Context, within ...K) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	if r.taken < r.most { // then the queue is empty
		r.taken++
		r.mu.Unlock()
		return nil
	}
	t := &turn[K]{parts: 1, given: make(chan error, 1)}
	r.all.enqueue(t, within)
	if r.all.size > r.queue {
		r.all.oldest().dequeue().given <- ErrCrowded
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
	t.dequeue()
	return ctx.Err()
}

// Leave gives a place to the next one.
func (r *Rounds[K]) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all.size == 0 {
		r.taken--
		return
	}
	next := &r.all
	for next.round.Len() > 0 {
		first := next.round.Front()
		next.round.MoveToBack(first)
		next = first.Value.(*line[K])
	}
	next.waiting.Front().Value.(*turn[K]).dequeue().given <- nil
}

// Waiting returns how many requests wait.
func (r *Rounds[K]) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.size
}

// enqueue adds a request of a holder to the line of all.
func (l *line[K]) enqueue(t *turn[K], within []K) {
	var none K
	for i := len(within) - 1; i >= 0; i-- {
		if i == 0 || within[i] != none {
			l = l.of(within[i])
		}
	}
	t.line, t.at = l, l.waiting.PushFront(t)
	for ; l != nil; l = l.wider {
		l.resize(t.parts)
	}
}

// dequeue removes a request that waits, and returns it.
func (t *turn[K]) dequeue() *turn[K] {
	t.line.waiting.Remove(t.at)
	t.at = nil
	for l := t.line; l != nil; l = l.wider {
		l.resize(-t.parts)
	}
	return t
}

// of returns the line of a holder within that of l.
func (l *line[K]) of(holder K) *line[K] {
	out := l.lines[holder]
	if out != nil {
		return out
	}
	if l.lines == nil {
		l.lines = map[K]*line[K]{}
	}
	out = &line[K]{holder: holder, wider: l}
	out.inRound = l.round.PushBack(out)
	l.lines[holder] = out
	return out
}

// sizeOf returns the size of the widest holder of a request.
func (l *line[K]) sizeOf(within []K) int {
	var none K
	at := len(within) - 1
	for at > 0 && within[at] == none {
		at--
	}
	if of := l.lines[within[at]]; of != nil {
		return of.size
	}
	return 0
}

// oldest returns the oldest request of the narrowest holder with the most, within the widest with
// the most.
func (l *line[K]) oldest() *turn[K] {
	for l.longest > 0 {
		l = l.bySize[l.longest].Front().Value.(*line[K])
	}
	return l.waiting.Back().Value.(*turn[K])
}

// resize notes that so many parts more or fewer wait. A line without any leaves the next wider one.
func (l *line[K]) resize(change int) {
	before := l.size
	l.size += change
	if l.wider == nil {
		return
	}
	l.wider.sort(l, before)
	if l.size == 0 {
		l.wider.round.Remove(l.inRound)
		delete(l.wider.lines, l.holder)
	}
}

// sort moves a line to the others of its size.
func (l *line[K]) sort(moved *line[K], before int) {
	if before > 0 {
		l.bySize[before].Remove(moved.inSize)
	}
	for len(l.bySize) <= moved.size {
		l.bySize = append(l.bySize, list.New())
	}
	if moved.size > 0 {
		moved.inSize = l.bySize[moved.size].PushBack(moved)
	}
	// The line itself is at its size now, so this takes no more steps than its change.
	for l.longest = max(l.longest, moved.size); l.longest > 0 && l.bySize[l.longest].Len() == 0; {
		l.longest--
	}
}
