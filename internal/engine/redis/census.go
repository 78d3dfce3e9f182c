package redis

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/paced"
)

// CensusOptions are the parts of a Census. Fields are required if nothing else is said.
type CensusOptions struct {
	Client redis.UniversalClient
	// Bound returns how many counters a tenant may have alive at the same time, 0 for Default, or
	// false if that is not known now. It must not wait.
	Bound   func(limit.TenantID) (bound int64, known bool)
	Default int64 // 0: no bound
	// Prefix returns the beginning of a tenant's keys, with its hash tag.
	Prefix func(limit.TenantID) string
	// Instances returns how many instances share the store.
	Instances func() int
	// Places returns the beginnings of a tenant's keys if it has several partitions; optional.
	Places func(limit.TenantID) []string
	// Operator is the tenant of the operator, which the memory of Redis does not bound; optional.
	Operator limit.TenantID
	// Measured is called with the memory of the fullest server each time it was read, in bytes, and
	// with how many servers have answered; most is 0 if no maximum is known. It must not wait.
	// Optional.
	Measured func(used, most int64, servers int)
}

// Census estimates and bounds the counters of each tenant that are alive in Redis. A counter here
// is a key: the counters of a group are one, and so is the mark of a penalty that outlives its
// counter. A counter that grows counts as one more for each part of the size of a usual one
// (census_size.go).
//
// Redis has a list of each tenant's counters with their expiry, which all instances share. If the
// bound is high, the list has a sample: the counters whose name, a keyed hash, ends in some zero
// bits. Instances add to the lists in the background.
//
// Each time an instance reads the length of the list, it grants itself a number of new counters for
// the time until it reads the list again. Before a call is sent, it reserves one for each of its
// counters, and what it did not create is returned. A call that finds too few left is sent as a
// bounded call: the script uses those of its counters that exist, and a spare counter, which many
// subjects share, instead of each one that does not. This is part of the run that decides the call,
// so a subject with a counter of its own never gets more than its limit. A spare counter can deny
// early. Long logs of a bounded call become coarse, so that they hardly grow (limit.Growing).
//
// If the memory of a server is nearly full, its tenants with the most counters are bounded sooner
// (census_memory.go).
//
// Attempts of people, such as sign-ins, have no tenant. They have a list and a bound of their own
// (census_throttles.go).
//
// Example: a tenant may have 1000 counters, and 990 are alive. The only instance grants itself 10.
// A call with 3 counters reserves 3, so 7 are left. Its subject had 2 of them already, so 2 are
// returned: 9 are left.
type Census struct {
	o       CensusOptions
	list    *script
	tenants *xsync.Map[limit.TenantID, *tenantCounters]
	touches *xsync.MPMCQueue[touch]
	told    [1 << 14]toldCell // what was added to the lists last, by hash
	loop    *paced.Loop       // looks at the lists
	memory  atomic.Pointer[memoryState]
	bounded atomic.Int64
	dropped atomic.Int64

	// Only the goroutine of Run uses these. nil is the only server.
	servers map[*redis.Client]*serverMemory
	silent  map[*redis.Client]bool // did not tell their memory when they were asked last
}

// tenantCounters has the counters of a tenant, as this instance knows them.
type tenantCounters struct {
	left    atomic.Int64 // counters that may still be created; calls in flight have theirs reserved
	created atomic.Int64 // counters that this instance has created, or may have
	bound   atomic.Int64
	sample  atomic.Uint32 // zero bits of the names in the list
	active  atomic.Bool   // since the last look
	alive   atomic.Int64  // as of the last look
	lowered atomic.Bool   // a server of its counters is nearly full: spare counters are few
	tenant  limit.TenantID

	// Only the goroutine of Run uses these.
	granted, seen int64
	looked        time.Time
	pending       []touch
	on            []*redis.Client // the servers of its places; nil: the only one, or not known
	memory        memoryLimit
}

// touch is a counter of a list that was charged.
type touch struct {
	of      *tenantCounters
	name    engine.KeyName
	expires int64
}

const (
	lookEvery = time.Second
	lookGap   = 50 * time.Millisecond
	// lookLatest is the greatest time between two looks at the list of an active tenant, and
	// lookSoon the part of the granted counters whose use causes one earlier.
	lookLatest = 10 * time.Second
	lookSoon   = 8
	// lookTogether is the maximum number of tenants whose lists are read in one round trip.
	lookTogether = 128
	// forgetAfter is after how much time without a call a tenant is forgotten.
	forgetAfter = 10 * time.Minute
	// tellAgain is how often all counters that are charged are added again.
	tellAgain   = time.Minute
	touchQueue  = 1 << 16
	touchBatch  = 1000
	longestList = 1 << 14 // names in a list, at most about twice as many

	// unbounded is the bound of a tenant without one, for the sample.
	unbounded = 1 << 30
	// spareShare is the part of a bound that spare counters may need, if 32 rules match each
	// check.
	spareShare = 8
	mostSpares = 4096
)

// NewCensus returns a Census. Run must run.
func NewCensus(o CensusOptions) *Census {
	c := &Census{
		o: o, list: newScript("census"), tenants: xsync.NewMap[limit.TenantID, *tenantCounters](),
		touches: xsync.NewMPMCQueue[touch](touchQueue), loop: paced.New(lookEvery, lookGap),
		servers: map[*redis.Client]*serverMemory{}, silent: map[*redis.Client]bool{},
	}
	c.memory.Store(&memoryState{lowest: noLimit})
	return c
}

// Bounded returns how many calls found too few new counters left.
func (c *Census) Bounded() int64 { return c.bounded.Load() }

// Dropped returns how many charged counters were not added to a list in time.
func (c *Census) Dropped() int64 { return c.dropped.Load() }

// Full returns the number of tenants for which this instance may create no counter now.
func (c *Census) Full() (n int) {
	c.tenants.Range(func(_ limit.TenantID, t *tenantCounters) bool {
		if t.left.Load() <= 0 {
			n++
		}
		return true
	})
	return n
}

// of returns the tenant's counters.
func (c *Census) of(tenant limit.TenantID) *tenantCounters {
	if t, known := c.tenants.Load(tenant); known {
		return t
	}
	t, _ := c.tenants.LoadOrCompute(tenant, func() (*tenantCounters, bool) {
		t := &tenantCounters{tenant: tenant, on: []*redis.Client{nil}, memory: c.memory.Load().lowest}
		t.lowered.Store(t.memory.few)
		bound, _ := c.boundOf(tenant)
		t.setBound(bound)
		// Until the first look: a part, since other instances may know more.
		t.granted = min(t.usable()/int64(2*max(c.o.Instances(), 1)), t.memory.level, t.memory.portion)
		t.left.Store(t.granted)
		return t, false
	})
	c.loop.Hurry()
	return t
}

// boundOf returns a tenant's bound, or the default one and false if it is not known now.
func (c *Census) boundOf(tenant limit.TenantID) (bound int64, known bool) {
	if tenant == throttles {
		return throttleBound(c.o.Default), true
	}
	bound, known = c.o.Bound(tenant)
	return c.boundOr(bound), known
}

// boundOr returns the bound, or the default one.
func (c *Census) boundOr(bound int64) int64 {
	if bound <= 0 {
		bound = c.o.Default
	}
	if bound <= 0 {
		bound = unbounded
	}
	return bound
}

func (t *tenantCounters) setBound(bound int64) {
	t.bound.Store(bound)
	t.sample.Store(sampleOf(bound))
}

// sampleOf returns the number of zero bits of the names in the list of a tenant with a bound.
func sampleOf(bound int64) uint32 {
	return uint32(max(0, bits.Len64(uint64(max(bound, 1)-1))-bits.Len64(longestList-1)))
}

// usable returns how many counters of their own a tenant's subjects may have: the bound without
// the spare counters and, if the list is a sample, without four times the standard error.
func (t *tenantCounters) usable() int64 {
	bound := t.bound.Load()
	usable := bound - bound/spareShare
	if t.sample.Load() > 0 {
		usable -= bound / 20
	}
	return usable
}

// spares returns the number of slots for spare counters.
func (t *tenantCounters) spares() int64 {
	if t.tenant == throttles {
		return throttleSlots
	}
	most := min(t.bound.Load()/(spareShare*limit.MaxMatchingRules), mostSpares)
	if t.lowered.Load() {
		most = min(most, fullSlots)
	}
	return 1 << max(bits.Len64(uint64(max(most, 1)))-1, 0)
}

// reserveAll reserves the counters of the calls of a request. From the first call on for which too
// few are left, all calls of its tenant are bounded, so that they stay in order.
func (c *Census) reserveAll(r *request, calls []*engine.Call, m mode) {
	next := 0
	var full *tenantCounters
	for _, call := range calls {
		if call.Err != nil {
			continue
		}
		s := &r.calls[next]
		next++
		if uncounted(call) {
			continue
		}
		if s.of = c.of(call.Tenant); s.of == full || !c.reserve(call, s) {
			full = s.of
			// A slot that is being moved is bounded again when it has arrived.
			if m == together && s.count > 0 {
				r.bound(s)
			}
		}
	}
}

// bound makes a call a bounded one.
func (r *request) bound(s *sentCall) {
	s.spare = &spareKeys{}
	if s.compact {
		r.sparesOfEntries(s, s.of.spares())
	} else {
		r.sparesOfCounters(s, s.of.spares())
	}
}

// reserve reserves the counters of a call, and reports whether enough were left.
func (c *Census) reserve(call *engine.Call, s *sentCall) bool {
	if call.DryRun || call.Cost == 0 { // it reads what a check would use
		return s.of.left.Load() > 0
	}
	n := int64(len(call.Counters))
	if s.of.left.Add(-n) < 0 {
		s.of.left.Add(n)
		c.bounded.Add(1)
		c.loop.Hurry()
		return false
	}
	s.reserved = n
	return true
}

// forfeit records the calls of a request that had no answer: some of their counters may exist.
func (c *Census) forfeit(r *request) {
	for i := range r.calls {
		if s := &r.calls[i]; s.of != nil {
			s.of.created.Add(s.reserved)
			s.of.active.Store(true)
		}
	}
}

// settle records the counters of a call that was answered, and returns the reserved ones that it
// did not create.
func (c *Census) settle(call *engine.Call, s *sentCall) {
	t, created := s.of, int64(0)
	switch {
	case t == nil: // uncounted
		return
	case errors.Is(call.Err, errStale): // nothing was counted
	case call.Err != nil:
		created = s.reserved // some may exist: the next length of the list counts them
	case call.DryRun || call.Cost == 0:
	default:
		if call.Outcome.Allowed {
			created = c.charged(call, s)
			if !s.compact {
				created += c.grown(call, s)
			}
		}
		if !s.compact {
			created += c.marked(call, s)
		}
	}
	if created > 0 {
		t.created.Add(created)
	}
	if unused := s.reserved - created; unused != 0 {
		t.left.Add(unused)
	}
	if !t.active.Load() {
		t.active.Store(true)
	}
}

// Run looks at the lists until ctx ends.
func (c *Census) Run(ctx context.Context) {
	var told time.Time
	c.loop.Run(ctx, func() {
		now := time.Now()
		if now.Sub(told) > tellAgain { // Redis may have lost a list
			told = now
			for i := range c.told {
				c.told[i].Store(0)
			}
		}
		c.look(ctx, now, false)
	})
}

// due reports whether it is time to look at the tenant's list.
func (t *tenantCounters) due(now time.Time, created int64) bool {
	full := t.left.Load() <= 0 && (!t.lowered.Load() || now.Sub(t.looked) >= lookEvery) // many may be lowered
	return full || t.looked.IsZero() || (created-t.seen)*lookSoon > t.granted || now.Sub(t.looked) >= lookLatest && t.active.Load()
}

// idle reports whether the tenant has made no call for forgetAfter, so that its list is not needed
// here. If it returns, it begins as an unknown tenant.
func (t *tenantCounters) idle(now time.Time) bool {
	return !t.looked.IsZero() && !t.active.Load() && len(t.pending) == 0 && now.Sub(t.looked) >= forgetAfter
}

// look adds charged counters to the lists, and reads how many are alive, of all tenants or those
// that are due.
func (c *Census) look(ctx context.Context, now time.Time, all bool) {
	c.measure(ctx, now)
	var due []*tenantCounters
	var created []int64
	c.tenants.Range(func(tenant limit.TenantID, t *tenantCounters) bool {
		if t.idle(now) {
			c.tenants.Delete(tenant)
			return true
		}
		if n := t.created.Load(); all || t.due(now, n) { // read before the queue is: these are in it
			due, created = append(due, t), append(created, n)
		}
		return true
	})
	for {
		found, ok := c.touches.TryDequeue()
		if !ok {
			break
		}
		found.of.pending = append(found.of.pending, found)
	}
	errs := lookErrors{}
	for len(due) > 0 {
		n := min(len(due), lookTogether)
		unavailable := false
		parts := c.byServer(ctx, due[:n], created[:n])
		atOnce(serversAtOnce, parts, func(p *serverLists) { p.failed = c.lookAt(ctx, now, p.due, p.created) })
		for _, p := range parts {
			unavailable = errs.note(ctx, c, p.failed) || unavailable
		}
		if due, created = due[n:], created[n:]; unavailable {
			due, created = errs.without(ctx, c, due, created)
		}
	}
}

// lookAt looks at the lists of some tenants, which are on one server, in one round trip, and more
// if a list gets very many counters. It returns the tenants whose lists could not be read.
func (c *Census) lookAt(ctx context.Context, now time.Time, due []*tenantCounters, created []int64) (failed []*tenantCounters) {
	within, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	pipe := c.o.Client.Pipeline()
	replies := make([]*redis.Cmd, len(due))
	for i, t := range due {
		t.active.Store(false)
		replies[i] = pipe.EvalSha(within, c.list.sha, []string{c.listKey(t.tenant, t.sample.Load())}, t.batch()...)
	}
	_, _ = pipe.Exec(within) // each reply has its own error
	for i, t := range due {
		alive, err := replies[i].Int64()
		if err == nil {
			t.told()
			alive <<= t.sample.Load()
		}
		if redis.HasErrorPrefix(err, "NOSCRIPT") || err == nil && len(t.pending) > 0 {
			alive, err = c.tell(ctx, t)
		}
		if err != nil {
			t.again()
			failed = append(failed, t)
			continue
		}
		t.looked = now
		c.grant(t, alive, created[i])
	}
	return failed
}

// batch returns the next pending counters as arguments of the script.
func (t *tenantCounters) batch() []any {
	batch := t.pending[:min(len(t.pending), touchBatch)]
	args := make([]any, 0, 2*len(batch))
	for _, m := range batch {
		args = append(args, m.expires, m.name.Append(nil))
	}
	return args
}

// told removes the counters of the last batch.
func (t *tenantCounters) told() {
	if t.pending = t.pending[min(len(t.pending), touchBatch):]; len(t.pending) == 0 {
		t.pending = nil
	}
}

// grant sets how many counters may be created, for a tenant with so many counters alive. created
// was read before they were counted.
func (c *Census) grant(t *tenantCounters, alive, created int64) {
	t.alive.Store(alive)
	if bound, known := c.boundOf(t.tenant); known && bound != t.bound.Load() {
		t.setBound(bound)
	}
	c.setGrant(t, created)
}

// tell adds the pending counters to the list of a tenant, and returns how many are alive.
func (c *Census) tell(ctx context.Context, t *tenantCounters) (alive int64, err error) {
	for {
		n, err := c.run(ctx, t.tenant, t.sample.Load(), t.batch())
		if err != nil {
			return 0, err
		}
		if t.told(); t.pending == nil {
			return n << t.sample.Load(), nil
		}
	}
}

// run runs census.lua and returns the length of a list.
func (c *Census) run(ctx context.Context, tenant limit.TenantID, sample uint32, args []any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	keys := []string{c.listKey(tenant, sample)}
	reply := c.o.Client.EvalSha(ctx, c.list.sha, keys, args...)
	if redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
		reply = c.o.Client.Eval(ctx, c.list.text, keys, args...)
	}
	n, err := reply.Int64()
	if err != nil {
		return 0, fmt.Errorf("count the counters of a tenant: %w", err)
	}
	return n, nil
}

func (c *Census) listKey(tenant limit.TenantID, sample uint32) string {
	return c.o.Prefix(tenant) + "n" + string(tenant[:]) + string(rune('0'+sample))
}

// Alive returns an estimate of the counters of a tenant with this bound (0: the default one) that
// are alive, by the list that all instances share. The list is up to ten seconds old.
func (c *Census) Alive(ctx context.Context, tenant limit.TenantID, bound int64) (int64, error) {
	sample := sampleOf(c.boundOr(bound))
	n, err := c.run(ctx, tenant, sample, nil)
	return n << sample, err
}
