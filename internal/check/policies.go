package check

import (
	"weir/internal/limit"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/sync/singleflight"
)

// ErrUnknownTenant is returned by a PolicySource for a tenant that does not exist or is suspended.
var ErrUnknownTenant = errors.New("unknown tenant")

// ErrHistoryGone is returned by a PolicySource if it no longer has the requested changes.
var ErrHistoryGone = errors.New("the requested changes are no longer available")

// Errors of Policies itself, in addition to those of its source. All wrap ErrPolicyUnavailable.
var (
	ErrPolicyUnavailable = errors.New("the tenant's policy is not in memory")
	errNotInTime         = fmt.Errorf("%w, and could not be read in time", ErrPolicyUnavailable)
	errTooManyWait       = fmt.Errorf("%w, and too many checks wait for tenants that are not in memory", ErrPolicyUnavailable)
	errClosed            = fmt.Errorf("%w, and it is not loaded because the instance is stopping", ErrPolicyUnavailable)
	errTooLarge          = fmt.Errorf("%w, because it does not fit into the memory limit", ErrPolicyUnavailable)
)

// PolicySource reads a tenant's configuration. Versions are compared only for equality, because
// after the restore of a backup they can be lower.
type PolicySource interface {
	// LoadPolicy reads rules, plans, plan limits and routes, all at one instant. It returns
	// ErrUnknownTenant if there is no such active tenant.
	LoadPolicy(ctx context.Context, tenant limit.TenantID) (PolicyData, error)
	// ListSubjects calls each for a page of registered subjects, in the order of their names,
	// beginning after the name after. more reports whether others follow. version is that of the
	// tenant's subjects at the instant of the read.
	ListSubjects(ctx context.Context, tenant limit.TenantID, after string, each func(SubjectData)) (version int64, more bool, err error)
	// ChangedSubjects calls each for a page of the subjects that were registered or changed after
	// version since, which is not 0, beginning after the name after, and in the first page, which
	// begins after "", for those that were deleted. The order is fixed, and changes of a subject do
	// not move it. next is where the next page begins, empty after the last one. version is that of
	// the tenant's subjects at the instant of the read. After ErrHistoryGone, list all of them
	// again.
	ChangedSubjects(ctx context.Context, tenant limit.TenantID, since int64, after string, each func(SubjectData)) (version int64, next string, err error)
}

// Policies caches the compiled policies of tenants. Reading a loaded policy takes no lock and does
// not wait. A policy is replaced as a whole. While the source is unavailable, or if a new
// configuration does not compile, the last valid policy stays active. With a Limit, each load
// evicts the least recently used tenants when memory runs short, up to a share for each tenant. An
// evicted tenant is loaded again when it is used.
type Policies struct {
	source  PolicySource
	keys    Keys
	log     *slog.Logger
	metrics *Metrics
	clock   func() time.Time
	tenants *xsync.Map[limit.TenantID, *tenantEntry] // loaded, or being loaded
	loads   singleflight.Group
	queues  readQueues
	failing failingTenants
	again   again

	answered atomic.Int64 // number of loads that have succeeded

	// working ends when Close is called, and ends every goroutine of the cache.
	working context.Context
	stop    context.CancelFunc
	closing sync.Mutex // guards closed
	closed  bool
	work    sync.WaitGroup // Add only while closed is false

	waiting    atomic.Int64 // number of checks of tenants that are not loaded
	maxWaiting int64
	coldWait   time.Duration

	memory memory
}

// tenantEntry is created before a tenant's first load begins, so that a change during the load is
// not lost.
type tenantEntry struct {
	policy atomic.Pointer[Policy]
	used   atomic.Int64 // when a check last used it, by memory.now
	pinned atomic.Bool

	loading  sync.Mutex   // held while reading
	subjects atomic.Int64 // version of the subjects in policy; 0: all of them must be read

	mu         sync.Mutex    // guards the fields below
	stale      stale         // what must be read again
	first      chan struct{} // closed when the first load ends; nil if there is none
	refreshing chan struct{} // closed when the current refresh ends; nil if there is none
	queued     chan struct{} // closed when it is no longer to be read again; nil: it is not
	bytes      int64         // as counted by memory
	gone       bool          // the entry is no longer in the map
}

// stale says which parts of a tenant's configuration changed since they were last read.
type stale struct {
	rules, subjects bool
	all             bool // all subjects, from the first to the last
}

func (s stale) any() bool { return s.rules || s.subjects }

// How long checks wait for a tenant that is not loaded, and how many checks can wait.
const (
	coldWait   = 2 * time.Second
	maxWaiting = 1000
)

// NewPolicies returns a cache of source, without a limit.
func NewPolicies(source PolicySource, keys Keys, log *slog.Logger, metrics *Metrics) *Policies {
	p := &Policies{
		source: source, keys: keys, log: log, metrics: metrics, clock: time.Now,
		tenants: xsync.NewMap[limit.TenantID, *tenantEntry](),
		queues:  newReadQueues(), maxWaiting: maxWaiting, coldWait: coldWait,
	}
	p.working, p.stop = context.WithCancel(context.Background())
	p.memory.refused = map[limit.TenantID]refusal{}
	p.tick()
	return p
}

// Get returns the tenant's policy. It waits only for a tenant that is not loaded, two seconds at
// most, for one read of the source that all callers share. Its errors are ErrPolicyUnavailable and
// those of the source. If the source panics, so does Get.
func (p *Policies) Get(ctx context.Context, tenant limit.TenantID) (*Policy, error) {
	policy, err := p.get(ctx, tenant)
	if err != nil {
		PanicAgain(err)
	}
	return policy, err
}

// Loaded returns the policy of a tenant that is in memory, and nil for one that is not. It does not
// wait.
func (p *Policies) Loaded(tenant limit.TenantID) *Policy {
	if e, ok := p.tenants.Load(tenant); ok {
		return e.policy.Load()
	}
	return nil
}

// get is Get, but returns a panic of the source as a PanicError.
func (p *Policies) get(ctx context.Context, tenant limit.TenantID) (*Policy, error) {
	if e, ok := p.tenants.Load(tenant); ok {
		if policy := e.policy.Load(); policy != nil {
			// Write only once per second, so that CPUs do not exchange the cache line of a busy
			// tenant.
			if now := p.memory.now.Load(); e.used.Load() != now {
				e.used.Store(now)
			}
			return policy, nil
		}
	}
	return p.await(ctx, tenant)
}

// await is Get for a tenant that is not loaded. At most maxWaiting checks wait here, however many
// tenants are being read and however slow the source is, so that checks of loaded tenants are not
// affected.
func (p *Policies) await(ctx context.Context, tenant limit.TenantID) (policy *Policy, err error) {
	defer func() {
		if err != nil {
			p.metrics.policies.unanswered.Inc()
		}
	}()
	if err := p.memory.refusal(tenant, p.clock()); err != nil {
		return nil, err
	}
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > p.maxWaiting {
		return nil, errTooManyWait
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.coldWait, errNotInTime)
	defer cancel()
	policy, own, err := p.wait(ctx, tenant)
	if own || err != nil && !errors.Is(err, ErrUnknownTenant) {
		return policy, err
	}
	// This load began before the check. If the tenant was evicted since then, or changed its state,
	// the load may have missed a change that the check must see.
	if e, ok := p.tenants.Load(tenant); ok {
		if policy := e.policy.Load(); policy != nil {
			return policy, nil
		}
	}
	// The next load began after the previous one ended, and therefore after the check began.
	policy, _, err = p.wait(ctx, tenant)
	return policy, err
}

// wait waits for a load of the tenant. own reports whether this call began it.
func (p *Policies) wait(ctx context.Context, tenant limit.TenantID) (policy *Policy, own bool, err error) {
	result, began := p.fetch(tenant)
	select {
	case r := <-result:
		policy, _ = r.Val.(*Policy)
		return policy, *began, r.Err
	case <-ctx.Done():
		return nil, true, context.Cause(ctx)
	}
}

// fetch loads a tenant that is not loaded, once for all callers that wait at the same time. own
// reports whether this call began the load; read it after the result.
func (p *Policies) fetch(tenant limit.TenantID) (result <-chan singleflight.Result, own *bool) {
	own = new(bool)
	// The load continues without the caller that began it, because others wait for it too.
	return p.loads.DoChan(tenant.String(), func() (any, error) {
		*own = true
		if !p.begin() {
			return nil, errClosed
		}
		defer p.work.Done()
		return p.first(p.working, tenant)
	}), own
}

// begin reports whether a goroutine of the cache may start. The goroutine must call p.work.Done at
// its end.
func (p *Policies) begin() bool {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.closed {
		return false
	}
	p.work.Add(1)
	return true
}

// Close ends all reads and waits for them. Get still returns tenants that are loaded.
func (p *Policies) Close() {
	p.closing.Lock()
	p.closed = true
	p.closing.Unlock()
	p.stop()
	p.work.Wait()
}

// Preload loads a tenant before any check. It waits as long as the read takes. Its errors are those
// of the source, a PanicError, and ErrPolicyUnavailable for a tenant that does not fit.
func (p *Policies) Preload(ctx context.Context, tenant limit.TenantID) error {
	if e, ok := p.tenants.Load(tenant); ok && e.policy.Load() != nil {
		return nil
	}
	result, _ := p.fetch(tenant)
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Changed reports the source's current versions of a tenant. If they differ from those of a loaded
// tenant, it is read again in the background, and the old policy answers until then. For a tenant
// that is not loaded, Changed does nothing.
func (p *Policies) Changed(tenant limit.TenantID, policyVersion, subjectsVersion int64) {
	e, ok := p.tenants.Load(tenant)
	if !ok {
		return
	}
	policy := e.policy.Load()
	e.mu.Lock()
	// During the first load it is not known what it has read: read both again.
	if policy == nil || policy.version != policyVersion {
		e.stale.rules = true
	}
	if policy == nil || e.subjects.Load() != subjectsVersion {
		e.stale.subjects = true
	}
	e.mu.Unlock()
	p.refreshLater(tenant, e)
}

// Gone means that a tenant was deleted or suspended: its checks are no longer answered.
func (p *Policies) Gone(tenant limit.TenantID) {
	p.memory.forgive(tenant)
	p.failing.forget(tenant)
	if e, ok := p.tenants.Load(tenant); ok {
		p.remove(tenant, e)
	}
}

// Pin makes sure that a tenant is never evicted.
func (p *Policies) Pin(tenant limit.TenantID) {
	e, _ := p.tenants.LoadOrCompute(tenant, func() (*tenantEntry, bool) { return &tenantEntry{}, false })
	e.pinned.Store(true)
}

// Settle waits until the active policy is as new as the last call of Changed, or until ctx ends.
func (p *Policies) Settle(ctx context.Context, tenant limit.TenantID) error {
	for {
		// A tenant that is not loaded is read after the change, at its next check.
		e, ok := p.tenants.Load(tenant)
		if !ok {
			return nil
		}
		pending := e.pending()
		if pending == nil {
			return nil
		}
		select {
		case <-pending:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.working.Done(): // nothing is read any more
			return p.working.Err()
		}
	}
}

// pending returns a channel to wait for until a change is active; nil if there is nothing to wait
// for.
func (e *tenantEntry) pending() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.refreshing != nil:
		return e.refreshing
	case !e.stale.any():
		return nil
	case e.first != nil:
		// The first load may have read before the change. When it ends, a refresh is running.
		return e.first
	}
	return e.queued // when it is closed, a refresh is running
}
