package weir

import (
	"context"
	"errors"
	"time"
)

// start starts the background, if it does not run. The caller holds mu.
func (l *leases) start() {
	if l.running {
		return
	}
	l.running = true
	l.stop, l.ended = make(chan struct{}), make(chan struct{})
	go l.run(l.stop, l.ended)
}

// run requests units, and ends leases that are over or not used. It ends when no kind of check is
// frequent.
func (l *leases) run(stop, ended chan struct{}) {
	defer close(ended)
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	for {
		select {
		case set := <-l.queue:
			if !l.background(stop, func() { l.ask(set) }) {
				set.busy.Store(false)
				return
			}
		case <-ticker.C:
			l.inspect(l.client.clock.Now(), false)
			if l.rest() {
				return
			}
		case <-stop:
			return
		}
	}
}

// background runs a request in a goroutine of its own, when there is a place for it. It returns
// false if the client is closed before that.
func (l *leases) background(stop chan struct{}, request func()) bool {
	select {
	case l.places <- struct{}{}:
	case <-stop:
		return false
	}
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		defer func() { <-l.places }()
		request()
	}()
	return true
}

// rest reports whether there is nothing to do, and then marks the background as ended.
func (l *leases) rest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count.Load() > 0 || len(l.queue) > 0 || len(l.places) > 0 {
		return false
	}
	l.running = false
	return true
}

// wanted returns how many units to request: those that this kind of check used since the last
// request, for leaseAhead, or for as long as the server lets this client hold them. The caller
// holds set.busy.
func (s *leaseSet) wanted(now time.Time) int64 {
	used, ahead := s.missed.Swap(0), leaseAhead
	if held := s.lease.Load(); held != nil {
		used += held.units - max(0, held.left.Load())
		ahead = max(ahead, held.life)
	}
	since := max(now.Sub(s.askedAt), time.Millisecond)
	s.askedAt = now
	wanted := float64(used) * float64(ahead) / float64(since)
	return int64(min(max(wanted, leaseLeast), maxCost))
}

// ask requests units of a set, and stores them. The caller has set.busy, which ask releases.
func (l *leases) ask(set *leaseSet) {
	defer set.busy.Store(false)
	c := l.client
	sentAt := c.clock.Now()
	granted, denial, failure, err := c.requestLease(context.Background(), &set.check, func() int64 { return set.wanted(sentAt) }, sentAt)
	switch refused := (*refusedLease)(nil); {
	case errors.As(err, &refused):
		set.backOff(sentAt, refused.wait)
	case err != nil: // a check gets the same error, and returns it
		set.backOff(sentAt, leaseImpossible)
	case failure != nil:
		set.backOff(sentAt, leaseBackoff)
	case denial != nil:
		c.rememberDenial(&set.check, denial, sentAt)
		wait, known := denial.RetryAfter()
		if !known {
			wait = leaseNotNow
		}
		set.backOff(sentAt, min(max(wait, leaseBackoff/4), leaseNotNow))
	default:
		if granted.units < leaseLeast { // so little is left that leases would cost more than checks
			set.backOff(sentAt, leaseNotNow)
		}
		l.store(set, granted)
	}
}

func (s *leaseSet) backOff(now time.Time, wait time.Duration) {
	s.until.Store(now.Add(wait).UnixNano())
}

// store makes a lease the one that a set grants, after what is left of the last one.
func (l *leases) store(set *leaseSet, fresh *lease) {
	now := l.client.clock.Now()
	if before := set.lease.Load(); before != nil {
		if oldest := before.older.Swap(nil); oldest != nil {
			l.retire(set, oldest)
		}
		if before.live(now) && before.left.Load() > 0 {
			fresh.older.Store(before)
		} else {
			l.retire(set, before)
		}
	}
	set.lease.Store(fresh)
}

// retire ends a lease and queues its return.
func (l *leases) retire(set *leaseSet, gone *lease) {
	r, ok := gone.giveUp()
	if !ok {
		return
	}
	r.denied, r.deniedUnits = set.denied.Swap(0), set.units.Swap(0)
	l.client.returns.add(r)
}

// retireAll ends all leases of a set. The caller holds set.busy.
func (l *leases) retireAll(set *leaseSet) {
	newest := set.lease.Swap(nil)
	if newest == nil {
		return
	}
	if older := newest.older.Swap(nil); older != nil {
		l.retire(set, older)
	}
	l.retire(set, newest)
}

// inspect ends leases whose time is over or that are not used, and removes sets that are not
// frequent any more. If all is true, it removes every set.
func (l *leases) inspect(now time.Time, all bool) {
	for i := range l.shards {
		sets := l.shards[i].Load()
		if sets == nil {
			continue
		}
		for _, set := range *sets {
			if !set.busy.CompareAndSwap(false, true) {
				continue
			}
			if l.inspectSet(set, now, all) {
				l.remove(set)
			} else {
				set.busy.Store(false)
			}
		}
	}
}

// inspectSet reports whether a set is to be removed. The caller holds set.busy.
func (l *leases) inspectSet(set *leaseSet, now time.Time, all bool) (remove bool) {
	newest := set.lease.Load()
	used := leaseUse{left: newest.held(now), missed: set.missed.Load() + set.denied.Load(), since: now}
	if used.left != set.idle.left || used.missed != set.idle.missed {
		set.idle = used
	}
	idle := now.Sub(set.idle.since) >= leaseIdle
	switch {
	case all || idle || newest != nil && !newest.live(now):
		l.retireAll(set)
	case newest != nil:
		if older := newest.older.Load(); older != nil && !older.live(now) && newest.older.CompareAndSwap(older, nil) {
			l.retire(set, older)
		}
	}
	// The set of a rule that cannot be leased stays, so that no request is sent for it.
	return all || idle && now.UnixNano() >= set.until.Load()
}

// close ends all leases. Afterwards, every check is sent.
func (l *leases) close() {
	if l == nil || l.closed.Swap(true) {
		return
	}
	l.mu.Lock()
	running := l.running
	l.running = false
	l.mu.Unlock()
	if running {
		close(l.stop)
		<-l.ended
	}
	for {
		select {
		case set := <-l.queue:
			set.busy.Store(false)
			continue
		default:
		}
		break
	}
	l.work.Wait() // a request that is under way may still be granted
	l.inspect(l.client.clock.Now(), true)
}
