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
	now      atomic.Int64 // seconds since 1970, as of the last tick
	evicting sync.Mutex   // held while tenants are evicted
	shortAt  time.Time    // when the log last said that active tenants do not fit

	mu      sync.Mutex
	refused map[limit.TenantID]refusal // tenants that exceed the limit by themselves
}

type refusal struct {
	err   error
	until time.Time
}

const (
	// A tenant that exceeds the limit is not tried again for this time, unless it changes, because
	// the attempt takes about as long as loading all tenants that fit.
	refuseFor = 30 * time.Second
	// A tenant that was used within this number of seconds is active.
	activeFor = 60
	// The eviction of active tenants is logged at most this often.
	shortEvery = time.Minute
)

// Limit limits the estimated total size of policies, in bytes. When it is exceeded by at most the
// page that is being read, tenants are evicted immediately. Call it before the first Get.
func (p *Policies) Limit(bytes int64) {
	p.memory.limit = bytes
	p.metrics.policies.limit.Set(float64(bytes))
}

// HalfFree reports whether the policies take less than half of the limit. There is then space for
// tenants that are not in use yet.
func (p *Policies) HalfFree() bool {
	return p.memory.limit == 0 || 2*p.memory.bytes.Load() < p.memory.limit
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

// forgive allows another attempt to load a tenant, because it has changed.
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
	p.metrics.policies.bytes.Set(float64(p.memory.bytes.Load()))
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
	p.metrics.policies.bytes.Set(float64(p.memory.bytes.Load()))
	return true
}

// fits counts what has been read of a tenant and evicts others if necessary. It fails with
// errTooLarge if the tenant does not fit even without all others.
func (p *Policies) fits(e *tenantEntry, policy *Policy, read *subjects) error {
	bytes := policy.size + read.bytes()
	if read.overflown() || p.memory.limit > 0 && bytes > p.memory.limit {
		return errTooLarge
	}
	if e.policy.Load() == nil { // otherwise the old set stays until the new one is complete
		p.account(e, bytes)
		p.evict(e)
	}
	return nil
}

// evict removes the least recently used tenants, except keep, until the others fit with a sixteenth
// to spare, so that only one of many loads has to evict.
func (p *Policies) evict(keep *tenantEntry) {
	m := &p.memory
	if m.limit == 0 || m.bytes.Load() <= m.limit {
		return
	}
	m.evicting.Lock()
	defer m.evicting.Unlock()
	if m.bytes.Load() <= m.limit { // another load has evicted enough
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
		if now-c.used < activeFor { // active tenants are evicted last
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
		bytes:           gauge("weir_policy_memory_bytes", "Estimated memory of compiled policies."),
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
