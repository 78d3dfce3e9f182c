package engine

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/limit"
)

// MemoryOptions are the bounds and the clock of a Memory engine. Zero values select the defaults.
type MemoryOptions struct {
	// Clock returns milliseconds since 1970 and should never step back. Default: the start time of
	// the process plus its monotonic clock.
	Clock func() int64
	// MaxCounters limits the number of counters of all tenants. Default 200 000.
	MaxCounters int
	// MaxPerTenant limits the number of counters of one tenant. Default a tenth of MaxCounters.
	MaxPerTenant int
	// MaxEntries limits the entries of the counters that grow (limit.Growing) beyond the first few,
	// of all tenants, and MaxEntriesPerTenant those of one tenant. An entry takes 16 bytes. Default
	// ten for each counter of MaxCounters and MaxPerTenant.
	MaxEntries, MaxEntriesPerTenant int
}

const (
	defaultMaxCounters = 200_000
	memoryShards       = 64
	// overflowSlots is the number of shared counters, per algorithm and window, for the new keys of
	// a tenant that has reached its limit.
	overflowSlots = 4096
	// expirySlackMS is added to every expiry, in case the clock steps back.
	expirySlackMS int64 = 1000
	// virtualExpiryMS is the minimum expiry if the caller sets the time, because virtual time is
	// independent of the clock that expires state.
	virtualExpiryMS int64 = 600_000
)

// Memory is an Engine that counts in the memory of this process. It is used for on_unavailable
// "local", for simulations and in tests.
//
// Its memory is limited. When a tenant has reached its limit, its new keys share hashed overflow
// counters. These can deny early but never allow more than separate counters would. Its existing
// counters continue, but those that grow become coarse (limit.Growing), so that they hardly grow. A
// counter that still matters is never evicted. Expired state is removed gradually as new state is
// added.
type Memory struct {
	clock        func() int64
	maxCounters  int64
	maxPerTenant int64
	seed         maphash.Seed
	counters     atomic.Int64
	entries      atomic.Int64 // of counters that grow
	most         entryBounds
	shards       [memoryShards]memoryShard
	scratch      sync.Pool // *memoryScratch
	amended      sync.Map  // Amendment.Once, true; it is never cleaned, because this engine amends only in tests and simulations

	creditMu sync.Mutex
	outboxes map[string]map[limit.GrantID]int64

	mu      sync.RWMutex
	tenants map[limit.TenantID]*memoryTenant
}

// memoryTenant has what a tenant holds.
type memoryTenant struct {
	counters, entries atomic.Int64
}

// entryBounds are the bounds of entries, of all tenants and of one.
type entryBounds struct{ all, perTenant int64 }

// memoryShard has the counters whose hash ends in its number.
type memoryShard struct {
	mu       sync.Mutex
	counters map[string]*memoryCounter
	overflow map[overflowKey]*memoryCounter
	credits  map[string]*openGrants // by Credits.Key
	// all lists the counters for sweep, which inspects a few of them whenever a counter is added.
	all    []*memoryCounter
	cursor int
}

type overflowKey struct {
	tenant                limit.TenantID
	slot                  uint16
	algorithm             limit.Algorithm
	calendar              limit.Calendar
	windowMS, precisionMS int64
	schedule              uint64 // of a calendar's windows
}

type memoryCounter struct {
	key      string      // "" in overflow
	shared   overflowKey // in overflow
	state    limit.State
	mark     int64         // end of a penalty
	expires  int64         // on the engine's clock
	place    int           // index in the shard's all
	ofTenant *memoryTenant // nil for an overflow counter
	entries  int64         // its part of ofTenant.entries
	outage   *outageState  // nil, if no Fallback uses the counter
}

// memoryScratch is the temporary memory of one call.
type memoryScratch struct {
	keys       []string
	hashes     []uint64
	shards     []int
	sweep      []*memoryShard   // to sweep after the call
	counters   []*memoryCounter // nil if the counter does not exist
	judgements []limit.Judgement
}

// NewMemory returns an empty engine. It starts no goroutine and needs no Close.
func NewMemory(o MemoryOptions) *Memory {
	if o.Clock == nil {
		start := time.Now()
		startMS := start.UnixMilli()
		o.Clock = func() int64 { return startMS + time.Since(start).Milliseconds() }
	}
	if o.MaxCounters == 0 {
		o.MaxCounters = defaultMaxCounters
	}
	if o.MaxPerTenant == 0 {
		o.MaxPerTenant = max(1, o.MaxCounters/10)
	}
	e := &Memory{
		clock: o.Clock, maxCounters: int64(o.MaxCounters), maxPerTenant: int64(o.MaxPerTenant),
		seed: maphash.MakeSeed(), tenants: map[limit.TenantID]*memoryTenant{}, most: o.entryBounds(), outboxes: map[string]map[limit.GrantID]int64{},
	}
	e.scratch.New = func() any { return new(memoryScratch) }
	for i := range e.shards {
		e.shards[i].counters = map[string]*memoryCounter{}
		e.shards[i].overflow = map[overflowKey]*memoryCounter{}
	}
	return e
}

// Len returns the number of counters, including expired ones that were not removed yet.
func (e *Memory) Len() int { return int(e.counters.Load()) }

// Evaluate decides the calls in order. It never waits, so it ignores ctx.
func (e *Memory) Evaluate(_ context.Context, calls ...*Call) {
	s := e.scratch.Get().(*memoryScratch)
	for _, c := range calls {
		if c.Err = c.Validate(); c.Err == nil {
			e.evaluate(s, c)
		}
	}
	e.scratch.Put(s)
}

func (e *Memory) evaluate(s *memoryScratch, c *Call) {
	clock := e.clock()
	now := c.NowMS
	switch {
	case c.local != nil:
		now = c.local.nowMS
	case now == 0:
		now = clock
	}
	e.lock(s, c)
	defer e.unlock(s, clock)

	count := len(c.Counters)
	s.counters = slices.Grow(s.counters[:0], count)[:count]
	s.judgements = slices.Grow(s.judgements[:0], count)[:count]
	out := &c.Outcome
	out.NowMS, out.Allowed = now, true
	out.Verdicts = slices.Grow(out.Verdicts[:0], count)[:count]
	for i := range c.Counters {
		s.judgements[i] = e.judgement(s, c, i)
		if c.Counters[i].Credits != nil {
			if first := CreditsAt(c.Counters, i); first < i {
				s.judgements[i].Purse = s.judgements[first].Purse
			} else {
				s.judgements[i].Purse = e.purse(&c.Counters[i], now)
			}
		}
		if !c.DryRun {
			s.judgements[i].Follow(now)
		}
		out.Verdicts[i] = s.judgements[i].Admit(c.CostOf(i), now)
		if !out.Verdicts[i].Allowed && !c.Counters[i].Shadow {
			out.Allowed = false
		}
	}
	for i := range c.Counters {
		v, j, cost := &out.Verdicts[i], &s.judgements[i], c.CostOf(i)
		charged := out.Allowed && v.Allowed
		if charged {
			if c.DryRun && s.counters[i] != nil {
				j.State = j.State.Clone()
			}
			j.Charge(v, cost, now)
		}
		j.Finish(v, cost, now)
		if !c.DryRun && (charged && j.Takes(cost) > 0 || j.Marks || j.Moved) {
			e.keep(s, c, i, v, clock)
		}
		if !c.DryRun && charged && j.Purse != nil && j.Purse.Needed > 0 && CreditsAt(c.Counters, i) == i {
			e.spend(c.Counters[i].Credits, j.Purse)
		}
	}
}

// lock takes the locks of all shards of the call's keys, always in the same order.
func (e *Memory) lock(s *memoryScratch, c *Call) {
	s.keys, s.hashes, s.shards = s.keys[:0], s.hashes[:0], s.shards[:0]
	for i := range c.Counters {
		key := c.Counters[i].OwnKey()
		h := maphash.String(e.seed, key)
		s.keys = append(s.keys, key)
		s.hashes = append(s.hashes, h)
		s.lock(h)
		if credits := c.Counters[i].Credits; credits != nil {
			s.lock(maphash.String(e.seed, credits.Key))
		}
	}
	slices.Sort(s.shards)
	for _, i := range s.shards {
		e.shards[i].mu.Lock()
	}
}

// unlock releases the locks. Counters are swept only here, so that sweep cannot remove a counter
// that the call has found expired and is about to charge.
func (e *Memory) unlock(s *memoryScratch, clock int64) {
	for _, shard := range s.sweep {
		e.sweep(shard, clock)
	}
	s.sweep = s.sweep[:0]
	for _, i := range s.shards {
		e.shards[i].mu.Unlock()
	}
}

// lock adds the shard of a hash to those that the call locks.
func (s *memoryScratch) lock(hash uint64) {
	if shard := int(hash % memoryShards); !slices.Contains(s.shards, shard) {
		s.shards = append(s.shards, shard)
	}
}

// judgement returns the counter's state, or a new state if the counter does not exist. A new state
// is stored only if the call charges it.
func (e *Memory) judgement(s *memoryScratch, c *Call, i int) limit.Judgement {
	counter := &c.Counters[i]
	shard := &e.shards[s.hashes[i]%memoryShards]
	kept := shard.counters[s.keys[i]]
	if kept == nil && e.full(c.Tenant) {
		s.sweep = append(s.sweep, shard)
		kept = shard.overflow[sharedKey(c.Tenant, s.hashes[i], &counter.Numbers)]
	}
	s.counters[i] = kept
	j := limit.Judgement{Numbers: &counter.Numbers}
	if kept == nil {
		j.State = limit.NewState(counter.Numbers.Algorithm)
		if c.local != nil && c.local.primes[i].used > 0 {
			j.State.Charge(&counter.Numbers, c.local.primes[i].used, c.local.primes[i].atMS)
		}
	} else {
		j.State, j.Mark = kept.state, kept.mark
	}
	e.fit(c.Tenant, j.State)
	return j
}

// shardOf returns the shard of a key.
func (e *Memory) shardOf(key string) *memoryShard {
	return &e.shards[maphash.String(e.seed, key)%memoryShards]
}

// sharedKey returns the overflow counter of a key. Its slot consists of the bits that select the
// shard and some more, so it is in the key's own shard and needs no other lock.
func sharedKey(tenant limit.TenantID, hash uint64, n *limit.Numbers) overflowKey {
	k := overflowKey{
		tenant: tenant, slot: uint16(hash % overflowSlots), algorithm: n.Algorithm,
		calendar: n.Calendar, windowMS: n.WindowMS, precisionMS: n.PrecisionMS,
	}
	if n.Bounds != nil {
		k.schedule = n.Bounds.Schedule()
	}
	return k
}

// keep stores the new state of counter i.
func (e *Memory) keep(s *memoryScratch, c *Call, i int, v *limit.Verdict, clock int64) {
	kept, j := s.counters[i], &s.judgements[i]
	if kept == nil {
		kept = e.add(s, c, i, j.State)
	}
	if kept.outage != nil && c.local != nil {
		e.fit(c.Tenant, kept.outage.base)
		kept.outage.follow(c, i, v)
	}
	e.weigh(kept)
	if j.Marks {
		kept.mark = j.Mark
	}
	life := max(v.ResetMS, kept.mark) - c.Outcome.NowMS + expirySlackMS
	if c.NowMS != 0 {
		life = max(life, virtualExpiryMS)
	}
	kept.expires = clock + life
}

func (e *Memory) add(s *memoryScratch, c *Call, i int, first limit.State) *memoryCounter {
	shard := &e.shards[s.hashes[i]%memoryShards]
	s.sweep = append(s.sweep, shard)
	kept := &memoryCounter{state: first, place: len(shard.all)}
	if e.full(c.Tenant) {
		n := &c.Counters[i].Numbers
		kept.shared = sharedKey(c.Tenant, s.hashes[i], n)
		if other := shard.overflow[kept.shared]; other != nil {
			// Another counter of the same call has just created it.
			if c.Outcome.Allowed && c.Outcome.Verdicts[i].Allowed {
				other.state.Charge(n, s.judgements[i].Takes(c.CostOf(i)), c.Outcome.NowMS)
			}
			return other
		}
		shard.overflow[kept.shared] = kept
	} else {
		kept.key = s.keys[i]
		kept.outage = newOutageState(c, i)
		kept.ofTenant = e.ofTenant(c.Tenant)
		kept.ofTenant.counters.Add(1)
		e.counters.Add(1)
		shard.counters[kept.key] = kept
	}
	shard.all = append(shard.all, kept)
	return kept
}

// sweep inspects a few counters of a shard and removes the expired ones. It inspects more than one
// for each added counter, so all expired counters are removed eventually.
func (e *Memory) sweep(shard *memoryShard, clock int64) {
	for range min(4, len(shard.all)) {
		if shard.cursor >= len(shard.all) {
			shard.cursor = 0
		}
		if shard.all[shard.cursor].expires > clock {
			shard.cursor++
			continue
		}
		e.remove(shard, shard.all[shard.cursor])
		if len(shard.all) == 0 {
			return
		}
	}
}

func (e *Memory) remove(shard *memoryShard, gone *memoryCounter) {
	last := len(shard.all) - 1
	moved := shard.all[last]
	shard.all[gone.place], moved.place = moved, gone.place
	shard.all[last] = nil
	shard.all = shard.all[:last]
	if gone.ofTenant == nil {
		delete(shard.overflow, gone.shared)
		return
	}
	delete(shard.counters, gone.key)
	gone.ofTenant.counters.Add(-1)
	e.counters.Add(-1)
	e.setEntries(gone, 0)
}

// Reset deletes counters. It does not reset overflow counters, because they also contain the usage
// of others.
func (e *Memory) Reset(_ context.Context, counters ...Counter) error {
	for i := range counters {
		key := counters[i].OwnKey()
		shard := &e.shards[maphash.String(e.seed, key)%memoryShards]
		shard.mu.Lock()
		if kept := shard.counters[key]; kept != nil {
			e.remove(shard, kept)
		}
		shard.mu.Unlock()
	}
	return nil
}
