package places

import "sync"

// Bytes limits how many bytes are kept at once, in total and for each holder, for example of
// answers that clients have not read yet.
//
// With 256 MiB, of which a holder may keep 32, a holder with answers of 9 MiB keeps three of them,
// and other holders keep theirs. What a holder keeps alone is never too large.
type Bytes[K comparable] struct {
	mu         sync.Mutex
	most, each int
	taken      int
	held       map[K]int
}

// NewBytes limits to most bytes, of which a holder may keep up to each.
func NewBytes[K comparable](most, each int) *Bytes[K] {
	return &Bytes[K]{most: most, each: each, held: map[K]int{}}
}

// Take counts size bytes, or returns false. A holder that keeps nothing may keep any size, and use
// twice the total, so that others cannot keep it out. If it returns true, the caller must call
// leave once.
func (b *Bytes[K]) Take(holder K, size int) (leave func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.held[holder]
	if own > 0 && (own+size > b.each || b.taken+size > b.most) || own == 0 && b.taken > 0 && b.taken+size > 2*b.most {
		return nil, false
	}
	return b.add(holder, size), true
}

// Hold counts size bytes beyond any bound, or fewer bytes if size is negative: to correct what Take
// has counted. The caller must call leave once.
func (b *Bytes[K]) Hold(holder K, size int) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.add(holder, size)
}

func (b *Bytes[K]) add(holder K, size int) (leave func()) {
	b.taken += size
	b.held[holder] += size
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.taken -= size
		if b.held[holder] -= size; b.held[holder] == 0 {
			delete(b.held, holder)
		}
	}
}

// Taken returns how many bytes are kept.
func (b *Bytes[K]) Taken() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}
