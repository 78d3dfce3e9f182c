package engine

import "weir/internal/limit"

const (
	entriesPerCounter = 10
	// entriesOfCounter is how many entries are part of the size of a counter, and not counted.
	entriesOfCounter = 16
)

// bounds are the most that all tenants may hold, and the most that one may hold while the others
// hold nothing. The more all hold, the less one may hold: the same share of what is free. So a few
// tenants cannot take everything, and one that comes late still gets a part.
//
// Example: all may hold 1000, and one 100. Alone, it holds 100, which is a ninth of the 900 that
// are free. The second one gets 90 and the third one 81.
type bounds struct{ all, perTenant int64 }

// reached reports whether a tenant that holds so much of a total may hold no more.
func (b bounds) reached(own, total int64) bool {
	return total >= b.all || own*(b.all-b.perTenant) >= b.perTenant*(b.all-total)
}

// memoryBounds are the bounds of a Memory.
type memoryBounds struct {
	counters, entries, overflow bounds
	apart                       [spaces]int64 // of the spaces that are no tenant's
}

// bounds returns the bounds with their defaults. MaxCounters and MaxPerTenant have theirs.
func (o *MemoryOptions) bounds() memoryBounds {
	counters := bounds{int64(o.MaxCounters), int64(o.MaxPerTenant)}
	most := memoryBounds{
		counters: counters,
		entries:  bounds{int64(o.MaxEntries), int64(o.MaxEntriesPerTenant)},
		overflow: bounds{int64(o.MaxOverflow), int64(o.MaxOverflowPerTenant)},
	}
	most.apart[QuotaSpace], most.apart[ThrottleSpace] = int64(o.MaxQuotas), int64(o.MaxThrottles)
	if o.MaxQuotas == 0 {
		most.apart[QuotaSpace] = counters.all
	}
	if o.MaxThrottles == 0 {
		most.apart[ThrottleSpace] = counters.all / 2
	}
	if most.entries.all == 0 {
		most.entries.all = entriesPerCounter * counters.all
	}
	if most.entries.perTenant == 0 {
		most.entries.perTenant = entriesPerCounter * counters.perTenant
	}
	if most.overflow.perTenant == 0 {
		most.overflow.perTenant = max(counters.perTenant/2, overflowSlots)
	}
	if most.overflow.all == 0 {
		most.overflow.all = max(counters.all/2, most.overflow.perTenant)
	}
	return most
}

// held returns what a tenant holds.
func (e *Memory) held(tenant limit.TenantID) (counters, entries, overflow int64) {
	e.mu.RLock()
	t := e.tenants[tenant]
	e.mu.RUnlock()
	if t == nil {
		return 0, 0, 0
	}
	return t.counters.Load(), t.entries.Load(), t.overflow.Load()
}

// full reports whether the tenant may have no more counters of its keys.
func (e *Memory) full(tenant limit.TenantID) bool {
	counters, entries, _ := e.held(tenant)
	return e.most.counters.reached(counters, e.counters.Load()) || e.most.entries.reached(entries, e.entries.Load())
}

// hold counts a new counter of a tenant.
func (e *Memory) hold(tenant limit.TenantID, of tier) *memoryTenant {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenants[tenant]
	if t == nil {
		t = &memoryTenant{id: tenant}
		e.tenants[tenant] = t
	}
	e.count(t, of, 1)
	return t
}

// release counts a counter that was removed. A tenant without counters is forgotten.
func (e *Memory) release(t *memoryTenant, of tier) {
	e.count(t, of, -1)
	if t.held() > 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.held() == 0 && e.tenants[t.id] == t {
		delete(e.tenants, t.id)
	}
}

// held returns how many counters the tenant has.
func (t *memoryTenant) held() int64 { return t.counters.Load() + t.overflow.Load() + t.apart.Load() }

func (e *Memory) count(t *memoryTenant, of tier, more int64) {
	switch of {
	case ownCounter:
		t.counters.Add(more)
		e.counters.Add(more)
	case quotaCounter:
		t.apart.Add(more)
		e.apart[QuotaSpace].Add(more)
	case throttleCounter:
		t.apart.Add(more)
		e.apart[ThrottleSpace].Add(more)
	case throttleShared:
		t.apart.Add(more)
	default:
		t.overflow.Add(more)
		e.overflow.Add(more)
	}
}

// fit makes a state that grows coarse while its tenant is full. The state may be nil.
func (e *Memory) fit(tenant limit.TenantID, state limit.State) {
	if s, grows := state.(limit.Growing); grows {
		s.Coarsen(e.full(tenant))
	}
}

// weigh counts the entries of a counter after a call. The shard is locked.
func (e *Memory) weigh(kept *memoryCounter) {
	if s, grows := kept.state.(limit.Growing); grows {
		entries := s.Entries()
		if kept.outage != nil {
			if base, grows := kept.outage.base.(limit.Growing); grows {
				entries += base.Entries()
			}
		}
		e.setEntries(kept, max(0, entries-entriesOfCounter))
	}
}

// setEntries sets how many entries of a counter are counted. Those of an overflow counter are not:
// the number of these is bounded, and they are coarse.
func (e *Memory) setEntries(kept *memoryCounter, entries int64) {
	if more := entries - kept.entries; more != 0 && kept.overflow == nil {
		kept.entries = entries
		kept.ofTenant.entries.Add(more)
		e.entries.Add(more)
	}
}
