package engine

import "sync"

// debtors are the tenants with local counters that must be settled. They take turns, and so do the
// counters of each of them, so that neither a tenant with very many debts nor debts that cannot be
// charged delay those of others until their windows have ended.
type debtors struct {
	mu      sync.Mutex // taken while a shard is locked, never the other way round
	tenants []*memoryTenant
	next    int
}

// owing are the counters of a tenant that must be settled. The lock of debtors guards it.
type owing struct {
	counters []*memoryCounter
	next     int
	place    int // index in debtors.tenants
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

// pick returns the keys of up to most counters whose turn it is: of each tenant an equal share, and
// those of a tenant one after the other.
func (d *debtors) pick(away func(key string) bool, most int) (keys []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.tenants) == 0 {
		return nil
	}
	share := max(1, most/len(d.tenants))
	for range d.tenants {
		if d.next++; d.next >= len(d.tenants) {
			d.next = 0
		}
		keys = d.tenants[d.next].owing.pick(keys, away, min(share, most-len(keys)))
		if len(keys) == most {
			break
		}
	}
	return keys
}

func (o *owing) pick(keys []string, away func(key string) bool, most int) []string {
	until := len(keys) + most
	for range o.counters {
		if o.next++; o.next >= len(o.counters) {
			o.next = 0
		}
		if kept := o.counters[o.next]; !away(kept.outage.counter.Key) {
			keys = append(keys, kept.key)
		}
		if len(keys) == until {
			break
		}
	}
	return keys
}

// owed claims the debt of a local counter; nil: there is none, or it is claimed. The caller must
// call settled.
func (e *Memory) owed(key string, nowMS, losses int64) *debt {
	shard := e.shardOf(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.counters[key].owed(nowMS, losses)
}

// allOwed claims the debts of up to most local counters. Those of a tenant follow one another.
func (e *Memory) allOwed(nowMS, losses int64, away func(key string) bool, most int) (owed []*debt) {
	for _, key := range e.debtors.pick(away, most) {
		if d := e.owed(key, nowMS, losses); d != nil {
			owed = append(owed, d)
		}
	}
	return owed
}

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
		of: m, losses: losses, units: min(max(0, units), c.Numbers.Ceiling()), call: Call{Tenant: m.ofTenant.id, Counters: []Counter{c}},
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
