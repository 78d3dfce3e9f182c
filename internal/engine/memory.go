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
	// MaxPerTenant limits the number of counters of one tenant. Default a tenth of MaxCounters. The
	// more the others hold, the less it is (bounds).
	MaxPerTenant int
	// MaxOverflow limits the overflow counters of all tenants, and MaxOverflowPerTenant those of
	// one tenant. Default half of MaxCounters and MaxPerTenant, at least overflowSlots.
	MaxOverflow, MaxOverflowPerTenant int
	// MaxEntries limits the entries of the counters that grow (limit.Growing) beyond the first few,
	// of all tenants, and MaxEntriesPerTenant those of one tenant. An entry takes 16 bytes. Default
	// ten for each counter of MaxCounters and MaxPerTenant.
	MaxEntries, MaxEntriesPerTenant int
	// MaxQuotas limits the counters in QuotaSpace, and MaxThrottles those in ThrottleSpace, in
	// addition to MaxCounters. Default as many, and half as many.
	MaxQuotas, MaxThrottles int
}

const (
	defaultMaxCounters = 200_000
	memoryShards       = 64
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
// counters (memory_overflow.go). These can deny early but never allow more than separate counters
// would. Its existing counters continue, but those that grow become coarse (limit.Growing), so that
// they hardly grow. A counter that still matters is never evicted. Expired state is removed
// gradually as new state is added, and by tidy.
type Memory struct {
	clock    func() int64
	seed     maphash.Seed
	counters atomic.Int64
	entries  atomic.Int64         // of counters that grow
	overflow atomic.Int64         // overflow counters
	apart    [spaces]atomic.Int64 // counters in the spaces that are no tenant's
	most     memoryBounds
	shards   [memoryShards]memoryShard
	tidied   atomic.Uint32 // counts the shards that were tidied
	debtors  debtors
	scratch  sync.Pool // *memoryScratch
	amended  sync.Map  // Amendment.Number by Done, and Once with keys; it is never cleaned, because this engine amends only in tests and simulations
	scalings sync.Map  // []limit.Scaling by key, under the lock of its shard; as amended

	creditMu sync.Mutex
	outboxes map[string]map[limit.GrantID]int64

	mu      sync.RWMutex
	tenants map[limit.TenantID]*memoryTenant
}

// memoryTenant has what a tenant holds.
type memoryTenant struct {
	id                                 limit.TenantID
	counters, entries, overflow, apart atomic.Int64
	owing                              owing
}

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

type memoryCounter struct {
	key      string    // "" in overflow
	overflow *overflow // nil, if it is a key's own counter
	tier     tier
	state    limit.State
	mark     int64 // end of a penalty
	expires  int64 // on the engine's clock
	place    int   // index in the shard's all
	ofTenant *memoryTenant
	entries  int64        // its part of ofTenant.entries
	outage   *outageState // nil, if no Fallback uses the counter
}

// memoryScratch is the temporary memory of one call.
type memoryScratch struct {
	keys       []string
	hashes     []uint64
	shards     []int
	sweep      []*memoryShard   // to sweep after the call
	counters   []*memoryCounter // nil if the counter does not exist
	places     []place
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
		clock: o.Clock, seed: maphash.MakeSeed(), most: o.bounds(),
		tenants: map[limit.TenantID]*memoryTenant{}, outboxes: map[string]map[limit.GrantID]int64{},
	}
	e.scratch.New = func() any { return new(memoryScratch) }
	for i := range e.shards {
		e.shards[i].counters = map[string]*memoryCounter{}
		e.shards[i].overflow = map[overflowKey]*memoryCounter{}
	}
	return e
}

// Len returns the number of counters, without overflow counters, but with expired ones that were
// not removed yet.
func (e *Memory) Len() int {
	own := e.counters.Load()
	for i := range e.apart {
		own += e.apart[i].Load()
	}
	return int(own)
}

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
	s.places = slices.Grow(s.places[:0], count)[:count]
	s.judgements = slices.Grow(s.judgements[:0], count)[:count]
	out := &c.Outcome
	out.NowMS, out.Allowed = now, true
	out.Verdicts = slices.Grow(out.Verdicts[:0], count)[:count]
	for i := range c.Counters {
		s.judgements[i] = e.judgement(s, c, i, now)
		if s.places[i].tier == noCounter {
			out.Verdicts[i] = unplaced(c, i)
			out.Allowed = out.Allowed && (out.Verdicts[i].Allowed || c.Counters[i].Shadow)
			continue
		}
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
		if s.places[i].tier == noCounter {
			continue
		}
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
func (e *Memory) judgement(s *memoryScratch, c *Call, i int, now int64) limit.Judgement {
	counter := &c.Counters[i]
	n := &counter.Numbers
	shard := &e.shards[s.hashes[i]%memoryShards]
	p := e.place(shard, c, i, s.keys[i], s.hashes[i])
	if p.tier != ownCounter {
		s.sweep = append(s.sweep, shard)
	}
	if p.from.idle(n, now) {
		p.from = nil
	}
	known := prime{}
	if c.local != nil {
		known = c.local.primes[i]
	}
	j := limit.Judgement{Numbers: n}
	switch {
	case p.kept != nil:
		j.State, j.Mark = p.kept.state, p.kept.mark
	case p.from != nil:
		j.State, j.Mark = p.from.state.Clone(), p.from.mark
	default:
		j.State = limit.NewState(n.Algorithm)
		if known.used > 0 {
			j.State.Charge(n, known.used, known.atMS)
		}
	}
	e.fit(c.Tenant, j.State)
	if known.used > 0 && (p.from != nil || p.kept != nil && p.kept.overflow != nil) {
		if c.DryRun && p.kept != nil {
			j.State = j.State.Clone()
		}
		known.raise(j.State, n, now)
	}
	if p.from != nil && !p.tier.shared() && c.local != nil {
		p.base = j.State.Clone()
	}
	s.counters[i], s.places[i] = p.kept, p
	return j
}

// shardOf returns the shard of a key.
func (e *Memory) shardOf(key string) *memoryShard {
	return &e.shards[maphash.String(e.seed, key)%memoryShards]
}

// keep stores the new state of counter i.
func (e *Memory) keep(s *memoryScratch, c *Call, i int, v *limit.Verdict, clock int64) {
	kept, j := s.counters[i], &s.judgements[i]
	if kept == nil {
		kept = e.add(s, c, i, j.State)
	}
	if kept.outage != nil && c.local != nil {
		e.fit(c.Tenant, kept.outage.base)
		kept.outage.renew(c, i)
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
	if kept.overflow == nil {
		kept.expires = clock + life
		return
	}
	kept.expires = max(kept.expires, clock+life) // this key may know less of it than others
	kept.overflow.charged = clock
}

func (e *Memory) add(s *memoryScratch, c *Call, i int, first limit.State) *memoryCounter {
	shard := &e.shards[s.hashes[i]%memoryShards]
	s.sweep = append(s.sweep, shard)
	n := &c.Counters[i].Numbers
	p := e.place(shard, c, i, s.keys[i], s.hashes[i])
	if other := p.kept; other != nil {
		// Another counter of the same call has just created it.
		if c.Outcome.Allowed && c.Outcome.Verdicts[i].Allowed {
			other.state.Charge(n, s.judgements[i].Takes(c.CostOf(i)), c.Outcome.NowMS)
		}
		return other
	}
	// The bound may be reached since the call was judged, by other counters of it. The call is
	// allowed, so it is counted.
	if p.tier == noCounter && c.Space == QuotaSpace {
		p.tier = quotaCounter
	}
	kept := &memoryCounter{state: first, mark: s.judgements[i].Mark, place: len(shard.all), tier: p.tier}
	shard.all = append(shard.all, kept)
	kept.ofTenant = e.hold(c.Tenant, p.tier)
	if p.tier.shared() || p.tier == noCounter {
		kept.overflow = &overflow{key: p.shared, of: c.Counters[i].Key}
		shard.overflow[p.shared] = kept
		return kept
	}
	kept.key = s.keys[i]
	shard.counters[kept.key] = kept
	if kept.outage = newOutageState(c, i); kept.outage != nil {
		if base := s.places[i].base; base != nil {
			kept.outage.base, kept.outage.ofOthers = base, true
		}
		e.debtors.add(kept)
	}
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
	if gone.overflow != nil {
		delete(shard.overflow, gone.overflow.key)
	} else {
		delete(shard.counters, gone.key)
		e.setEntries(gone, 0)
		e.debtors.remove(gone)
	}
	e.release(gone.ofTenant, gone.tier)
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
