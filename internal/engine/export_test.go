package engine

import "slices"

// LeaseSets returns the number of sets of counters that are leased, or may be.
func (s *Stack) LeaseSets() int { return int(s.leases.count.Load()) }

// LeaseHeld returns the units that s holds: those that can be granted, and all that were charged
// and not used, including those that are about to be returned.
func (s *Stack) LeaseHeld() (toGrant, charged int64) {
	now := s.clock()
	s.leases.sets.Range(func(_ uint64, set *leaseSet) bool {
		newest := set.lease.Load()
		toGrant += newest.held(now)
		for l := newest; l != nil; l = l.older.Load() {
			charged += max(0, l.left.Load()) + l.cushion
		}
		return true
	})
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	for _, p := range slices.Concat(s.leases.pending, s.leases.moving) {
		charged += p.units
	}
	return toGrant, charged
}

// Kept returns how many denials are remembered, with those that have ended.
func (d *Denials) Kept() (n int) {
	for i := range d.slots {
		if d.slots[i].Load() != nil {
			n++
		}
	}
	return n
}
