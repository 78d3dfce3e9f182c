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

// memory bounds what the compiled policies take together.
type memory struct {
	limit    int64        // bytes; 0: none
	bytes    atomic.Int64 // of all entries
	now      atomic.Int64 // seconds since 1970, as of the last tick
	evicting sync.Mutex   // held while tenants are evicted
	shortAt  time.Time    // when the log was last told that active tenants do not fit

	mu      sync.Mutex
	refused map[limit.TenantID]refusal // tenants that do not fit at all
}

type refusal struct {
	err   error
	until time.Time
}

const (
	// A tenant that does not fit is not tried again for this time, unless it changes: to find that
	// out takes about as long as to load all that does fit.
	refuseFor = 30 * time.Second
	// A tenant that was asked for within so many seconds is active.
	activeFor = 60
	// The eviction of active tenants is logged at most this often.
	shortEvery = time.Minute
)

// Limit bounds what the policies take together, in bytes, by estimate: what is beyond it by the
// page that is being read is evicted at once. Call it before the first Get.
func (p *Policies) Limit(bytes int64) {
	p.memory.limit = bytes
	p.metrics.policies.limit.Set(float64(bytes))
}

// HalfFree reports whether the policies take less than half of what they may: then there is room
// for tenants that nobody has asked for yet.
func (p *Policies) HalfFree() bool {
	return p.memory.limit == 0 || 2*p.memory.bytes.Load() < p.memory.limit
}

// Run keeps the time by which it is known who was asked for when, until ctx ends.
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

// refusal returns why the tenant is not to be loaded now.
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

// forgive lets a tenant be tried again, for it has changed.
func (m *memory) forgive(tenant limit.TenantID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, tenant)
}

// account notes what an entry takes now.
func (p *Policies) account(e *tenantEntry, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	p.memory.bytes.Add(bytes - e.bytes)
	e.bytes = bytes
	p.metrics.policies.bytes.Set(float64(p.memory.bytes.Load()))
}

// remove takes an entry out, if it is still there.
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
	e.mu.Unlock()
	p.metrics.tenantsLoaded.Set(float64(p.tenants.Size()))
	p.metrics.policies.bytes.Set(float64(p.memory.bytes.Load()))
	return true
}

// fits counts what has been read of a tenant, makes room for it, and fails with errTooLarge where
// there would not be enough with all others evicted.
func (p *Policies) fits(e *tenantEntry, policy *Policy, read *subjects) error {
	bytes := policy.size + read.bytes()
	if read.overflown() || p.memory.limit > 0 && bytes > p.memory.limit {
		return errTooLarge
	}
	if e.policy.Load() == nil { // else what it has stays until the new set is there
		p.account(e, bytes)
		p.evict(e)
	}
	return nil
}

// evict removes the least recently used tenants, all but keep, until the
// others fit with a sixteenth to spare: so it has something to do only once in many loads.
func (p *Policies) evict(keep *tenantEntry) {
	m := &p.memory
	if m.limit == 0 || m.bytes.Load() <= m.limit {
		return
	}
	m.evicting.Lock()
	defer m.evicting.Unlock()
	if m.bytes.Load() <= m.limit { // another has made some
		return
	}
	type candidate struct {
		tenant limit.TenantID
		entry  *tenantEntry
		used   int64
	}
	var candidates []candidate
	p.tenants.RangeRelaxed(func(tenant limit.TenantID, e *tenantEntry) bool {
		if e != keep && e.policy.Load() != nil && !e.pinned.Load() {
			candidates = append(candidates, candidate{tenant, e, e.used.Load()})
		}
		return true
	})
	slices.SortFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.used, b.used) })
	active, now := 0, m.now.Load()
	for _, c := range candidates {
		enough := m.limit - m.limit/16
		if now-c.used < activeFor { // these are spared what can be spared
			enough = m.limit - m.limit/64
		}
		if m.bytes.Load() <= enough {
			break
		}
		if now-c.used < activeFor {
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
		p.log.Warn("WEIR_POLICY_MEMORY is too small for the tenants that are being asked for", "bytes", m.limit, "put_out", active)
	}
}

// policyMetrics is what Policies count, beside the number of tenants.
type policyMetrics struct {
	bytes, limit               prometheus.Gauge
	evictions, activeEvictions prometheus.Counter
	load                       prometheus.Histogram
	loadErrors, unanswered     prometheus.Counter
}

func newPolicyMetrics(counter func(name, help string) prometheus.Counter, gauge func(name, help string) prometheus.Gauge,
	histogram func(name, help string) prometheus.Histogram) policyMetrics {
	return policyMetrics{
		bytes:           gauge("weir_policy_memory_bytes", "Memory that compiled policies take together, by estimate."),
		limit:           gauge("weir_policy_memory_limit_bytes", "Memory that they may take; 0: there is no limit."),
		evictions:       counter("weir_policy_evictions_total", "Tenants whose policy was evicted from memory."),
		activeEvictions: counter("weir_policy_evictions_active_total", "Those of them that had been asked for within a minute: the limit is too small."),
		load:            histogram("weir_policy_load_seconds", "Time to load a tenant that was not in memory, waiting for its turn included."),
		loadErrors:      counter("weir_policy_load_errors_total", "Loads of such a tenant that failed."),
		unanswered:      counter("weir_policy_unavailable_total", "Requests that failed because their tenant's policy was not in memory and could not be loaded in time."),
	}
}

// bytes returns how much memory the policy takes with its subjects, roughly.
func (p *Policy) bytes() int64 { return p.size + p.subjects.bytes() }
