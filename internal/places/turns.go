package places

import (
	"container/heap"
	"container/list"
	"context"
	"sync"
	"time"
)

// Turns are places for which holders wait. A holder has at most each of them, and some of them are
// only for holders that have none, so that no two or three holders can keep out another one. A
// place that becomes free goes to the waiting holder that has the fewest. One that leaves a place
// goes behind the others that wait and have as many. So holders with several requests do not take
// turns among themselves, and each holder gets its first place after at most one of each other
// holder. The time of an operation hardly depends on how many wait.
//
// An example, with 7 places, of which a holder may have 4, and 2 are only for holders that have
// none. Holder a has 4, and b has 1. Both want more, and wait. Holders c and d still get a place at
// once. When a leaves one, b gets it.
type Turns[K comparable] struct {
	most   int
	each   int // most places of one holder
	shared int // most places that are taken when a holder that has some gets another one
	// single lets a holder have one place of several kinds; nil: it may have some of each. It is
	// waited for before a place of this kind, or after it.
	single      *Turns[K]
	singleFirst bool
	// leaveOne reports whether holders with places leave one more to those without; nil: never. If
	// leavesSingle is true, they need single only then, and if many of theirs wait.
	leaveOne     func() bool
	leavesSingle bool

	mu       sync.Mutex
	used     int
	arrivals int64           // of waiters, and of holders behind them
	of       map[K]*queue[K] // of holders that have places or wait
	waiting  fewest[K]       // those that wait
	spare    []*queue[K]     // of holders that left
}

// queue is a holder, with those who wait for a place of it.
type queue[K comparable] struct {
	holder K
	own    int       // places
	from   int64     // when it last left a place, among the arrivals
	line   list.List // of *waiter, in their order
	at     int       // in waiting, if somebody waits
}

// waiter waits for a place.
type waiter[K comparable] struct {
	queue   *queue[K]
	arrival int64
	at      *list.Element // in the line; nil: it has its place
	ready   chan struct{} // closed when it has its place
}

// NewTurns returns most places, of which a holder may have up to each, and the last reserved ones
// are for holders that have none.
func NewTurns[K comparable](most, each, reserved int) *Turns[K] {
	return &Turns[K]{most: max(1, most), each: max(1, each), shared: max(1, most-reserved), of: map[K]*queue[K]{}}
}

// LeaveOneWhile makes holders that have places leave one more to those that have none, while when
// reports true. It must be called before the first place is taken.
func (t *Turns[K]) LeaveOneWhile(when func() bool) { t.leaveOne = when }

// Most returns how many places there are.
func (t *Turns[K]) Most() int { return t.most }

// Take waits for a place of the holder, until ctx ends. If it returns no error, the caller must
// call leave once.
func (t *Turns[K]) Take(ctx context.Context, holder K) (leave func(), err error) {
	if !t.hasSingle(holder) {
		return t.take(ctx, holder, false)
	}
	first, second := t, t.single
	if t.singleFirst {
		first, second = second, first
	}
	leaveFirst, err := first.take(ctx, holder, false)
	if err != nil {
		return nil, err
	}
	leaveSecond, err := second.take(ctx, holder, true)
	if err != nil {
		leaveFirst()
		return nil, err
	}
	return func() { leaveSecond(); leaveFirst() }, nil
}

// hasSingle reports whether the holder of a place must have that of several kinds, too.
func (t *Turns[K]) hasSingle(holder K) bool {
	if t.single == nil || !t.leavesSingle {
		return t.single != nil
	}
	return t.leaves() && t.waitingOf(holder)+t.single.waitingOf(holder) >= manyWaiting
}

// manyWaiting is how many requests of a holder wait that sends them faster than it gets places.
const manyWaiting = 4

// waitingOf returns how many requests of a holder wait.
func (t *Turns[K]) waitingOf(holder K) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.of[holder]; q != nil {
		return q.line.Len()
	}
	return 0
}

// leaves reports whether holders with places leave one more to those without.
func (t *Turns[K]) leaves() bool { return t.leaveOne != nil && t.leaveOne() }

// take is Take for this kind alone. If it is for the second kind, the caller has a place of the
// first one, which others may wait for. So it does not wait for further requests of its holder.
func (t *Turns[K]) take(ctx context.Context, holder K, second bool) (leave func(), err error) {
	w := t.arrive(holder, second)
	leave = func() { t.leave(holder) }
	if w == nil {
		return leave, nil
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
	}
	if !t.giveUp(w) { // it got its place at this moment
		return leave, nil
	}
	return nil, ctx.Err()
}

// TakeWithin is Take that waits no longer than most.
func (t *Turns[K]) TakeWithin(ctx context.Context, holder K, most time.Duration) (leave func(), err error) {
	if !t.hasSingle(holder) {
		return t.takeWithin(ctx, holder, most)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return t.Take(ctx, holder)
}

// takeWithin is TakeWithin for a kind without single. A place that is free costs one allocation.
func (t *Turns[K]) takeWithin(ctx context.Context, holder K, most time.Duration) (leave func(), err error) {
	leave = func() { t.leave(holder) }
	w := t.arrive(holder, false)
	if w == nil {
		return leave, nil
	}
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
		err = context.DeadlineExceeded
	}
	if !t.giveUp(w) { // it got its place at this moment
		return leave, nil
	}
	return nil, err
}

// TakePausing is TakeWithin for work that also waits for others, such as Postgres. The holder may
// have a place of another kind meanwhile.
func (t *Turns[K]) TakePausing(ctx context.Context, holder K, most time.Duration) (leave func(), err error) {
	return t.takeWithin(ctx, holder, most)
}

// TryWithin waits for a place of the holder like TakeWithin, for what must be done in any case:
// after the wait, the caller continues without a place. It must call leave once. No context ends
// the wait: a client that disconnects would have its work done without a place.
func (t *Turns[K]) TryWithin(holder K, most time.Duration) (leave func()) {
	leave, err := t.TakeWithin(context.Background(), holder, most)
	if err != nil {
		return func() {}
	}
	return leave
}

// arrive takes a place, and returns nil, or begins to wait for one, behind the others of the holder
// or before them. Of those who wait already, nobody can get a place, because each that becomes free
// is given at once. So only the holder itself decides.
func (t *Turns[K]) arrive(holder K, before bool) *waiter[K] {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.of[holder]
	if q == nil {
		q = t.queue(holder)
	}
	if q.line.Len() == 0 && t.permits(q.own) {
		t.used++
		q.own++
		return nil
	}
	t.arrivals++
	w := &waiter[K]{queue: q, arrival: t.arrivals, ready: make(chan struct{})}
	if before {
		w.at = q.line.PushFront(w)
	} else {
		w.at = q.line.PushBack(w)
	}
	if q.line.Len() == 1 {
		heap.Push(&t.waiting, q)
	} else {
		t.order(q)
	}
	return w
}

// giveUp ends that w waits, or returns false if it has its place.
func (t *Turns[K]) giveUp(w *waiter[K]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.at == nil {
		return false
	}
	t.remove(w)
	return true
}

func (t *Turns[K]) leave(holder K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.of[holder]
	t.used--
	q.own--
	t.arrivals++
	q.from = t.arrivals
	t.order(q)
	t.next()
}

// next gives the places that are free to those who wait. If the holder with the fewest gets none,
// no other one does. The caller holds the lock.
func (t *Turns[K]) next() {
	for len(t.waiting.queues) > 0 {
		q := t.waiting.queues[0]
		if !t.permits(q.own) {
			return
		}
		t.used++
		q.own++
		w := q.line.Front().Value.(*waiter[K])
		t.remove(w)
		close(w.ready)
	}
}

// Waiting returns how many requests wait.
func (t *Turns[K]) Waiting() (count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range t.waiting.queues {
		count += q.line.Len()
	}
	return count
}

// permits reports whether a holder that has own places gets another one now.
func (t *Turns[K]) permits(own int) bool {
	if own == 0 {
		return t.used < t.most
	}
	shared := t.shared
	if t.leaves() {
		shared = min(shared, t.most-1)
	}
	return own < t.each && t.used < shared
}

// remove removes one who waits. The caller holds the lock.
func (t *Turns[K]) remove(w *waiter[K]) {
	q := w.queue
	q.line.Remove(w.at)
	w.at = nil
	if q.line.Len() == 0 {
		heap.Remove(&t.waiting, q.at)
	}
	t.order(q)
}

// order puts a holder in order after a change, and forgets one that has no place and waits for
// none. The caller holds the lock.
func (t *Turns[K]) order(q *queue[K]) {
	switch {
	case q.line.Len() > 0:
		heap.Fix(&t.waiting, q.at)
	case q.own == 0:
		if t.of[q.holder] == q && len(t.spare) < maxSpare {
			t.spare = append(t.spare, q)
		}
		delete(t.of, q.holder)
	}
}

// maxSpare is how many queues of holders that left are kept for others.
const maxSpare = 16

// queue returns a queue for a holder that has none. The caller holds the lock.
func (t *Turns[K]) queue(holder K) *queue[K] {
	q := &queue[K]{}
	if last := len(t.spare) - 1; last >= 0 {
		q, t.spare = t.spare[last], t.spare[:last]
		q.from = 0
	}
	q.holder = holder
	t.of[holder] = q
	return q
}

// since is from when a holder that waits has its turn, among the arrivals. Its oldest request
// alone would say nothing: it can have several, and get a place for each, one after the other.
func (q *queue[K]) since() int64 {
	return max(q.from, q.line.Front().Value.(*waiter[K]).arrival)
}

// fewest is a heap of holders that wait: the one with the fewest places first, and of several the
// one that has waited for the longest time since it left a place.
type fewest[K comparable] struct {
	queues   []*queue[K]
	compared int // how often, for tests
}

func (f *fewest[K]) Len() int { return len(f.queues) }

func (f *fewest[K]) Less(i, j int) bool {
	f.compared++
	a, b := f.queues[i], f.queues[j]
	if a.own != b.own {
		return a.own < b.own
	}
	return a.since() < b.since()
}

func (f *fewest[K]) Swap(i, j int) {
	f.queues[i], f.queues[j] = f.queues[j], f.queues[i]
	f.queues[i].at, f.queues[j].at = i, j
}

// Push implements heap.Interface.
func (f *fewest[K]) Push(x any) {
	q := x.(*queue[K])
	q.at = len(f.queues)
	f.queues = append(f.queues, q)
}

// Pop implements heap.Interface.
func (f *fewest[K]) Pop() any {
	last := f.queues[len(f.queues)-1]
	f.queues[len(f.queues)-1] = nil
	f.queues = f.queues[:len(f.queues)-1]
	return last
}
