package check

import (
	"errors"
	"sync"

	"weir/internal/limit"
)

// failingTenants has the tenants whose last first load has failed. Their next one has a place in a
// queue of their own, and keeps it until it ends. Otherwise some tenants whose reads take as long
// as a read may, and then fail, would hold all places whenever their checks arrive, and first
// checks of other tenants would wait for longer than a check does.
//
// A read that fails while nothing else can be read says nothing about its tenant: in an outage of
// the source, all would be in this queue, and large ones would keep the others waiting there. So it
// counts only if a load of another tenant has succeeded since that read of the source began, or if
// somebody else knows that the source answers: on a quiet instance, there may be no other load. How
// long the tenant had waited for a place before does not matter.
type failingTenants struct {
	mu      sync.Mutex
	tenants map[limit.TenantID]struct{}
}

func (f *failingTenants) add(tenant limit.TenantID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tenants == nil {
		f.tenants = map[limit.TenantID]struct{}{}
	}
	f.tenants[tenant] = struct{}{}
}

func (f *failingTenants) forget(tenant limit.TenantID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tenants, tenant)
}

func (f *failingTenants) has(tenant limit.TenantID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, failed := f.tenants[tenant]
	return failed
}

// ownError is an error of a read that says something about its tenant.
type ownError struct{ error }

func (e *ownError) Unwrap() error { return e.error }

// sourceError returns the error of a read of the source. answered is what p.answered was when the
// read began.
func (p *Policies) sourceError(err error, answered int64) error {
	if err == nil || p.answered.Load() == answered {
		return err
	}
	return &ownError{err}
}

// failed notes that the first load of a tenant has failed.
func (p *Policies) failed(tenant limit.TenantID, e *tenantEntry, err error) {
	var own *ownError
	var compiled *compileError
	if !e.pinned.Load() && (errors.As(err, &own) || errors.As(err, &compiled)) {
		p.failing.add(tenant)
	}
}

// Failing notes that a tenant could not be read although the source has answered others since. It
// does nothing for a tenant that has been read by now.
func (p *Policies) Failing(tenant limit.TenantID) {
	if e, ok := p.tenants.Load(tenant); ok && (e.pinned.Load() || e.policy.Load() != nil) {
		return
	}
	p.failing.add(tenant)
}

// queue returns the queue for a first load of a tenant.
func (p *Policies) queue(tenant limit.TenantID) chan struct{} {
	if p.failing.has(tenant) {
		return p.queues.failing
	}
	return p.queues.first
}
