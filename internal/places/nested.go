package places

import "sync"

// Nested are places for holders that are within wider ones: an address within the network of a
// home, within that of a site. A holder is given as the three, the narrowest first. A wider one
// that does not exist is the zero value. Use NewNested.
//
// With 64 places, of which an address may have 32, a client with the 65,536 networks of a site gets
// 48 of them. The other 16 places stay free for other sites.
type Nested[K comparable] struct {
	mu    sync.Mutex
	taken int
	held  map[K]int // of holders of all widths
}

// NewNested returns places. Each Take says how many there are.
func NewNested[K comparable]() *Nested[K] { return &Nested[K]{held: map[K]int{}} }

// Take takes a place of most. The narrowest holder may have up to each, the next one 4 times as
// many and at most five eighths of all, and the widest 16 times as many and at most three quarters.
// The last quarter is for widest holders that have none, so that two of them cannot keep out a
// third one. If it returns true, the caller must call leave once.
func (n *Nested[K]) Take(within [3]K, most, each int) (leave func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	shared := most - most/4
	bounds := [3]int{each, max(each, min(4*each, most*5/8)), max(each, min(16*each, shared))}
	if n.held[widest(within)] > 0 {
		most = shared
	}
	return n.take(within, most, bounds)
}

// TakeShare takes a place if the narrowest holder has less than a quarter of those that are left of
// most, the next one less than a third and the widest less than half of them; or fewer than least,
// twice and 4 times as many. For holders that have fewer than that, there are as many places more,
// as with Places.TakeShare.
func (n *Nested[K]) TakeShare(within [3]K, most, least int) (leave func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	left := most - n.taken
	return n.take(within, 2*most, [3]int{max(least, left/4), max(2*least, left/3), max(4*least, left/2)})
}

// take takes a place if fewer than most are taken, and each holder has fewer than its bound. The
// caller holds the lock.
func (n *Nested[K]) take(within [3]K, most int, bounds [3]int) (leave func(), ok bool) {
	if n.taken >= most {
		return nil, false
	}
	for i, holder := range within {
		if exists(within, i) && n.held[holder] >= bounds[i] {
			return nil, false
		}
	}
	n.add(within, 1)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.add(within, -1)
	}, true
}

// add changes the number of places of a holder. The caller holds the lock.
func (n *Nested[K]) add(within [3]K, change int) {
	n.taken += change
	for i, holder := range within {
		if !exists(within, i) {
			continue
		}
		if n.held[holder] += change; n.held[holder] == 0 {
			delete(n.held, holder)
		}
	}
}

// Taken returns how many places are taken.
func (n *Nested[K]) Taken() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.taken
}

// exists reports whether there is a holder of this width. The narrowest one always exists.
func exists[K comparable](within [3]K, i int) bool {
	var none K
	return i == 0 || within[i] != none
}

// widest returns the widest holder that exists.
func widest[K comparable](within [3]K) K {
	for i := len(within) - 1; i > 0; i-- {
		if exists(within, i) {
			return within[i]
		}
	}
	return within[0]
}
