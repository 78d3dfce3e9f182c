package places

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Pace bounds the time that background work takes of something that others use, too. There is one
// place. After each piece of work, it stays empty for a rest in proportion, unless that was short.
// Holders that wait share the time: next is the one with the least so far, so that one with long
// or very much work delays its own.
//
// An example, with a rest of nine times: a has the place for 4 ms, again and again, and it stays
// empty for 36 ms each time. b comes, with 50 pieces of work of 0.1 ms. As soon as the rest is
// over, most of them are done, because b has used less than a.
type Pace[K comparable] struct {
	rest  int           // times as long as the work
	ahead time.Duration // by which due may be in the future

	mu      sync.Mutex
	taken   bool
	timing  bool      // a timer runs, after which somebody is next
	due     time.Time // when all rests are over
	waiting []*paced[K]
	used    map[K]time.Duration // of holders ahead of least, and of some that are not any more
	least   time.Duration       // what the holder had used that was served last
	most    int                 // how many used may have, until those are removed that are not ahead
}

// forgetFrom is up to how many holders are not looked at, to remove those that are not ahead.
const forgetFrom = 64

// paced waits for the place.
type paced[K comparable] struct {
	holder K
	ready  chan struct{} // closed when it has the place
}

// NewPace returns a pace with rests of so many times the work. Work of up to free needs no rest
// before the next, as long as it is not more than that in the long run.
func NewPace[K comparable](rest int, free time.Duration) *Pace[K] {
	return &Pace[K]{rest: rest, ahead: free * time.Duration(rest+1), used: map[K]time.Duration{}, most: forgetFrom}
}

// Take waits for the place, until ctx ends. If it returns no error, the caller must call Leave
// once.
func (p *Pace[K]) Take(ctx context.Context, holder K) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &paced[K]{holder: holder, ready: make(chan struct{})}
	p.mu.Lock()
	p.waiting = append(p.waiting, w)
	p.next()
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.waiting, w)
	if at < 0 { // it got the place at this moment
		return nil
	}
	p.waiting = slices.Delete(p.waiting, at, at+1)
	return ctx.Err()
}

// Leave leaves the place. The work of the holder took so long of what others use.
func (p *Pace[K]) Leave(holder K, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = false
	p.used[holder] = p.usedBy(holder) + took
	p.forget()
	if now := time.Now(); p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(took * time.Duration(p.rest+1))
	p.next()
}

// usedBy returns the time that counts for a holder: one that comes later is not ahead of the others
// by all that they have used before. The caller holds the lock.
func (p *Pace[K]) usedBy(holder K) time.Duration { return max(p.least, p.used[holder]) }

// forget removes holders that are not ahead, of which usedBy needs no entry. It looks at all only
// when they are twice as many as were left the last time, so that Leave takes the same time however
// many there are. The caller holds the lock.
func (p *Pace[K]) forget() {
	if len(p.used) <= p.most {
		return
	}
	maps.DeleteFunc(p.used, func(_ K, used time.Duration) bool { return used <= p.least })
	p.most = max(forgetFrom, 2*len(p.used))
}

// next gives the place to the holder with the least, of those that came first, or sets a timer for
// that. The caller holds the lock.
func (p *Pace[K]) next() {
	if p.taken || p.timing || len(p.waiting) == 0 {
		return
	}
	if rest := time.Until(p.due.Add(-p.ahead)); rest > 0 {
		p.timing = true
		time.AfterFunc(rest, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.timing = false
			p.next()
		})
		return
	}
	first := 0
	for i, w := range p.waiting {
		if p.usedBy(w.holder) < p.usedBy(p.waiting[first].holder) {
			first = i
		}
	}
	w := p.waiting[first]
	p.waiting = slices.Delete(p.waiting, first, first+1)
	p.least = p.usedBy(w.holder)
	p.taken = true
	close(w.ready)
}
