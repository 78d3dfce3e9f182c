package engine

import (
	"encoding/binary"
	"hash/maphash"
	"sync"

	"weir/internal/limit"
)

// seen keeps what the store last said about counters that are in use, so that an outage does not
// begin with full limits. It has a fixed size: a counter that is not found is like one that was
// never used. No call waits for another one: if the place of a counter is locked, its state is
// not stored.
//
// Where there is no space for a new counter, it takes that of one of the tenant with most
// counters there. A tenant with millions of counters therefore leaves the others what they use,
// up to half of the space or, for several, equal parts.
type seen struct {
	seed maphash.Seed
	sets [seenSets]seenSet
}

const (
	seenSets = 1 << 13 // 65,536 counters in 2 MiB
	seenWays = 8
)

type seenSet struct {
	mu      sync.Mutex
	next    uint8            // where the search for an entry to replace begins
	tenants [seenWays]uint16 // a part of each entry's tenant ID
	entries [seenWays]seenEntry
}

// seenEntry is the state of a counter by one answer of the store.
type seenEntry struct {
	id            uint64
	used          int64
	atMS, resetMS int64 // by the store's clock
}

func newSeen() *seen { return &seen{seed: maphash.MakeSeed()} }

// id is never 0.
func (s *seen) id(c *Counter) uint64 {
	h := maphash.String(s.seed, c.Key)
	if c.Grouped {
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(s.seed, c.ID)
	}
	h ^= uint64(c.Numbers.Algorithm)<<56 ^ uint64(c.Numbers.WindowMS)*0x9e3779b97f4a7c15
	return max(h, 1)
}

// note keeps the verdict of the store on a counter of the tenant. It reports whether the counter
// holds less than before in the same window.
func (s *seen) note(tenant limit.TenantID, c *Counter, v *limit.Verdict, atMS int64) (less bool) {
	id := s.id(c)
	set := &s.sets[id%seenSets]
	if !set.mu.TryLock() {
		return false
	}
	defer set.mu.Unlock()
	e := set.find(id)
	used := c.Numbers.Used(v)
	if e == nil {
		if used == 0 {
			return false
		}
		e = set.replace(binary.LittleEndian.Uint16(tenant[len(tenant)-2:]))
		*e = seenEntry{id: id}
	}
	if atMS < e.atMS {
		return false // an answer that was overtaken
	}
	fixed := c.Numbers.Algorithm == limit.FixedWindow || c.Numbers.Algorithm == limit.FixedWindowFirstHit
	less = fixed && atMS > e.atMS && v.ResetMS == e.resetMS && used < e.used
	e.used, e.atMS, e.resetMS = used, atMS, v.ResetMS
	return less
}

func (s *seenSet) find(id uint64) *seenEntry {
	for i := range s.entries {
		if s.entries[i].id == id {
			return &s.entries[i]
		}
	}
	return nil
}

// replace returns the entry that a new counter of the tenant takes: one that is free, or else
// one of the tenant that has most, in turns. If the counter's own tenant is among those, it is
// its own.
func (s *seenSet) replace(tenant uint16) *seenEntry {
	victim, most := tenant, s.count(tenant)
	if most < seenWays {
		for i, other := range s.tenants {
			if s.entries[i].id == 0 {
				s.tenants[i] = tenant
				return &s.entries[i]
			}
			if n := s.count(other); n > most {
				victim, most = other, n
			}
		}
	}
	for s.tenants[s.next%seenWays] != victim {
		s.next++
	}
	i := s.next % seenWays
	s.next++
	s.tenants[i] = tenant
	return &s.entries[i]
}

func (s *seenSet) count(tenant uint16) (n int) {
	for _, other := range s.tenants {
		if other == tenant {
			n++
		}
	}
	return n
}

// last returns what was kept of a counter.
func (s *seen) last(c *Counter) (e seenEntry) {
	id := s.id(c)
	set := &s.sets[id%seenSets]
	set.mu.Lock()
	defer set.mu.Unlock()
	if found := set.find(id); found != nil {
		e = *found
	}
	return e
}

// forget forgets counters that were deleted or changed.
func (s *seen) forget(counters []Counter) {
	for i := range counters {
		id := s.id(&counters[i])
		set := &s.sets[id%seenSets]
		set.mu.Lock()
		if e := set.find(id); e != nil {
			*e = seenEntry{}
		}
		set.mu.Unlock()
	}
}

// chargedAt is the instant at which used units must be charged to an empty counter so that it is
// free again no earlier than the store's.
func (e *seenEntry) chargedAt(n *limit.Numbers) int64 {
	switch n.Algorithm {
	case limit.FixedWindowFirstHit, limit.SlidingWindowLog, limit.SlidingWindowBuckets:
		return min(e.atMS, e.resetMS-n.WindowMS)
	default:
		return e.atMS
	}
}
