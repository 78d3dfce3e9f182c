package places

import (
	"cmp"
	"maps"
)

// Order puts holders in the order in which they were last served: the one that was not served for
// the longest time is the first. It is not safe for concurrent use. Use NewOrder.
type Order[K comparable] struct {
	served map[K]int64 // the number of the last time that a holder was served
	count  int64
}

// NewOrder returns an order in which nobody was served.
func NewOrder[K comparable]() *Order[K] { return &Order[K]{served: map[K]int64{}} }

// Serve puts a holder behind all others.
func (o *Order[K]) Serve(holder K) {
	o.count++
	o.served[holder] = o.count
}

// Compare returns a negative number if a is before b, a positive one if it is behind b, and 0 if
// neither was ever served.
func (o *Order[K]) Compare(a, b K) int { return cmp.Compare(o.served[a], o.served[b]) }

// Keep forgets when holders were served for which keep returns false, as if they never were.
func (o *Order[K]) Keep(keep func(holder K) bool) {
	maps.DeleteFunc(o.served, func(holder K, _ int64) bool { return !keep(holder) })
}
