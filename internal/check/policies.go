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

// ErrUnknownTenant is a PolicySource's answer for a tenant that does not exist or is suspended.
var ErrUnknownTenant = errors.New("unknown tenant")

// ErrHistoryGone is a PolicySource's answer where changes that old are no longer kept.
var ErrHistoryGone = errors.New("the changes asked for are no longer kept")

// Errors of Policies itself, beside those of its source. All wrap ErrPolicyUnavailable.
var (
	ErrPolicyUnavailable = errors.New("the tenant's policy is not in memory")
	errNotInTime         = fmt.Errorf("%w, and could not be read in time", ErrPolicyUnavailable)
	errTooManyWait       = fmt.Errorf("%w, and too many checks wait for others already", ErrPolicyUnavailable)
	errClosed            = fmt.Errorf("%w, and no more tenants are loaded: the instance is stopping", ErrPolicyUnavailable)
	errTooLarge          = fmt.Errorf("%w, for it alone would take more than all may", ErrPolicyUnavailable)
)

// PolicySource reads a tenant's configuration. Versions are compared for equality only: after
// the restore of a backup they may go back.
type PolicySource interface {
	// LoadPolicy reads rules, plans, plan limits and routes, all at one instant.
	// ErrUnknownTenant where there is no such active tenant.
	LoadPolicy(ctx context.Context, tenant limit.TenantID) (PolicyData, error)
	// ListSubjects calls each for registered subjects in the order of their names, for as many as
	// are well read at once, beginning behind the name after. more tells whether others follow.
	// version is that of the tenant's subjects at the instant of the reading.
	ListSubjects(ctx context.Context, tenant limit.TenantID, after string, each func(SubjectData)) (version int64, more bool, err error)
	// LoadSubjects calls each for every registered subject that was changed or deleted after
	// version since, which is not 0, and returns the version of the tenant's subjects that it
	// read. ErrHistoryGone: list all of them again.
	LoadSubjects(ctx context.Context, tenant limit.TenantID, since int64, each func(SubjectData)) (upTo int64, err error)
}

// Policies keeps compiled policies of the tenants that were asked for. Reading one that is
// loaded takes no lock and waits for nothing; a policy is replaced whole. While the source is
// away, or when a new configuration does not compile, the last good one stays. With a Limit, the
// least recently used tenants are evicted when memory runs short, and read again
// when they are.
type Policies struct {
	source  PolicySource
	keys    Keys
	log     *slog.Logger
	metrics *Metrics
	clock   func() time.Time
	tenants *xsync.Map[limit.TenantID, *tenantEntry] // loaded, or about to be
	loads   singleflight.Group
	lanes   lanes

	// working ends with Close, and with it every goroutine of the cache.
	working context.Context
	stop    context.CancelFunc
	closing sync.Mutex // guards closed
	closed  bool
	work    sync.WaitGroup // Add only while closed is false

	waiting    atomic.Int64 // checks of tenants that are not loaded
	maxWaiting int64
	coldWait   time.Duration

	memory memory
}

// tenantEntry exists from before a tenant's first load begins, so that a change which arrives
// in the middle of it is not lost.
type tenantEntry struct {
	policy atomic.Pointer[Policy]
	used   atomic.Int64 // when a check last asked for it, as memory.now has it
	pinned atomic.Bool

	loading  sync.Mutex   // held while reading
	subjects atomic.Int64 // version of the subjects in policy; 0: all of them are to be read

	mu         sync.Mutex    // guards what follows
	stale      stale         // what is to be read again
	first      chan struct{} // closed when the first load ends; nil while there is none
	refreshing chan struct{} // closed when the refresh under way ends; nil while there is none
	bytes      int64         // that memory has been told of
	gone       bool          // the entry is no longer in the map
}

// stale tells which halves of a tenant's configuration changed since they were last read.
type stale struct {
	rules, subjects bool
	all             bool // of the subjects, from the first to the last
}

func (s stale) any() bool { return s.rules || s.subjects }

// How long checks wait for a tenant that is not loaded, and how many of them do.
const (
	coldWait   = 2 * time.Second
	maxWaiting = 1000
)

// NewPolicies returns a cache over source, without a limit.
func NewPolicies(source PolicySource, keys Keys, log *slog.Logger, metrics *Metrics) *Policies {
	p := &Policies{
		source: source, keys: keys, log: log, metrics: metrics, clock: time.Now,
		tenants: xsync.NewMap[limit.TenantID, *tenantEntry](),
		lanes:   newLanes(), maxWaiting: maxWaiting, coldWait: coldWait,
	}
	p.working, p.stop = context.WithCancel(context.Background())
	p.memory.refused = map[limit.TenantID]refusal{}
	p.tick()
	return p
}

// Get returns the tenant's policy. Only for a tenant that is not loaded it waits, for one reading
// of the source that all share, and two seconds at most. Its errors are ErrPolicyUnavailable and
// the source's. If the source panics, so does Get.
func (p *Policies) Get(ctx context.Context, tenant limit.TenantID) (*Policy, error) {
	policy, err := p.get(ctx, tenant)
	if err != nil {
		PanicAgain(err)
	}
	return policy, err
}

// Loaded returns the policy of a tenant that is in memory, nil for one that is not. It waits for
// nothing.
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
			// Once a second, so that busy tenants do not pull a line of memory to and fro.
			if now := p.memory.now.Load(); e.used.Load() != now {
				e.used.Store(now)
			}
			return policy, nil
		}
	}
	return p.await(ctx, tenant)
}

// await is Get for a tenant that is not loaded. However many tenants are read at the time, and
// however slow the source is, no more than maxWaiting checks wait here, so that there is room
// left for those of tenants that are loaded.
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
	// This load began before the check did. If the tenant was evicted since then, or changed its
	// state, the load may have missed a change that the check must see.
	if e, ok := p.tenants.Load(tenant); ok {
		if policy := e.policy.Load(); policy != nil {
			return policy, nil
		}
	}
	// The next load began after the one above ended, and so after the check began.
	policy, _, err = p.wait(ctx, tenant)
	return policy, err
}

// wait waits for a load of the tenant. own tells that this call began it.
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
// tells that this call began the load; read it after the result.
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

// begin reports whether a goroutine of the cache may begin to work. It calls p.work.Done at its
// end.
func (p *Policies) begin() bool {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.closed {
		return false
	}
	p.work.Add(1)
	return true
}

// Close ends all reading and waits for it. Tenants that are loaded can still be asked for.
func (p *Policies) Close() {
	p.closing.Lock()
	p.closed = true
	p.closing.Unlock()
	p.stop()
	p.work.Wait()
}

// Preload is Get ahead of any check: it waits for as long as the reading takes, and its errors are
// the source's, a PanicError, and ErrPolicyUnavailable for a tenant that does not fit.
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

// Changed tells that the source now has these versions of a tenant. Where they differ from
// those of a loaded tenant, it is read again in the background; the old policy answers until then.
// A tenant that is not loaded costs nothing.
func (p *Policies) Changed(tenant limit.TenantID, policyVersion, subjectsVersion int64) {
	p.memory.forgive(tenant)
	e, ok := p.tenants.Load(tenant)
	if !ok {
		return
	}
	policy := e.policy.Load()
	e.mu.Lock()
	// In the middle of the first load it is not known what will have been read: read both again.
	if policy == nil || policy.version != policyVersion {
		e.stale.rules = true
	}
	if policy == nil || e.subjects.Load() != subjectsVersion {
		e.stale.subjects = true
	}
	e.mu.Unlock()
	p.refreshLater(tenant, e)
}

// Reload tells that what was read of a tenant may be of another history, even at an equal version.
func (p *Policies) Reload(tenant limit.TenantID) {
	p.memory.forgive(tenant)
	e, ok := p.tenants.Load(tenant)
	if !ok {
		return
	}
	e.mu.Lock()
	e.stale = stale{rules: true, subjects: true, all: true}
	e.mu.Unlock()
	p.refreshLater(tenant, e)
}

// Gone tells that a tenant was deleted or suspended: its checks are no longer answered.
func (p *Policies) Gone(tenant limit.TenantID) {
	p.memory.forgive(tenant)
	if e, ok := p.tenants.Load(tenant); ok {
		p.remove(tenant, e)
	}
}

// Pin keeps a tenant from ever being evicted.
func (p *Policies) Pin(tenant limit.TenantID) {
	e, _ := p.tenants.LoadOrCompute(tenant, func() (*tenantEntry, bool) { return &tenantEntry{}, false })
	e.pinned.Store(true)
}

// Settle waits until the policy in force is as new as Changed was last told, or ctx ends.
func (p *Policies) Settle(ctx context.Context, tenant limit.TenantID) error {
	for {
		// A tenant that is not there is read after the change, at its next check.
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
		}
	}
}

// pending returns what to wait for before a change is in force; nil: nothing.
func (e *tenantEntry) pending() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.refreshing != nil:
		return e.refreshing
	case e.stale.any():
		// The first load may have read before the change. When it ends, a refresh is under way.
		return e.first
	}
	return nil
}
