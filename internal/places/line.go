package places

import (
	"slices"
	"time"
)

// Line has the holders that were refused, in the order of arrival. A place that gets free is kept
// for the first of them, as long as they ask again in time. It is not safe for concurrent use, and
// does not know the places: the caller adds those before a holder to those that are taken. Use
// NewLine.
//
// An example, with one place that a has: b is refused, and joins. When a has left, a is refused,
// because b is before it, and b gets the place and leaves the line.
type Line[K comparable] struct {
	keep    time.Duration
	most    int
	now     func() time.Time
	waiting []waitingHolder[K]
}

// waitingHolder is a holder that was refused.
type waitingHolder[K comparable] struct {
	holder K
	until  time.Time // when it has given up, unless it asks again
}

// NewLine returns an empty line of at most so many holders, which keeps the place of each for a
// time after it has asked.
func NewLine[K comparable](most int, keep time.Duration, now func() time.Time) *Line[K] {
	return &Line[K]{keep: keep, most: most, now: now}
}

// Before returns how many wait before a holder: all, if it does not wait.
func (l *Line[K]) Before(holder K) int {
	now := l.now() // a holder that asks just after its time keeps its place
	l.waiting = slices.DeleteFunc(l.waiting, func(w waitingHolder[K]) bool { return w.holder != holder && !w.until.After(now) })
	if at := l.at(holder); at >= 0 {
		return at
	}
	return len(l.waiting)
}

// Join notes that a holder was refused: at the end of the line, if it does not wait yet and the
// line is not full.
func (l *Line[K]) Join(holder K) {
	until := l.now().Add(l.keep)
	if at := l.at(holder); at >= 0 {
		l.waiting[at].until = until
	} else if len(l.waiting) < l.most {
		l.waiting = append(l.waiting, waitingHolder[K]{holder, until})
	}
}

// Leave notes that a holder got a place.
func (l *Line[K]) Leave(holder K) {
	l.waiting = slices.DeleteFunc(l.waiting, func(w waitingHolder[K]) bool { return w.holder == holder })
}

// Len returns how many wait.
func (l *Line[K]) Len() int {
	now := l.now()
	l.waiting = slices.DeleteFunc(l.waiting, func(w waitingHolder[K]) bool { return !w.until.After(now) })
	return len(l.waiting)
}

func (l *Line[K]) at(holder K) int {
	return slices.IndexFunc(l.waiting, func(w waitingHolder[K]) bool { return w.holder == holder })
}
