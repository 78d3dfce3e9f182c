package places

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Turns are places for which holders wait. A holder has at most each of them, and some of them are
// only for holders that have none, so that no two or three holders can keep out another one. A
// place that becomes free goes to the waiting holder that has the fewest.
//
// An example, with 7 places, of which a holder may have 4, and 2 are only for holders that have
// none. Holder a has 4, and b has 1. Both want more, and wait. Holders c and d still get a place at
// once. When a leaves one, b gets it.
type Turns[K comparable] struct {
	most   int
	each   int // most places of one holder
	shared int // most places that are taken when a holder that has some gets another one

	mu      sync.Mutex
	used    int
	of      map[K]int    // places of holders that have any
	waiting []*waiter[K] // in the order of arrival
}

// waiter waits for a place.
type waiter[K comparable] struct {
	holder K
	ready  chan struct{} // closed when it has its place
}

// NewTurns returns most places, of which a holder may have up to each, and the last reserved ones
// are for holders that have none.
func NewTurns[K comparable](most, each, reserved int) *Turns[K] {
	return &Turns[K]{most: max(1, most), each: max(1, each), shared: max(1, most-reserved), of: map[K]int{}}
}

// Take waits for a place of the holder, until ctx ends. If it returns no error, the caller must
// call leave once.
func (t *Turns[K]) Take(ctx context.Context, holder K) (leave func(), err error) {
	w := &waiter[K]{holder: holder, ready: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.next()
	t.mu.Unlock()
	leave = func() { t.leave(holder) }
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(t.waiting, w)
	if at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // it got its place at this moment
		return leave, nil
	}
	return nil, ctx.Err()
}

// TakeWithin is Take that waits no longer than most.
func (t *Turns[K]) TakeWithin(ctx context.Context, holder K, most time.Duration) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return t.Take(ctx, holder)
}

func (t *Turns[K]) leave(holder K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
	if t.of[holder]--; t.of[holder] == 0 {
		delete(t.of, holder)
	}
	t.next()
}

// next gives the places that are free to those who wait. The caller holds the lock.
func (t *Turns[K]) next() {
	for {
		best := -1
		for i, w := range t.waiting {
			if own := t.of[w.holder]; t.admits(own) && (best < 0 || own < t.of[t.waiting[best].holder]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := t.waiting[best]
		t.waiting = slices.Delete(t.waiting, best, best+1)
		t.used++
		t.of[w.holder]++
		close(w.ready)
	}
}

// admits reports whether a holder that has own places gets another one now.
func (t *Turns[K]) admits(own int) bool {
	if own == 0 {
		return t.used < t.most
	}
	return own < t.each && t.used < t.shared
}
