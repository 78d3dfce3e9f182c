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

// MemoryOptions are the bounds and the clock of a MemoryEngine. Zero values mean the defaults.
type MemoryOptions struct {
	// Clock returns milliseconds since 1970 and should never step back. Default: the time of
	// the process's start plus the monotonic clock.
	Clock func() int64
	// MaxCounters bounds the counters of all tenants together. Default 200 000.
	MaxCounters int
	// MaxPerTenant bounds those of one tenant. Default a tenth of MaxCounters.
	MaxPerTenant int
}

const (
	defaultMaxCounters = 200_000
	memoryShards       = 64
	// overflowSlots is how many counters the unseen keys of a tenant at its bound share, for
	// each algorithm and window.
	overflowSlots = 4096
	// expirySlackMS is added to every expiry, against a clock that steps back.
	expirySlackMS int64 = 1000
	// virtualExpiryMS is the least expiry where the caller sets the time: virtual time does
	// not move with the clock that expires state.
	virtualExpiryMS int64 = 600_000
)

// MemoryEngine is an Engine that counts in this process's memory. It serves the on_unavailable
// policy "local", simulation and tests.
//
// Its memory is bounded: past its bound a tenant's unseen keys share hashed overflow counters,
// which can deny early but never admit more than a counter of their own would. A counter that
// still matters is never evicted. Expired state is removed little by little as new state comes.
type Memory struct {
	clock        func() int64
	maxCounters  int64
	maxPerTenant int64
	seed         maphash.Seed
	counters     atomic.Int64
	shards       [memoryShards]memoryShard
	scratch      sync.Pool // *memoryScratch
	amended      sync.Map  // Amendment.Once, true; it only grows, as this engine amends in tests and simulations

	mu      sync.RWMutex
	tenants map[limit.TenantID]*atomic.Int64 // how many counters each has
}

// memoryShard holds the counters whose hash ends in its number.
type memoryShard struct {
	mu       sync.Mutex
	counters map[string]*memoryCounter
	overflow map[overflowKey]*memoryCounter
	// all lists the counters for sweeping: a few are looked at whenever one is added.
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
	place    int           // in the shard's all
	ofTenant *atomic.Int64 // nil in overflow
}

// memoryScratch is what one call needs while it is decided.
type memoryScratch struct {
	keys       []string
	hashes     []uint64
	shards     []int
	sweep      []*memoryShard   // when the call is through
	counters   []*memoryCounter // nil where unseen
	judgements []limit.Judgement
}

// NewMemoryEngine returns an empty engine. It runs no goroutine and needs no closing.
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
		seed: maphash.MakeSeed(), tenants: map[limit.TenantID]*atomic.Int64{},
	}
	e.scratch.New = func() any { return new(memoryScratch) }
	for i := range e.shards {
		e.shards[i].counters = map[string]*memoryCounter{}
		e.shards[i].overflow = map[overflowKey]*memoryCounter{}
	}
	return e
}

// Len returns how many counters are held, expired ones that were not swept yet included.
func (e *Memory) Len() int { return int(e.counters.Load()) }

// Evaluate decides the calls in order. It never waits, so ctx is not asked.
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
	if now == 0 {
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
		if !c.DryRun && (charged && cost > 0 || j.Marks || j.Moved) {
			e.keep(s, c, i, v, clock)
		}
	}
}

// lock takes the locks of all shards that the call's keys are in, in one order.
func (e *Memory) lock(s *memoryScratch, c *Call) {
	s.keys, s.hashes, s.shards = s.keys[:0], s.hashes[:0], s.shards[:0]
	for i := range c.Counters {
		key := c.Counters[i].OwnKey()
		h := maphash.String(e.seed, key)
		s.keys = append(s.keys, key)
		s.hashes = append(s.hashes, h)
		if shard := int(h % memoryShards); !slices.Contains(s.shards, shard) {
			s.shards = append(s.shards, shard)
		}
	}
	slices.Sort(s.shards)
	for _, i := range s.shards {
		e.shards[i].mu.Lock()
	}
}

// unlock ends the call. Sweeping waits until here, so that it cannot remove a counter that the
// call has found expired and is about to charge.
func (e *Memory) unlock(s *memoryScratch, clock int64) {
	for _, shard := range s.sweep {
		e.sweep(shard, clock)
	}
	s.sweep = s.sweep[:0]
	for _, i := range s.shards {
		e.shards[i].mu.Unlock()
	}
}

// judgement finds the counter's state, or makes that of an unseen one, which is only kept if
// the call charges it.
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
	} else {
		j.State, j.Mark = kept.state, kept.mark
	}
	return j
}

// shardOf returns the shard of a key.
func (e *Memory) shardOf(key string) *memoryShard {
	return &e.shards[maphash.String(e.seed, key)%memoryShards]
}

// sharedKey returns the overflow counter of a key. Its slot is made of the bits that choose the
// shard and some more, so that it is in the key's own shard and needs no other lock.
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

// keep stores what the call made of counter i.
func (e *Memory) keep(s *memoryScratch, c *Call, i int, v *limit.Verdict, clock int64) {
	kept, j := s.counters[i], &s.judgements[i]
	if kept == nil {
		kept = e.add(s, c, i, j.State)
	}
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
			// Another counter of this very call has just made it.
			if c.Outcome.Allowed && c.Outcome.Verdicts[i].Allowed {
				other.state.Charge(n, c.CostOf(i), c.Outcome.NowMS)
			}
			return other
		}
		shard.overflow[kept.shared] = kept
	} else {
		kept.key = s.keys[i]
		kept.ofTenant = e.ofTenant(c.Tenant)
		kept.ofTenant.Add(1)
		e.counters.Add(1)
		shard.counters[kept.key] = kept
	}
	shard.all = append(shard.all, kept)
	return kept
}

// full reports whether the tenant may add no counter of its own.
func (e *Memory) full(tenant limit.TenantID) bool {
	if e.counters.Load() >= e.maxCounters {
		return true
	}
	e.mu.RLock()
	held := e.tenants[tenant]
	e.mu.RUnlock()
	return held != nil && held.Load() >= e.maxPerTenant
}

func (e *Memory) ofTenant(tenant limit.TenantID) *atomic.Int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := e.tenants[tenant]
	if held == nil {
		held = new(atomic.Int64)
		e.tenants[tenant] = held
	}
	return held
}

// sweep looks at a few counters of a shard and removes those that have expired. Looking at more
// than one for each that is added means that all expired ones go in time.
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
	gone.ofTenant.Add(-1)
	e.counters.Add(-1)
}

// Reset forgets counters. Those that share an overflow counter keep it: it holds what others used
// too.
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
