package simulate

import "time"

// leaseSet is a subject of which an instance leases units.
type leaseSet struct {
	lease     *lease
	remaining int64 // by the store's last answer
	rate      tickRate
	busy      bool // a call that prefetches is on its way
	backoff   time.Duration
}

type lease struct {
	left, size  int64
	sent, until time.Duration
	older       *lease
}

// tickRate counts checks in the current tick.
type tickRate struct {
	tick   time.Duration
	checks int64
}

func (t *tickRate) add(now time.Duration) int64 {
	if tick := now / (rateTickMS * time.Millisecond); tick != t.tick {
		t.tick, t.checks = tick, 0
	}
	t.checks++
	return t.checks
}

func (t *tickRate) units(now time.Duration) int64 {
	if t.tick != now/(rateTickMS*time.Millisecond) {
		return 0
	}
	return t.checks
}

// leaseAnswers answers a request from prefetched units, or prepares it to prefetch more.
func (i *instance) leaseAnswers(r *request) bool {
	set, now := i.leases[r.subject], r.started
	if set == nil {
		rate := i.rates[r.subject]
		if rate == nil {
			rate = new(tickRate)
			i.rates[r.subject] = rate
		}
		r.busy = rate.add(now) >= leaseBusy
		return false
	}
	held := set.lease
	if (held == nil || held.held(now) < max(1, held.size/leaseLow)) && !set.busy {
		if units := set.plan(now); units > 0 {
			set.busy, r.prefetch = true, units
			return false
		}
	}
	if held != nil && held.grant(now) {
		return true
	}
	set.rate.add(now)
	return false
}

// plan returns how many units a request should prefetch now.
func (s *leaseSet) plan(now time.Duration) int64 {
	if now < s.backoff {
		return 0
	}
	wanted, held := s.rate.units(now), int64(0)
	if l := s.lease; l != nil && now-l.sent < leaseHold {
		held = l.held(now)
		since := max(now-l.sent, time.Millisecond)
		wanted = max(wanted, int64(float64(l.size-held)*float64(leaseEvery)/float64(since)))
	}
	most := (s.remaining+held-1)/leaseShare - held
	if grant := min(wanted, most); grant >= leaseLeast {
		return grant
	}
	return 0
}

func (l *lease) held(now time.Duration) (units int64) {
	for ; l != nil; l = l.older {
		if now < l.until {
			units += l.left
		}
	}
	return units
}

// grant takes a unit, from the older lease first.
func (l *lease) grant(now time.Duration) bool {
	if o := l.older; o != nil && now < o.until && o.left > 0 {
		o.left--
		return true
	}
	if now < l.until && l.left > 0 {
		l.left--
		return true
	}
	return false
}

// settle handles the store's answer to a request of a leased subject, and reports whether it must
// be sent again. Units that are not used are stranded: the model does not return them.
func (i *instance) settle(r *request, decided bool) (again bool) {
	set, now := i.leases[r.subject], i.world.clock.now
	if set == nil {
		if r.busy && decided {
			i.leases[r.subject] = &leaseSet{remaining: r.remaining, rate: *i.rates[r.subject]}
			delete(i.rates, r.subject)
		}
		return false
	}
	units := r.prefetch
	r.prefetch = 0
	switch {
	case !decided:
		set.busy = set.busy && units == 0
		return false
	case units == 0:
		set.remaining = r.remaining
		return false
	}
	set.busy, set.remaining = false, r.remaining
	if !r.allowed {
		set.backoff = r.started + leaseBackoff
		return true
	}
	i.world.stats.prefetches++
	fresh := &lease{left: units, sent: r.started, until: r.started + leaseHold}
	if before := set.lease; before != nil && now < before.until && before.left > 0 {
		before.older, fresh.older = nil, before
	}
	fresh.size = fresh.held(now)
	set.lease = fresh
	return false
}
