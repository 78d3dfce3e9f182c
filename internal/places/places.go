// Package places limits how many things are done at once, in total and for each holder, so that one
// holder cannot block all others. A holder is whatever the caller counts by: a tenant, a person, an
// address.
//
// With 64 places, of which a holder may have 16, an address that opens 64 slow forms gets 16 of
// them. The other 48 places stay free for others.
package places

import "sync"

// Places is a number of places. Use New.
type Places[K comparable] struct {
	mu         sync.Mutex
	most, each int
	taken      int
	held       map[K]int
}

// New returns most places, of which a holder may have up to each.
func New[K comparable](most, each int) *Places[K] {
	return &Places[K]{most: most, each: each, held: map[K]int{}}
}

// Take takes a place. It returns false if all places are taken or the holder has its share. If it
// returns true, the caller must call leave once.
func (p *Places[K]) Take(holder K) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(holder, p.most, p.each)
}

// take takes a place of most, if the holder has fewer than each. The caller holds the lock.
func (p *Places[K]) take(holder K, most, each int) (leave func(), ok bool) {
	if p.taken >= most || p.held[holder] >= each {
		return nil, false
	}
	p.taken++
	p.held[holder]++
	return func() { p.leave(holder) }, true
}

// TakeShare takes a place if the holder has less than a quarter of those that are left of most, or
// fewer than least. For holders that have fewer than least, there are as many places more. However
// many places some holders take, another one gets least: of 64 places, with 1 as the least, the
// first holder gets 13, the second 10, the third 8, and so on.
func (p *Places[K]) TakeShare(holder K, most, least int) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(holder, 2*most, max(least, (most-p.taken)/4))
}

func (p *Places[K]) leave(holder K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.held[holder]--; p.held[holder] == 0 {
		delete(p.held, holder)
	}
}

// Held returns how many places a holder has.
func (p *Places[K]) Held(holder K) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[holder]
}
