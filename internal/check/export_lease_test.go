package check

// LookAfterLeases gives back what nobody asks for, which a Checker whose clock is handed in does not
// do by itself.
func (c *Checker) LookAfterLeases() { c.leases.lookAt(c.clock(), false) }

// LeaseSets is how many sets of counters are leased, or may be.
func (c *Checker) LeaseSets() int { return int(c.leases.count.Load()) }

// LeaseHeld returns the units that c holds: those to be given out, and all that were charged and
// are not used, what is about to go back included.
func (c *Checker) LeaseHeld() (toGive, charged int64) {
	now := c.clock()
	c.leases.sets.Range(func(_ uint64, set *leaseSet) bool {
		newest := set.lease.Load()
		toGive += newest.held(now)
		for l := newest; l != nil; l = l.older.Load() {
			charged += max(0, l.left.Load()) + l.cushion
		}
		return true
	})
	c.leases.mu.Lock()
	defer c.leases.mu.Unlock()
	for _, p := range c.leases.pending {
		charged += p.units
	}
	return toGive, charged
}
