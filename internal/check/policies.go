package check

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
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

// PolicySource reads a tenant's configuration. Versions are compared for equality only: after
// the restore of a backup they may go back.
type PolicySource interface {
	// LoadPolicy reads rules, plans and plan limits, all at one instant.
	// ErrUnknownTenant where there is no such active tenant.
	LoadPolicy(ctx context.Context, tenant TenantID) (PolicyData, error)
	// LoadSubjects calls each for every registered subject that was changed or deleted after
	// version since, or with since 0 for every one there is, and returns the version of the
	// tenant's subjects that it read. ErrHistoryGone: begin again from 0.
	LoadSubjects(ctx context.Context, tenant TenantID, since int64, each func(SubjectData)) (upTo int64, err error)
}

// Policies keeps the compiled policy of every tenant that was asked for. Reading one that is
// loaded takes no lock and waits for nothing; a policy is replaced whole. While the source is
// away, or when a new configuration does not compile, the last good one stays.
type Policies struct {
	source  PolicySource
	keys    Keys
	log     *slog.Logger
	metrics *Metrics
	tenants *xsync.Map[TenantID, *tenantEntry]
	flight  singleflight.Group
	loads   chan struct{} // bounds how many loads run at once
}

// tenantEntry exists from before a tenant's first load begins, so that a change which arrives
// in the middle of it is not lost.
type tenantEntry struct {
	policy atomic.Pointer[Policy]

	loading  sync.Mutex   // held while reading
	subjects atomic.Int64 // version of the subjects in policy

	mu         sync.Mutex    // guards what follows
	stale      stale         // what is to be read again
	refreshing chan struct{} // closed when the refresh under way ends; nil while there is none
}

// stale tells which halves of a tenant's configuration changed since they were last read.
type stale struct{ rules, subjects bool }

func (s stale) any() bool { return s.rules || s.subjects }

const maxLoads = 4

// NewPolicies returns a cache over source.
func NewPolicies(source PolicySource, keys Keys, log *slog.Logger, metrics *Metrics) *Policies {
	return &Policies{
		source: source, keys: keys, log: log, metrics: metrics,
		tenants: xsync.NewMap[TenantID, *tenantEntry](),
		loads:   make(chan struct{}, maxLoads),
	}
}

// Get returns the tenant's policy. Only for a tenant that is not loaded it reads the source,
// once for all that wait; its errors are the source's.
func (p *Policies) Get(ctx context.Context, tenant TenantID) (*Policy, error) {
	if e, ok := p.tenants.Load(tenant); ok {
		if policy := e.policy.Load(); policy != nil {
			return policy, nil
		}
	}
	// The load goes on when the caller that began it goes away: others wait for it too.
	done := p.flight.DoChan(tenant.String(), func() (any, error) {
		return p.first(context.WithoutCancel(ctx), tenant)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*Policy), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *Policies) first(ctx context.Context, tenant TenantID) (*Policy, error) {
	e, _ := p.tenants.LoadOrCompute(tenant, func() (*tenantEntry, bool) { return &tenantEntry{}, false })
	if policy := e.policy.Load(); policy != nil {
		return policy, nil
	}
	if err := p.load(ctx, tenant, e, stale{rules: true, subjects: true}); err != nil {
		p.tenants.Delete(tenant)
		return nil, err
	}
	p.metrics.tenantsLoaded.Set(float64(p.tenants.Size()))
	p.startRefresh(tenant, e)
	return e.policy.Load(), nil
}

// load reads what is stale and swaps it in.
func (p *Policies) load(ctx context.Context, tenant TenantID, e *tenantEntry, what stale) error {
	p.loads <- struct{}{}
	defer func() { <-p.loads }()
	e.loading.Lock()
	defer e.loading.Unlock()
	current := e.policy.Load()
	next := current
	if what.rules || current == nil {
		data, err := p.source.LoadPolicy(ctx, tenant)
		if err != nil {
			return err
		}
		if next, err = CompilePolicy(p.keys, tenant, data); err != nil {
			return &compileError{version: data.Version, err: err}
		}
		if current != nil {
			next.subjects = current.subjects
		}
	}
	if what.subjects || current == nil {
		registered, upTo, err := p.loadSubjects(ctx, tenant, e, next.subjects)
		if err != nil {
			return err
		}
		if registered != next.subjects {
			withSubjects := *next
			withSubjects.subjects = registered
			next = &withSubjects
		}
		e.subjects.Store(upTo)
	}
	e.policy.Store(next)
	return nil
}

// loadSubjects brings known up to date and returns it, or a new set where the changes since
// the last reading are no longer kept.
func (p *Policies) loadSubjects(ctx context.Context, tenant TenantID, e *tenantEntry, known *subjects) (*subjects, int64, error) {
	upTo, err := p.source.LoadSubjects(ctx, tenant, e.subjects.Load(), func(d SubjectData) { storeSubject(known, d) })
	if !errors.Is(err, ErrHistoryGone) {
		return known, upTo, err
	}
	fresh := xsync.NewMap[string, *subjectEntry]()
	upTo, err = p.source.LoadSubjects(ctx, tenant, 0, func(d SubjectData) { storeSubject(fresh, d) })
	return fresh, upTo, err
}

type compileError struct {
	version int64
	err     error
}

func (e *compileError) Error() string { return "policy does not compile: " + e.err.Error() }
func (e *compileError) Unwrap() error { return e.err }

// Changed tells that the source now has these versions of a tenant. Where they differ from
// those of a loaded tenant, it is read again in the background; the old policy answers until then.
func (p *Policies) Changed(tenant TenantID, policyVersion, subjectsVersion int64) {
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
	if e.policy.Load() != nil { // else the first load starts it when it ends
		p.startRefresh(tenant, e)
	}
}

// Gone tells that a tenant was deleted or suspended: its checks are no longer answered.
func (p *Policies) Gone(tenant TenantID) {
	p.tenants.Delete(tenant)
	p.metrics.tenantsLoaded.Set(float64(p.tenants.Size()))
}

func (p *Policies) startRefresh(tenant TenantID, e *tenantEntry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stale.any() && e.refreshing == nil {
		e.refreshing = make(chan struct{})
		go p.refresh(tenant, e)
	}
}

// refresh reads until nothing is stale. A source that is away is asked again, less and less
// often. A read begins after the change was heard of, so it sees that change or a later one.
func (p *Policies) refresh(tenant TenantID, e *tenantEntry) {
	const first, longest = 50 * time.Millisecond, time.Second
	wait := first
	for {
		e.mu.Lock()
		what := e.stale
		e.stale = stale{}
		if !what.any() {
			e.endRefresh()
		}
		e.mu.Unlock()
		if !what.any() {
			return
		}
		err := p.load(context.Background(), tenant, e, what)
		var broken *compileError
		switch {
		case err == nil:
			wait = first
		case errors.Is(err, ErrUnknownTenant):
			p.Gone(tenant)
			e.mu.Lock()
			e.endRefresh()
			e.mu.Unlock()
			return
		case errors.As(err, &broken): // until the next change, which will be heard of
			p.metrics.policyErrors.Inc()
			p.log.Error("policy does not compile; the last good one stays", "tenant_id", tenant, "version", broken.version, "error", broken.err)
		default:
			p.log.Warn("policy cannot be read; the last good one stays", "tenant_id", tenant, "error", err)
			e.mu.Lock()
			e.stale.rules = e.stale.rules || what.rules
			e.stale.subjects = e.stale.subjects || what.subjects
			e.mu.Unlock()
			time.Sleep(wait/2 + rand.N(wait))
			wait = min(2*wait, longest)
		}
	}
}

func (e *tenantEntry) endRefresh() {
	close(e.refreshing)
	e.refreshing = nil
}

// Settle waits until a loaded tenant is as Changed was last told, or ctx ends.
func (p *Policies) Settle(ctx context.Context, tenant TenantID) error {
	e, ok := p.tenants.Load(tenant)
	if !ok {
		return nil
	}
	e.mu.Lock()
	refreshing := e.refreshing
	e.mu.Unlock()
	if refreshing == nil {
		return nil
	}
	select {
	case <-refreshing:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
