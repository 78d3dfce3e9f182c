package engine

import "sync"

// debtors are the tenants with local counters that must be settled. They take turns, and so do the
// counters of each of them, so that neither a tenant with very many debts nor debts that cannot be
// charged delay those of others until their windows have ended. A tenant has one turn at a time: a
// tenant whose charges take long delays only itself.
type debtors struct {
	mu      sync.Mutex // taken while a shard is locked, never the other way round
	tenants []*memoryTenant
	next    int
	round   uint64
}

// owing are the counters of a tenant that must be settled. The lock of debtors guards it.
type owing struct {
	counters []*memoryCounter
	next     int
	place    int    // index in debtors.tenants
	busy     bool   // it has a turn
	rests    uint64 // the round in which it gets no other one; 0: none
}

// add adds a counter. Its shard is locked.
func (d *debtors) add(kept *memoryCounter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := &kept.ofTenant.owing
	if len(o.counters) == 0 {
		o.place = len(d.tenants)
		d.tenants = append(d.tenants, kept.ofTenant)
	}
	kept.outage.place = len(o.counters)
	o.counters = append(o.counters, kept)
}

// remove removes a counter. Its shard is locked.
func (d *debtors) remove(gone *memoryCounter) {
	if gone.outage == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	o := &gone.ofTenant.owing
	last := len(o.counters) - 1
	moved := o.counters[last]
	o.counters[gone.outage.place], moved.outage.place = moved, gone.outage.place
	o.counters[last] = nil
	if o.counters = o.counters[:last]; last > 0 {
		return
	}
	o.counters = nil
	last = len(d.tenants) - 1
	other := d.tenants[last]
	d.tenants[o.place], other.owing.place = other, o.place
	d.tenants[last] = nil
	d.tenants = d.tenants[:last]
	if last == 0 {
		d.tenants = nil
	}
}

// begin begins a round: those that rest may have turns again.
func (d *debtors) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.round++
}

// done ends a turn. Where nothing was charged, the next turn is in another round.
func (d *debtors) done(tenant *memoryTenant, charged bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	tenant.owing.busy = false
	if !charged {
		tenant.owing.rests = d.round
	}
}

const (
	// mostLooked is how many tenants and counters pick looks at, because others wait for its lock:
	// calls that add a local counter.
	mostLooked = 1_000
	// leastLooked is how many counters of a tenant it looks at, if there are many tenants. Those of
	// a tenant are usually on one server.
	leastLooked = 16
)

// pick gives a turn to a tenant, if it finds one that is ready for it, and returns the keys of some
// of its counters: its equal share of most, one after the other. What it has not looked at is next.
func (d *debtors) pick(away func(key string) bool, most int) (*memoryTenant, []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.tenants) == 0 {
		return nil, nil
	}
	share, look := max(1, most/len(d.tenants)), max(leastLooked, mostLooked/len(d.tenants))
	left := mostLooked
	for range d.tenants {
		if left--; left <= 0 {
			break
		}
		if d.next++; d.next >= len(d.tenants) {
			d.next = 0
		}
		tenant := d.tenants[d.next]
		if tenant.owing.busy || tenant.owing.rests == d.round {
			continue
		}
		keys, looked := tenant.owing.pick(away, share, min(look, left))
		if len(keys) > 0 {
			tenant.owing.busy = true
			return tenant, keys
		}
		left -= looked
		tenant.owing.rests = d.round
	}
	return nil, nil
}

// pick returns the keys of up to most counters, and how many it has looked at: at most look.
func (o *owing) pick(away func(key string) bool, most, look int) (keys []string, looked int) {
	for looked < min(look, len(o.counters)) {
		looked++
		if o.next++; o.next >= len(o.counters) {
			o.next = 0
		}
		if kept := o.counters[o.next]; !away(kept.outage.counter.Key) {
			keys = append(keys, kept.key)
		}
		if len(keys) == most {
			break
		}
	}
	return keys, looked
}

// owed claims the debt of a local counter; nil: there is none, or it is claimed. The caller must
// call settled.
func (e *Memory) owed(key string, nowMS, losses int64) *debt {
	shard := e.shardOf(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.counters[key].owed(nowMS, losses)
}

// turn is some debts of a tenant, which are charged together. Without a tenant, there is no turn.
type turn struct {
	of   *memoryTenant
	owed []*debt
}

// turn claims the debts of some local counters of the tenant whose turn it is. The caller must call
// settled for each of them, and then done.
func (e *Memory) turn(nowMS, losses int64, away func(key string) bool, most int) turn {
	for {
		tenant, keys := e.debtors.pick(away, most)
		t := turn{of: tenant}
		for _, key := range keys {
			if d := e.owed(key, nowMS, losses); d != nil {
				t.owed = append(t.owed, d)
			}
		}
		if tenant == nil || len(t.owed) > 0 {
			return t
		}
		e.done(t, false) // checks have claimed them
	}
}

// round begins a round of turns.
func (e *Memory) round() { e.debtors.begin() }

// done ends a turn.
func (e *Memory) done(t turn, charged bool) { e.debtors.done(t.of, charged) }

// owed is the units of the counter that the store does not have: those beyond the state with which
// it began. If the store has lost its counters, it does not have that state either, and all units
// are owed, unless others used some of them.
func (m *memoryCounter) owed(nowMS, losses int64) *debt {
	if m == nil || m.outage == nil || m.outage.claimed != nil {
		return nil
	}
	o := m.outage
	o.claimed, o.more = m.state.Clone(), false
	n := &o.numbers
	units := n.Ceiling() - m.state.Remaining(n, nowMS)
	if o.base != nil && (o.ofOthers || losses == o.losses) {
		units -= n.Ceiling() - o.base.Remaining(n, nowMS)
	}
	c := o.counter
	c.Numbers.PenaltyMS, c.Shadow, c.Cost = 0, false, 0
	return &debt{
		of: m, losses: losses, units: min(max(0, units), c.Numbers.Ceiling()), call: Call{Tenant: m.ofTenant.id, Space: m.tier.space(), Counters: []Counter{c}},
	}
}

// settled ends a claim. A counter whose debt is paid is removed, unless it was charged since.
func (e *Memory) settled(d *debt, outcome int) {
	kept := d.of
	shard := e.shardOf(kept.key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.counters[kept.key] != kept { // it has expired, or was reset
		return
	}
	o := kept.outage
	switch {
	case outcome == debtPaid && !o.more:
		e.remove(shard, kept)
		return
	case outcome == debtPaid, outcome == debtUnknown:
		// What was claimed is not owed any more, also if the store has lost its counters before.
		o.base, o.losses = o.claimed, d.losses
	}
	o.claimed = nil
}
