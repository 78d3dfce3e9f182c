package weir

import (
	"context"
	"sync"
	"time"
)

const (
	returnsInFlight = 16
	returnsWaiting  = 2 * leaseSets // as many as leases can be held
	returnRetry     = 250 * time.Millisecond
	returnRetryMost = 2 * time.Second
	// returnKept is how long after the end of a lease the server certainly has its record: for 10
	// seconds, less one for the way of the return.
	returnKept    = 9 * time.Second
	returnClosing = time.Second // how long Close begins returns
)

// returns sends what leases return: those of the background and of WithLease. The server counts a
// return once, so one without an answer is sent again, for as long as the server has a record of
// its lease. Otherwise what was decided from the lease would never be metered.
type returns struct {
	client *Client
	every  time.Duration // between inspections; tests inspect by hand
	places chan struct{} // one for each request in flight
	ending sync.Mutex    // held by close

	mu      sync.Mutex          // guards the fields below
	blocks  map[*lease]struct{} // of WithLease, which have not ended
	waiting []*leaseReturn      // the oldest first
	stop    chan struct{}       // nil: the background does not run
	ended   chan struct{}       // closed when it has ended
	closing bool                // close runs, so the background does not start
}

// A leaseReturn is units to return, and what was decided.
type leaseReturn struct {
	id                                  string
	units, allowed, denied, deniedUnits int64

	until time.Time // when the server may have forgotten the lease
	after time.Time // when to send
	pause time.Duration
}

func newReturns(c *Client) *returns {
	return &returns{client: c, every: leaseInspect, places: make(chan struct{}, returnsInFlight), blocks: map[*lease]struct{}{}}
}

// giveUp ends a lease, and returns its return; ok is false if it had ended.
func (h *lease) giveUp() (one *leaseReturn, ok bool) {
	left, allowed, ok := h.end()
	return &leaseReturn{id: h.id, units: left, allowed: allowed, until: h.sentAt.Add(h.life + returnKept)}, ok
}

// hold ends a lease of WithLease when its time is over, if release does not before. A block can
// last longer than the server has the record of its lease.
func (r *returns) hold(h *lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocks[h] = struct{}{}
	r.start()
}

// release ends a lease at the end of its block, and returns its return. ok is false if it had
// ended.
func (r *returns) release(h *lease) (one *leaseReturn, ok bool) {
	r.mu.Lock()
	delete(r.blocks, h)
	r.mu.Unlock()
	return h.giveUp()
}

// add queues a return. If there are too many, the oldest is lost.
func (r *returns) add(one *leaseReturn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) >= returnsWaiting {
		r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	}
	r.waiting = append(r.waiting, one)
	r.start()
}

// again queues a return without an answer. An attempt that the breaker has refused does not count.
func (r *returns) again(one *leaseReturn, failure *NoDecision) {
	pause := returnRetry
	if failure.Cause != CauseBreakerOpen {
		one.pause = min(max(2*one.pause, returnRetry), returnRetryMost)
		pause = one.pause
	}
	if one.after = r.client.clock.Now().Add(pause); !one.after.After(one.until) {
		r.add(one)
	}
}

// start starts the background, if it does not run and close does not. The caller holds mu.
func (r *returns) start() {
	if r.stop == nil && !r.closing {
		r.stop, r.ended = make(chan struct{}), make(chan struct{})
		go r.run(r.stop, r.ended)
	}
}

// run ends blocks and sends returns, until there are none.
func (r *returns) run(stop, ended chan struct{}) {
	defer close(ended)
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if !r.round(stop) || r.rest(stop) {
				return
			}
		case <-stop:
			return
		}
	}
}

// rest reports whether nothing waits, and then marks the background as ended. Returns in flight
// start it again if they fail.
func (r *returns) rest(stop chan struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.blocks) > 0 || len(r.waiting) > 0 {
		return false
	}
	if r.stop == stop {
		r.stop = nil
	}
	return true
}

// round ends blocks whose time is over, and sends the returns that are due. It returns false if the
// client is closed meanwhile.
func (r *returns) round(stop chan struct{}) bool {
	r.inspect()
	due := r.due()
	for i, one := range due {
		attempt := func() {
			if failure := r.client.returnLease(context.Background(), one); failure != nil {
				r.again(one, failure)
			}
		}
		if !r.background(stop, attempt) {
			for _, one := range due[i:] {
				r.add(one)
			}
			return false
		}
	}
	return true
}

// inspect ends the leases of blocks whose time is over.
func (r *returns) inspect() {
	now := r.client.clock.Now()
	var over []*lease
	r.mu.Lock()
	for h := range r.blocks {
		if !h.live(now) {
			over = append(over, h)
			delete(r.blocks, h)
		}
	}
	r.mu.Unlock()
	for _, h := range over {
		if one, ok := h.giveUp(); ok {
			r.add(one)
		}
	}
}

// due removes and returns the returns that are due. While the breaker refuses calls, none is, and
// those whose leases the server may have forgotten are lost.
func (r *returns) due() (due []*leaseReturn) {
	now := r.client.clock.Now()
	blocked := r.client.brk.blocked(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := r.waiting[:0]
	for _, one := range r.waiting {
		switch {
		case blocked && now.After(one.until):
		case blocked || one.after.After(now):
			waiting = append(waiting, one)
		default:
			due = append(due, one)
		}
	}
	clear(r.waiting[len(waiting):])
	r.waiting = waiting
	return due
}

// background runs a request in a goroutine of its own, when there is a place for it. It returns
// false if stop is closed before that.
func (r *returns) background(stop chan struct{}, request func()) bool {
	select {
	case r.places <- struct{}{}:
	case <-stop:
		return false
	}
	go func() {
		defer func() { <-r.places }()
		request()
	}()
	return true
}

// await waits until no request is in flight.
func (r *returns) await() {
	for range returnsInFlight {
		r.places <- struct{}{}
	}
	for range returnsInFlight {
		<-r.places
	}
}

// close sends each return that waits once more. Blocks that have not ended return their units
// later.
func (r *returns) close() {
	r.ending.Lock()
	defer r.ending.Unlock()
	r.mu.Lock()
	stop, ended := r.stop, r.ended
	r.stop, r.closing = nil, true // a background would take what is to be sent below
	r.mu.Unlock()
	if stop != nil {
		close(stop)
		<-ended
	}
	r.await() // one that fails waits again
	enough := make(chan struct{})
	timer := time.AfterFunc(returnClosing, func() { close(enough) })
	defer timer.Stop()
	r.mu.Lock()
	last := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	for _, one := range last {
		if !r.background(enough, func() { r.client.returnLease(context.Background(), one) }) {
			break
		}
	}
	r.await()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closing = false
	if len(r.blocks) > 0 || len(r.waiting) > 0 {
		r.start()
	}
}
