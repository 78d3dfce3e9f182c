package weir

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// leases decide checks of this process from units that the server has charged in advance. A check
// that finds units is decided without a call, an allocation or a lock. Every other check is sent as
// usual, so leases never add to the latency of a check: units are leased in the background.
//
// A kind of check (subject, resource, plan, attributes) gets a leaseSet if it is frequent enough.
// All other kinds cost one cell in a shared table.
type leases struct {
	client *Client
	seed   maphash.Seed
	shards [leaseShards]atomic.Pointer[map[uint64]*leaseSet] // by hash; maps are never changed, only replaced
	rates  [leaseRates]leaseRate
	count  atomic.Int64 // of sets
	closed atomic.Bool

	mu      sync.Mutex    // guards changes of shards, and the fields below
	every   time.Duration // between inspections; tests inspect by hand
	running bool
	queue   chan *leaseSet
	stop    chan struct{}
	ended   chan struct{} // closed when run ends
	places  chan struct{} // one for each request in flight
	work    sync.WaitGroup
}

const (
	leaseShards = 64
	leaseRates  = 4096
	leaseSets   = 10_000
	leaseBusy   = 4                     // checks within leaseTick make a kind of check frequent
	leaseTick   = 64 * time.Millisecond // of leaseRate
	leaseLow    = 4                     // units are leased again when less than 1/leaseLow is left, of units or of time
	leaseLeast  = 2                     // units of a request; with fewer in a lease, the next one waits for leaseNotNow
	leaseAhead  = 250 * time.Millisecond
	leaseIdle   = 100 * time.Millisecond // units that no check uses for this long are returned

	leaseInspect  = 25 * time.Millisecond
	leaseInFlight = 16

	// How long no units are leased after the server has refused to.
	leaseBackoff    = 200 * time.Millisecond // it did not answer
	leaseNotNow     = time.Second            // too few units, or nothing is left
	leaseImpossible = 10 * time.Second       // a rule does not allow leases, or the call is wrong

	leaseEnded = -1 << 62
)

// A leaseKey identifies a kind of check.
type leaseKey struct{ subject, resource, plan, attributes string }

// A leaseSet has the units of one kind of check.
type leaseSet struct {
	hash   uint64
	key    leaseKey
	check  Check
	lease  atomic.Pointer[lease]
	missed atomic.Int64 // units of checks that were allowed by the server, since the last request
	denied atomic.Int64 // checks that were denied from memory, since the last return
	units  atomic.Int64 // of these
	// busy is held while units are requested, and while leases are ended. A removed set stays busy.
	busy    atomic.Bool
	until   atomic.Int64 // UnixNano before which nothing is requested
	askedAt time.Time    // guarded by busy
	idle    leaseUse     // for inspect
}

// leaseUse is what was used of a set when it was last inspected.
type leaseUse struct {
	left, missed int64
	since        time.Time // nothing has changed since
}

// A lease is units that this process may grant. It ends by the monotonic clock, counted from before
// the request was sent, and so before the lease on the server does. It also ends by the wall clock,
// because the monotonic one stops while a machine sleeps.
type lease struct {
	left   atomic.Int64 // to be granted; leaseEnded: it has ended
	beyond atomic.Int64 // costs of granted checks, less one for each
	both   sync.RWMutex // held while a check changes both, for reading, and while the lease ends
	older  atomic.Pointer[lease]

	id       string
	units    int64
	low      int64 // when to request more
	sentAt   time.Time
	life     time.Duration
	early    time.Duration // when to request more
	wallMS   int64         // the end by the wall clock
	decision Decision      // of the grant
	quota    int64         // of the deciding rule
}

func newLeases(c *Client) *leases {
	return &leases{
		client: c, seed: maphash.MakeSeed(), every: leaseInspect,
		queue: make(chan *leaseSet, 256), places: make(chan struct{}, leaseInFlight),
	}
}

// take decides a check from the units that are held. If there are too few, it changes nothing, and
// the check must be sent.
func (l *leases) take(check *Check, now time.Time, d *Decision) bool {
	if l == nil || l.count.Load() == 0 || check.IdempotencyKey != "" || check.Cost < 0 || check.Cost > maxCost {
		return false
	}
	set := l.find(check)
	if set == nil {
		return false
	}
	held := set.lease.Load()
	if held == nil {
		return false
	}
	cost := max(check.Cost, 1)
	left, ok := held.grant(now, cost)
	if !ok {
		return false
	}
	if held.scarce(now, left) {
		l.request(set, now)
	}
	held.decide(now, cost, left, d)
	return true
}

// grant takes cost units from the lease, from the older lease first, and returns how many are left.
func (h *lease) grant(now time.Time, cost int64) (left int64, ok bool) {
	beside := int64(0)
	if older := h.older.Load(); older != nil && older.live(now) {
		if left, ok = older.grantOwn(cost); ok {
			return left + max(0, h.left.Load()), true
		}
		beside = left
	}
	if !h.live(now) {
		return 0, false
	}
	left, ok = h.grantOwn(cost)
	return left + beside, ok
}

// scarce reports whether it is time to lease more units, with this many left.
func (h *lease) scarce(now time.Time, left int64) bool {
	return left < h.low || now.Sub(h.sentAt) > h.early
}

func (h *lease) grantOwn(cost int64) (left int64, ok bool) {
	if cost > 1 {
		h.both.RLock()
		defer h.both.RUnlock()
	}
	for {
		left = h.left.Load()
		if left < cost {
			return max(0, left), false
		}
		if h.left.CompareAndSwap(left, left-cost) {
			if cost > 1 {
				h.beyond.Add(cost - 1)
			}
			return left - cost, true
		}
	}
}

// live reports whether units may still be granted.
func (h *lease) live(now time.Time) bool {
	return now.Sub(h.sentAt) < h.life && now.UnixMilli() < h.wallMS
}

// held returns the units that can be granted.
func (h *lease) held(now time.Time) (units int64) {
	if h == nil {
		return 0
	}
	if h.live(now) {
		units = max(0, h.left.Load())
	}
	if older := h.older.Load(); older != nil && older.live(now) {
		units += max(0, older.left.Load())
	}
	return units
}

// decide fills in the decision of a check. What remains is what remained when the units were
// charged, and the units that are left.
func (h *lease) decide(now time.Time, cost, left int64, d *Decision) {
	*d = h.decision
	d.Cost = cost
	d.Remaining.Value = min(d.Remaining.Value+left, h.quota)
	d.ResetAfterMS.Value = max(0, d.ResetAfterMS.Value-now.Sub(h.sentAt).Milliseconds())
}

// end ends the lease, and returns the units that were not granted, and how many checks were. ok is
// false if it had ended.
func (h *lease) end() (left, allowed int64, ok bool) {
	h.both.Lock()
	defer h.both.Unlock()
	left = h.left.Swap(leaseEnded)
	return left, h.units - left - h.beyond.Load(), left != leaseEnded
}

// find returns the set of a kind of check, or nil.
func (l *leases) find(check *Check) *leaseSet {
	key := leaseKey{subject: check.Subject, resource: check.Resource, plan: check.Plan}
	if key.resource == "" {
		key.resource = defaultResource
	}
	if len(check.Attributes) > 0 {
		key.attributes = attributesKey(check.Attributes)
	}
	return l.set(l.hash(&key), &key)
}

func (l *leases) set(hash uint64, key *leaseKey) *leaseSet {
	sets := l.shard(hash).Load()
	if sets == nil {
		return nil
	}
	set := (*sets)[hash]
	if set == nil || set.key != *key { // two kinds with one hash: the second is sent
		return nil
	}
	return set
}

func (l *leases) hash(key *leaseKey) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := maphash.String(l.seed, key.subject)*odd ^ maphash.String(l.seed, key.resource)
	if key.plan != "" {
		h = h*odd ^ maphash.String(l.seed, key.plan)
	}
	if key.attributes != "" {
		h = h*odd ^ maphash.String(l.seed, key.attributes) + 1
	}
	return h
}

func (l *leases) shard(hash uint64) *atomic.Pointer[map[uint64]*leaseSet] {
	return &l.shards[hash%leaseShards]
}

// attributesKey returns a text that is the same for equal attributes only.
func attributesKey(attributes map[string]string) string {
	var list [maxAttributes]string
	names := list[:0]
	for name := range attributes {
		names = append(names, name)
	}
	slices.Sort(names)
	var b []byte
	for _, name := range names {
		b = appendPart(appendPart(b, name), attributes[name])
	}
	return string(b)
}

// sent notes that the server has allowed a check. If this kind of check is frequent, units are
// leased for the next ones.
func (l *leases) sent(q *question, d *Decision) {
	if l == nil || !d.Allowed || d.Source != SourceServer || d.Replayed || q.explain || q.Cost == 0 || l.closed.Load() {
		return
	}
	now := l.client.clock.Now()
	if set := l.find(&q.Check); set != nil {
		set.missed.Add(q.Cost)
		if held := set.lease.Load(); held == nil || held.scarce(now, held.held(now)) {
			l.request(set, now)
		}
		return
	}
	key := leaseKey{q.Subject, q.Resource, q.Plan, ""}
	if len(q.Attributes) > 0 {
		key.attributes = attributesKey(q.Attributes)
	}
	hash := l.hash(&key)
	cell := &l.rates[hash/leaseShards%leaseRates]
	if checks, units := cell.add(now, q.Cost); checks >= leaseBusy && l.count.Load() < leaseSets {
		l.add(hash, key, q, units, now)
	}
}

// remembered notes that a check was denied from memory.
func (l *leases) remembered(q *question) {
	if l == nil || q.Cost == 0 {
		return
	}
	if set := l.find(&q.Check); set != nil {
		set.denied.Add(1)
		set.units.Add(q.Cost)
	}
}

// add creates the set of a kind of check, and requests units for it.
func (l *leases) add(hash uint64, key leaseKey, q *question, units int64, now time.Time) {
	set := &leaseSet{
		hash: hash, key: key,
		check: Check{Subject: q.Subject, Resource: q.Resource, Plan: q.Plan, Attributes: maps.Clone(q.Attributes)},
		idle:  leaseUse{since: now}, askedAt: now.Add(-leaseTick),
	}
	set.missed.Store(units)
	set.busy.Store(true) // before others find it: units are requested once
	l.mu.Lock()
	defer l.mu.Unlock()
	shard := l.shard(hash)
	before := shard.Load()
	if l.closed.Load() || before != nil && (*before)[hash] != nil {
		return
	}
	after := map[uint64]*leaseSet{}
	if before != nil {
		after = maps.Clone(*before)
	}
	after[hash] = set
	shard.Store(&after)
	l.count.Add(1)
	l.start()
	l.enqueue(set)
}

// remove removes a set. The caller holds set.busy, and keeps it, so that nobody who still has the
// set can request units.
func (l *leases) remove(set *leaseSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	shard := l.shard(set.hash)
	after := maps.Clone(*shard.Load())
	delete(after, set.hash)
	shard.Store(&after)
	l.count.Add(-1)
}

// request requests units of a set in the background, unless that is under way or was refused.
func (l *leases) request(set *leaseSet, now time.Time) {
	if l.closed.Load() || set.busy.Load() || now.UnixNano() < set.until.Load() || !set.busy.CompareAndSwap(false, true) {
		return
	}
	l.enqueue(set)
}

// enqueue passes a set to the background. The caller holds set.busy.
func (l *leases) enqueue(set *leaseSet) {
	select {
	case l.queue <- set:
	default: // the server is too slow for so many kinds of checks: they are sent
		set.busy.Store(false)
	}
}

// leaseRate counts checks in a tick: the number of the tick in 28 bits, checks in 10, units in 26.
// The last two stop at their maximum.
type leaseRate struct{ atomic.Uint64 }

func (r *leaseRate) add(now time.Time, cost int64) (checks, units int64) {
	const most, mostUnits = 1<<10 - 1, 1<<26 - 1
	tick := uint64(now.UnixNano()/int64(leaseTick)) & (1<<28 - 1)
	for {
		old := r.Load()
		n, sum := uint64(0), uint64(0)
		if old>>36 == tick {
			n, sum = old>>26&most, old&mostUnits
		}
		n, sum = min(n+1, most), min(sum+uint64(min(cost, mostUnits)), mostUnits)
		if r.CompareAndSwap(old, tick<<36|n<<26|sum) {
			return int64(n), int64(sum)
		}
	}
}
