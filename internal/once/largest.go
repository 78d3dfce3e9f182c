package once

import (
	"container/heap"
	"container/list"
)

// recordList has entries in the order in which their requests ended.
type recordList struct {
	list.List
	bytes int // of the answers
	place int // in largest
}

// over reports whether there are too many records for a part of the limits.
func (r *recordList) over(part int) bool {
	return r.Len() > maxLocalRecords/part || r.bytes > maxLocalBytes/part
}

func (r *recordList) oldest() *entry {
	front := r.Front()
	if front == nil {
		return nil
	}
	e, _ := front.Value.(*entry)
	return e
}

// weight is what the records take of both limits together.
func (r *recordList) weight() int { return r.Len()*(maxLocalBytes/maxLocalRecords) + r.bytes }

// largest is a heap of the records of each tenant. The first ones have the most weight, and of
// those with the same, the oldest record. With thousands of tenants, it is found without a search.
type largest []*recordList

// first returns the records of the tenant with the most. There must be some.
func (h *largest) first() *recordList { return (*h)[0] }

// changed puts the records of a tenant, of which one was added or removed, in their place.
func (h *largest) changed(r *recordList) {
	switch {
	case r.place < 0:
		heap.Push(h, r)
	case r.Len() == 0:
		heap.Remove(h, r.place)
	default:
		heap.Fix(h, r.place)
	}
}

// The methods of heap.Interface.

func (h *largest) Len() int { return len(*h) }

func (h *largest) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	if a.weight() != b.weight() {
		return a.weight() > b.weight()
	}
	return a.oldest().expires.Before(b.oldest().expires)
}

func (h *largest) Swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

// Push is for package heap.
func (h *largest) Push(x any) {
	r, _ := x.(*recordList)
	r.place = len(*h)
	*h = append(*h, r)
}

// Pop is for package heap.
func (h *largest) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	r.place = -1
	return r
}
