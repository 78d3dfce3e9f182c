package engine

import "weir/internal/limit"

const (
	entriesPerCounter = 10
	// entriesOfCounter is how many entries are part of the size of a counter, and not counted.
	entriesOfCounter = 16
)

// entryBounds returns the bounds of entries, with their defaults. The other options have theirs.
func (o *MemoryOptions) entryBounds() entryBounds {
	most := entryBounds{int64(o.MaxEntries), int64(o.MaxEntriesPerTenant)}
	if most.all == 0 {
		most.all = entriesPerCounter * int64(o.MaxCounters)
	}
	if most.perTenant == 0 {
		most.perTenant = entriesPerCounter * int64(o.MaxPerTenant)
	}
	return most
}

// full reports whether the tenant, or all tenants together, hold as much as they may.
func (e *Memory) full(tenant limit.TenantID) bool {
	if e.counters.Load() >= e.maxCounters || e.entries.Load() >= e.most.all {
		return true
	}
	e.mu.RLock()
	held := e.tenants[tenant]
	e.mu.RUnlock()
	return held != nil && (held.counters.Load() >= e.maxPerTenant || held.entries.Load() >= e.most.perTenant)
}

func (e *Memory) ofTenant(tenant limit.TenantID) *memoryTenant {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := e.tenants[tenant]
	if held == nil {
		held = new(memoryTenant)
		e.tenants[tenant] = held
	}
	return held
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
// there are few of them, and they are coarse.
func (e *Memory) setEntries(kept *memoryCounter, entries int64) {
	if more := entries - kept.entries; more != 0 && kept.ofTenant != nil {
		kept.entries = entries
		kept.ofTenant.entries.Add(more)
		e.entries.Add(more)
	}
}
