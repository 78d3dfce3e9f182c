package engine

import "weir/internal/limit"

// A tenant that may have no more counters of its own keys has overflow counters, which keys share
// by their hash. A shared counter holds at least the units of each of its keys, so it denies at
// least what a counter of the key's own would deny.
//
// Each window of a rule needs its own overflow counters, and a tenant can have very many windows.
// Overflow counters are therefore bounded, too, and there are three tiers:
//
//	fine     while the tenant has less than half of its bound: overflowSlots for each window
//	coarse   up to the bound: one for each window and shard
//	none     beyond it: a key that has no counter to share is denied
//
// A key must not lose its units when it changes its tier. A finer counter therefore begins with the
// state of the coarser one that the key used until then, and so does the key's own counter.
//
// Quotas of tenants are counters of one tenant, the platform, and never share any: its subjects are
// the other tenants, which would use up one another's quotas. As many are needed as an instance
// serves tenants. They have a space of their own, so that no tenant can take it. Beyond its bound,
// they allow.
//
// Throttles have a space of their own, too: sign-ins must not depend on what tenants count. Beyond
// its bound they share fine counters, many because everybody's attempts are in them. There are
// never coarse ones: the limits and windows are those in the code, so their number needs no bound.
type tier uint8

const (
	ownCounter tier = iota
	fineCounter
	coarseCounter
	noCounter
	quotaCounter    // the key's own, in QuotaSpace
	throttleCounter // the key's own, in ThrottleSpace
	throttleShared
)

// shared reports whether keys share the counters.
func (t tier) shared() bool { return t == fineCounter || t == coarseCounter || t == throttleShared }

// space returns the space of a counter.
func (t tier) space() Space {
	switch t {
	case quotaCounter:
		return QuotaSpace
	case throttleCounter, throttleShared:
		return ThrottleSpace
	}
	return TenantSpace
}

const (
	// overflowSlots is the number of fine overflow counters of a tenant for each algorithm and
	// window.
	overflowSlots = 4096
	// throttleSlots is the number of shared counters of throttles for each limit and window. A
	// password takes long to compare, so an instance on two processors allows about 40 attempts per
	// second. In a window of a quarter of an hour, 36 000 attempts leave two in each counter.
	throttleSlots = 16_384
	// overflowIdleMS is how long an overflow counter is kept after its last charge, while the store
	// that it stands in for is available. It is not settled, because nobody knows which of its keys
	// used how much, so it is of use only if the store fails again soon. Its window may be a year.
	overflowIdleMS int64 = 600_000
)

// overflow is what an overflow counter has more than others.
type overflow struct {
	key     overflowKey
	of      string // Counter.Key of one of its keys
	charged int64  // last, on the engine's clock
}

type overflowKey struct {
	tenant                limit.TenantID
	slot                  uint16
	algorithm             limit.Algorithm
	calendar              limit.Calendar
	windowMS, precisionMS int64
	schedule              uint64 // of a calendar's windows
	limit                 int64  // of throttles, of all instances; 0: keys with other limits share the counter, too
}

// overflowKeys returns the overflow counters of a key. The bits that select the shard are part of
// both slots, so they are in the key's own shard and need no other lock.
func overflowKeys(tenant limit.TenantID, hash uint64, n *limit.Numbers, slots uint64) (fine, coarse overflowKey) {
	fine = overflowKey{
		tenant: tenant, slot: uint16(hash % slots), algorithm: n.Algorithm,
		calendar: n.Calendar, windowMS: n.WindowMS, precisionMS: n.PrecisionMS,
	}
	if n.Bounds != nil {
		fine.schedule = n.Bounds.Schedule()
	}
	coarse = fine
	coarse.slot = uint16(slots + hash%memoryShards)
	return fine, coarse
}

// place is where a counter is, or where it will be.
type place struct {
	kept   *memoryCounter // nil: it does not exist
	tier   tier           // of a new counter
	shared overflowKey    // of a new overflow counter
	from   *memoryCounter // the coarser counter that a new one begins with; nil: none
	base   limit.State    // of a new counter in an outage: what it begins with, if that is from others
}

// place returns the place of the key of counter i. Its shard is locked.
func (e *Memory) place(shard *memoryShard, c *Call, i int, key string, hash uint64) place {
	if kept := shard.counters[key]; kept != nil {
		return place{kept: kept}
	}
	if c.Space != TenantSpace {
		return e.placeApart(shard, c, i, hash)
	}
	n := &c.Counters[i].Numbers
	tenant := c.Tenant
	full := e.full(tenant)
	if !full && len(shard.overflow) == 0 {
		return place{}
	}
	fine, coarse := overflowKeys(tenant, hash, n, overflowSlots)
	inFine, inCoarse := shard.overflow[fine], shard.overflow[coarse]
	_, _, own := e.held(tenant)
	total := e.overflow.Load()
	switch {
	case !full && inFine != nil:
		return place{from: inFine}
	case !full:
		return place{from: inCoarse}
	case inFine != nil:
		return place{kept: inFine, tier: fineCounter}
	case !e.most.overflow.reached(2*own, 2*total):
		return place{tier: fineCounter, shared: fine, from: inCoarse}
	case inCoarse != nil:
		return place{kept: inCoarse, tier: coarseCounter}
	case !e.most.overflow.reached(own, total):
		return place{tier: coarseCounter, shared: coarse}
	default:
		return place{tier: noCounter, shared: coarse}
	}
}

// placeApart returns the place of the key of counter i, which has no counter of its own, and whose
// space is not its tenant's.
func (e *Memory) placeApart(shard *memoryShard, c *Call, i int, hash uint64) place {
	full := e.apart[c.Space].Load() >= e.most.apart[c.Space]
	if c.Space == QuotaSpace {
		if full {
			return place{tier: noCounter}
		}
		return place{tier: quotaCounter}
	}
	key, _ := overflowKeys(c.Tenant, hash, &c.Counters[i].Numbers, throttleSlots)
	key.limit = c.fullLimit(i) // the attempts from a site are more than one address may make
	shared := shard.overflow[key]
	switch {
	case !full:
		return place{tier: throttleCounter, from: shared}
	case shared != nil:
		return place{kept: shared, tier: throttleShared}
	default:
		return place{tier: throttleShared, shared: key}
	}
}

// fullLimit returns the limit of counter i, of all instances together, so that what is counted
// remains if their number changes.
func (c *Call) fullLimit(i int) int64 {
	if c.local != nil {
		return c.local.counters[i].Numbers.Limit
	}
	return c.Counters[i].Numbers.Limit
}

// unplaced returns the verdict of counter i of a call, for which there is no counter to share. With
// overage it is allowed, as every call is, and its units are not counted. So is a quota: the
// operator wants no tenant denied that may be within it.
func unplaced(c *Call, i int) limit.Verdict {
	n, cost := &c.Counters[i].Numbers, c.CostOf(i)
	v := limit.Verdict{
		Allowed: cost == 0 || c.Space == QuotaSpace || n.Overage && cost <= n.Ceiling(), Uncounted: true, NextMS: c.Outcome.NowMS, ResetMS: c.Outcome.NowMS,
	}
	switch {
	case v.Allowed:
	case cost > n.Ceiling():
		v.CostExceeds, v.RetryAfterMS = true, limit.NeverMS
	default:
		v.RetryAfterMS = RetryAfterOutageMS()
	}
	return v
}

// idle reports whether a counter holds nothing for a key with these numbers.
func (m *memoryCounter) idle(n *limit.Numbers, now int64) bool {
	return m != nil && m.mark <= now && m.state.Remaining(n, now) == n.Ceiling()
}

// raise charges what a state holds less than the store said about one of its keys.
func (p prime) raise(state limit.State, n *limit.Numbers, now int64) {
	if less := p.used - (n.Ceiling() - state.Remaining(n, now)); less > 0 {
		state.Charge(n, less, now)
	}
}

// tidy removes from one shard, the next one, what is of no use any more: what has expired, and the
// overflow counters that were needed during an outage that is over. away reports whether the store
// of a key is unavailable. Its caller is a timer, so that an outage leaves no memory behind, even
// if nothing counts here after it.
func (e *Memory) tidy(away func(key string) bool) {
	shard := &e.shards[e.tidied.Add(1)%memoryShards]
	clock := e.clock()
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if len(shard.all) == 0 {
		return
	}
	for i := len(shard.all) - 1; i >= 0; i-- { // the last one takes the place of a removed one
		kept := shard.all[i]
		over := kept.overflow != nil && clock-kept.overflow.charged >= overflowIdleMS && !away(kept.overflow.of)
		if over || kept.expires <= clock {
			e.remove(shard, kept)
		}
	}
	if len(shard.all) == 0 { // maps do not shrink
		shard.all, shard.cursor = nil, 0
		shard.counters, shard.overflow = map[string]*memoryCounter{}, map[overflowKey]*memoryCounter{}
	}
}
