package check

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/limit"
)

// memory limits the total size of compiled policies.
type memory struct {
	limit    int64        // bytes; 0: no limit
	bytes    atomic.Int64 // of all entries
	reading  atomic.Int64 // bytes of what is being read, which is in no entry yet
	now      atomic.Int64 // seconds since 1970, as of the last tick
	evicting sync.Mutex   // held while an entry gets its memory, and tenants are evicted for it
	shortAt  time.Time    // when the log last said that active tenants do not fit

	mu      sync.Mutex
	refused map[limit.TenantID]refusal // tenants that did not fit
}

type refusal struct {
	err   error
	until time.Time
}

const (
	// A tenant that does not fit is not tried again for this time, because the attempt takes about
	// as long as loading all tenants that fit. Changes do not shorten it: anybody can make one.
	refuseFor = 30 * time.Second
	// A tenant may take this part of the limit from others. It may take more only of what they do
	// not use.
	sharePart = 4
	// A tenant that was used within this number of seconds is active.
	activeFor = 60
	// The eviction of active tenants is logged at most this often.
	shortEvery = time.Minute
)

// Limit limits the estimated total size of policies, in bytes. Tenants are evicted only when it is
// known how large the tenant is that takes their place, so what is being read can exceed the limit,
// by at most the share of one tenant, a sixteenth, and a page for each read. Call it before the
// first Get.
func (p *Policies) Limit(bytes int64) {
	p.memory.limit = bytes
	p.metrics.policies.limit.Set(float64(bytes))
}

// HalfFree reports whether the policies take less than half of the limit. There is then space for
// tenants that are not in use yet.
func (p *Policies) HalfFree() bool {
	return p.memory.limit == 0 || 2*p.memory.total() < p.memory.limit
}

// Run updates the clock that records when tenants were used, until ctx ends.
func (p *Policies) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.tick()
		case <-ctx.Done():
			return
		}
	}
}

// tick reads the clock for all checks of the next second.
func (p *Policies) tick() int64 {
	now := p.clock().Unix()
	p.memory.now.Store(now)
	return now
}

// refusal returns why the tenant must not be loaded now.
func (m *memory) refusal(tenant limit.TenantID, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, known := m.refused[tenant]
	if known && !now.Before(r.until) {
		delete(m.refused, tenant)
		return nil
	}
	return r.err
}

func (m *memory) refuse(tenant limit.TenantID, err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[tenant] = refusal{err, now.Add(refuseFor)}
}

// forgive forgets a tenant that was deleted or suspended.
func (m *memory) forgive(tenant limit.TenantID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, tenant)
}

// account records the current size of an entry.
func (p *Policies) account(e *tenantEntry, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	p.memory.bytes.Add(bytes - e.bytes)
	e.bytes = bytes
	p.metrics.policies.bytes.Set(float64(p.memory.total()))
}

// remove removes an entry, if it is still in the map.
func (p *Policies) remove(tenant limit.TenantID, e *tenantEntry) bool {
	removed := false
	p.tenants.Compute(tenant, func(there *tenantEntry, _ bool) (*tenantEntry, xsync.ComputeOp) {
		if there != e {
			return there, xsync.CancelOp
		}
		removed = true
		return nil, xsync.DeleteOp
	})
	if !removed {
		return false
	}
	e.mu.Lock()
	p.memory.bytes.Add(-e.bytes)
	e.bytes, e.gone = 0, true
	e.unqueue()
	e.mu.Unlock()
	p.metrics.tenantsLoaded.Set(float64(p.tenants.Size()))
	p.metrics.policies.bytes.Set(float64(p.memory.total()))
	return true
}

// total returns the bytes of all entries, and of what is being read.
func (m *memory) total() int64 { return m.bytes.Load() + m.reading.Load() }

// exceedsShare reports whether a tenant of this size may take only memory that others do not use.
func (m *memory) exceedsShare(bytes int64) bool { return m.limit > 0 && bytes > m.limit/sharePart }

// isActive reports whether a tenant was used within the last minute.
func (m *memory) isActive(used int64) bool { return m.now.Load()-used < activeFor }

// count counts what a load has read so far, until hold counts it as an entry, or the load fails.
func (p *Policies) count(r *reading, bytes int64) {
	p.memory.reading.Add(bytes - r.bytes)
	r.bytes = bytes
	p.metrics.policies.bytes.Set(float64(p.memory.total()))
}

// fits counts what has been read of a tenant. It evicts nobody, because only the end of the read
// shows how large the tenant is. It fails with errTooLarge as soon as hold would.
func (p *Policies) fits(ctx context.Context, e *tenantEntry, r *reading, policy *Policy, read *subjects) error {
	m := &p.memory
	bytes := policy.size + read.bytes()
	p.count(r, bytes)
	if m.exceedsShare(bytes) || m.limit > 0 && m.total() > m.limit && bytes > m.limit/16 {
		// One at a time: two large tenants would refuse each other, and together exceed the limit
		// by more than a share.
		if err := r.enterLarge(ctx); err != nil {
			return err
		}
	}
	if read.overflown() || !p.hasRoom(e, r, bytes) {
		return errTooLarge
	}
	return nil
}

// hold counts a complete policy as the entry's, and evicts others if necessary. It fails with
// errTooLarge if the tenant exceeds its share and there is no room for it.
func (p *Policies) hold(e *tenantEntry, r *reading, policy *Policy) error {
	m := &p.memory
	if m.limit > 0 {
		m.evicting.Lock() // others must not take the room in the meantime
		defer m.evicting.Unlock()
	}
	bytes := policy.bytes()
	if !p.hasRoom(e, r, bytes) {
		return errTooLarge
	}
	p.count(r, 0)
	p.account(e, bytes)
	if m.limit > 0 && m.bytes.Load() > m.limit {
		p.evict(e, m.exceedsShare(bytes) && !e.pinned.Load())
	}
	return nil
}

// hasRoom reports whether a tenant of this size may stay. Up to its share, it always may. Beyond
// that, it may use what is free, or what evict makes free of tenants that are not active, but
// leaves half of the limit to tenants within their shares: they are to survive an outage of the
// source.
func (p *Policies) hasRoom(e *tenantEntry, r *reading, bytes int64) bool {
	m := &p.memory
	if !m.exceedsShare(bytes) {
		return true
	}
	if e.pinned.Load() {
		return bytes <= m.limit
	}
	e.mu.Lock()
	old := e.bytes // the new ones take their place
	e.mu.Unlock()
	if m.total()-r.bytes-old+bytes <= m.limit {
		return true
	}
	kept := m.reading.Load() - r.bytes
	var small, activeSmall int64 // of tenants within their shares
	p.tenants.RangeRelaxed(func(_ limit.TenantID, other *tenantEntry) bool {
		policy := other.policy.Load()
		if policy == nil || other == e {
			return true
		}
		size := policy.bytes()
		stays := m.isActive(other.used.Load()) || other.pinned.Load()
		switch {
		case m.exceedsShare(size) && stays:
			kept += size
		case m.exceedsShare(size):
		case stays:
			activeSmall += size
			small += size
		default:
			small += size
		}
		return true
	})
	kept += max(activeSmall, min(small, m.limit/2))
	if old > 0 {
		return bytes+kept <= m.limit
	}
	// With a sixteenth to spare, the next small tenant does not evict it at once.
	return bytes+kept <= m.limit-m.limit/16
}

// evictable is a tenant that may be evicted.
type evictable struct {
	tenant        limit.TenantID
	entry         *tenantEntry
	active, large bool
	used          int64
}

// evictables returns the tenants that may be evicted for keep, in this order: those that are not
// active, those that exceed their share, the least recently used ones.
func (p *Policies) evictables(keep *tenantEntry) []evictable {
	m := &p.memory
	var all []evictable
	p.tenants.RangeRelaxed(func(tenant limit.TenantID, e *tenantEntry) bool {
		if policy := e.policy.Load(); e != keep && policy != nil && !e.pinned.Load() {
			used := e.used.Load()
			all = append(all, evictable{tenant, e, m.isActive(used), m.exceedsShare(policy.bytes()), used})
		}
		return true
	})
	slices.SortFunc(all, func(a, b evictable) int {
		switch {
		case a.active != b.active && b.active, a.active == b.active && a.large && !b.large:
			return -1
		case a.active != b.active, a.large != b.large:
			return 1
		}
		return cmp.Compare(a.used, b.used)
	})
	return all
}

// evict removes tenants, except keep, until the others fit with a sixteenth to spare, so that only
// one of many loads has to evict. For a large tenant, it evicts no more than necessary, and no
// active one. The caller holds the lock.
func (p *Policies) evict(keep *tenantEntry, large bool) {
	m := &p.memory
	active := 0
	for _, c := range p.evictables(keep) {
		enough := m.limit - m.limit/16
		switch {
		case large:
			enough = m.limit
		case c.active:
			enough = m.limit - m.limit/64
		}
		if m.bytes.Load() <= enough || large && c.active {
			break
		}
		if c.active {
			active++
		}
		if p.remove(c.tenant, c.entry) {
			p.metrics.policies.evictions.Inc()
		}
	}
	if active == 0 {
		return
	}
	p.metrics.policies.activeEvictions.Add(float64(active))
	if now := p.clock(); now.Sub(m.shortAt) >= shortEvery {
		m.shortAt = now
		p.log.Warn("WEIR_POLICY_MEMORY is too small for the tenants in use", "bytes", m.limit, "put_out", active)
	}
}

// policyMetrics are the metrics of Policies, except the number of tenants.
type policyMetrics struct {
	bytes, limit               prometheus.Gauge
	evictions, activeEvictions prometheus.Counter
	load                       prometheus.Histogram
	loadErrors, unanswered     prometheus.Counter
}

func newPolicyMetrics(counter func(name, help string) prometheus.Counter, gauge func(name, help string) prometheus.Gauge,
	histogram func(name, help string) prometheus.Histogram) policyMetrics {
	return policyMetrics{
		bytes:           gauge("weir_policy_memory_bytes", "Estimated memory of compiled policies, with those that are being loaded."),
		limit:           gauge("weir_policy_memory_limit_bytes", "Memory limit of compiled policies; 0 for no limit."),
		evictions:       counter("weir_policy_evictions_total", "Tenants whose policy was evicted from memory."),
		activeEvictions: counter("weir_policy_evictions_active_total", "Evicted tenants that were used within the last minute: the limit is too low."),
		load:            histogram("weir_policy_load_seconds", "Time to load a tenant that was not in memory, including the queue."),
		loadErrors:      counter("weir_policy_load_errors_total", "Loads of such a tenant that failed."),
		unanswered:      counter("weir_policy_unavailable_total", "Requests that failed because their tenant's policy was not in memory and could not be loaded in time."),
	}
}

// bytes returns the approximate size of the policy with its subjects.
func (p *Policy) bytes() int64 { return p.size + p.subjects.bytes() }
