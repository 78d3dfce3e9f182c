package check

import (
	"weir/internal/limit"

	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// readQueues limit the number of concurrent reads of the source. Reads of one kind do not wait for
// reads of another: changes do not wait for first loads of many tenants, and first loads do not
// wait for a tenant with a million subjects. Each queue is first in, first out.
type readQueues struct {
	first   chan struct{} // tenants that are not loaded
	failing chan struct{} // those of them whose last load has failed
	changes chan struct{} // of tenants that are loaded
	retries chan struct{} // of them, after a read that has failed
	again   chan struct{} // of tenants whose data may be from another history
	long    chan struct{} // loads that have already read a page of subjects
	further chan struct{} // changes that have: each page of them
	slow    chan struct{} // those of them that were in failing or retries
	large   chan struct{} // long and slow ones that exceed a share of the memory
}

func newReadQueues() readQueues {
	return readQueues{
		first: make(chan struct{}, 3), failing: make(chan struct{}, 2), changes: make(chan struct{}, 2), retries: make(chan struct{}, 2),
		again: make(chan struct{}, againReaders), long: make(chan struct{}, 2), further: make(chan struct{}, 2), slow: make(chan struct{}, 1), large: make(chan struct{}, 1),
	}
}

// reading is a place in a read queue.
type reading struct {
	queues *readQueues
	in     chan struct{}
	large  bool  // it has the place of a large tenant, too
	bytes  int64 // as counted by memory
}

// enter waits for a place in the queue, until ctx ends.
func (q *readQueues) enter(ctx context.Context, queue chan struct{}) (*reading, error) {
	select {
	case queue <- struct{}{}:
		return &reading{queues: q, in: queue}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *reading) end() {
	if r.large {
		<-r.queues.large
	}
	if r.in != nil {
		<-r.in
	}
}

// moveToLong moves the read to the queue of long reads, or to one of its own if it may fail again.
// The source is not being read at this time.
func (r *reading) moveToLong(ctx context.Context) error {
	queue := r.queues.long
	switch r.in {
	case r.queues.long, r.queues.slow:
		return nil
	case r.queues.failing, r.queues.retries:
		queue = r.queues.slow
	}
	return r.moveTo(ctx, queue)
}

// nextPage moves changes to a queue of their own, or to that of reads that may fail again, and to
// its end if they are in it: changes of tenants with very many overrides follow each other for as
// long as somebody makes them. They wait for no large load. It is only for reads that have nothing
// in memory while they wait.
func (r *reading) nextPage(ctx context.Context) error {
	switch r.in {
	case r.queues.failing, r.queues.retries, r.queues.slow:
		return r.moveTo(ctx, r.queues.slow)
	}
	return r.moveTo(ctx, r.queues.further)
}

// moveTo gives up the place and waits for one in the queue.
func (r *reading) moveTo(ctx context.Context, queue chan struct{}) error {
	<-r.in
	r.in = nil
	select {
	case queue <- struct{}{}:
		r.in = queue
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enterLarge waits for the place of a large tenant. The read keeps its place among the long ones,
// so that only few wait here with what they have read.
func (r *reading) enterLarge(ctx context.Context) error {
	if r.large {
		return nil
	}
	if err := r.moveToLong(ctx); err != nil {
		return err
	}
	select {
	case r.queues.large <- struct{}{}:
		r.large = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// first loads a tenant that is not loaded.
func (p *Policies) first(ctx context.Context, tenant limit.TenantID) (*Policy, error) {
	if err := p.memory.refusal(tenant, p.clock()); err != nil {
		return nil, err
	}
	e, _ := p.tenants.LoadOrCompute(tenant, func() (*tenantEntry, bool) { return &tenantEntry{}, false })
	if policy := e.policy.Load(); policy != nil {
		return policy, nil
	}
	ended := e.beginFirst()
	defer ended()
	began := p.clock()
	if err := p.load(ctx, tenant, e, p.queue(tenant), stale{rules: true, subjects: true}); err != nil {
		p.metrics.policies.loadErrors.Inc()
		switch {
		case errors.Is(err, errTooLarge):
			p.refuse(tenant, err)
		case errors.Is(err, ErrUnknownTenant):
			p.failing.forget(tenant)
		default:
			p.failed(tenant, e, err)
		}
		if !e.pinned.Load() {
			p.remove(tenant, e)
		}
		return nil, err
	}
	p.failing.forget(tenant)
	p.metrics.policies.load.Observe(p.clock().Sub(began).Seconds())
	p.refreshLater(tenant, e)
	return e.policy.Load(), nil
}

// refuse stops the loading of a tenant for some time.
func (p *Policies) refuse(tenant limit.TenantID, err error) {
	p.memory.refuse(tenant, err, p.clock())
	p.log.Error("the policy of a tenant exceeds its share of WEIR_POLICY_MEMORY, and the rest is in use; its checks are not answered",
		"tenant_id", tenant, "bytes", p.memory.limit)
}

// beginFirst records that the first load is running. The caller calls ended when it is over.
func (e *tenantEntry) beginFirst() (ended func()) {
	first := make(chan struct{})
	e.mu.Lock()
	e.first = first
	e.mu.Unlock()
	return func() {
		e.mu.Lock()
		e.first = nil
		e.mu.Unlock()
		close(first)
	}
}

// load reads what is stale and replaces the policy. It works for several callers, so it returns a
// panic as a PanicError. After a compileError, a loaded tenant has its rules of before and its
// subjects of now.
func (p *Policies) load(ctx context.Context, tenant limit.TenantID, e *tenantEntry, queue chan struct{}, what stale) (err error) {
	defer RecoverTo(&err)
	reading, err := p.queues.enter(ctx, queue)
	if err != nil {
		return err
	}
	defer func() {
		p.count(reading, 0)
		reading.end()
	}()
	e.loading.Lock()
	defer e.loading.Unlock()
	current := e.policy.Load()
	next := current
	var invalid error
	if what.rules || current == nil {
		var broken *compileError
		switch next, err = p.loadRules(ctx, tenant); {
		case current != nil && errors.As(err, &broken):
			next, invalid = current, err // subjects follow their changes nevertheless
		case err != nil:
			return err
		case current != nil:
			next.subjects = current.subjects
		}
	}
	if what.all {
		e.subjects.Store(0)
	}
	if what.subjects || current == nil {
		registered, upTo, err := p.loadSubjects(ctx, tenant, e, next, reading)
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
	now := p.tick()
	e.used.CompareAndSwap(0, now)
	if err := p.hold(e, reading, next); err != nil {
		return err
	}
	// New rules follow the subjects. A change may delete a plan and move its subjects, or create a
	// rule with overrides. With the rules first, these subjects would have other limits until the
	// end of the read.
	e.policy.Store(next)
	p.answered.Add(1)
	p.metrics.tenantsLoaded.Set(float64(p.tenants.Size()))
	return invalid
}

// loadRules reads a policy without its subjects. It returns a compileError for one that is invalid.
func (p *Policies) loadRules(ctx context.Context, tenant limit.TenantID) (*Policy, error) {
	answered := p.answered.Load()
	data, err := p.source.LoadPolicy(ctx, tenant)
	if err != nil {
		return nil, p.sourceError(err, answered)
	}
	policy, err := CompilePolicy(p.keys, tenant, data)
	if err != nil {
		return nil, &compileError{version: data.Version, err: err}
	}
	return policy, nil
}

// loadSubjects updates the subjects of the policy and returns them, or returns a new set if the
// source no longer has the changes since the last read, or if they do not fit into the old one.
func (p *Policies) loadSubjects(ctx context.Context, tenant limit.TenantID, e *tenantEntry, policy *Policy, r *reading) (*subjects, int64, error) {
	if since := e.subjects.Load(); since != 0 {
		upTo, err := p.loadChanges(ctx, tenant, since, policy.subjects, r.nextPage)
		// If the table was too small for a change, a new one is perhaps not: it has nothing that no
		// subject has any more.
		if !errors.Is(err, ErrHistoryGone) && (err != nil || !policy.subjects.overflown()) {
			return policy.subjects, upTo, err
		}
		// If the read fails halfway, the next one must not continue from this set.
		e.subjects.Store(0)
	}
	return p.listSubjects(ctx, tenant, e, policy, r)
}

// listSubjects reads all subjects, page by page, and then the changes that happened in the
// meantime. The source may serve other reads between two pages, so the subjects are consistent only
// at the end.
func (p *Policies) listSubjects(ctx context.Context, tenant limit.TenantID, e *tenantEntry, policy *Policy, r *reading) (*subjects, int64, error) {
	all := &subjects{credits: policy.subjects.credits}
	var from int64
	for after, page := "", 0; ; page++ {
		answered := p.answered.Load()
		version, more, err := p.source.ListSubjects(ctx, tenant, after, func(d SubjectData) {
			all.store(d)
			after = d.Subject
		})
		if err != nil {
			return nil, 0, p.sourceError(err, answered)
		}
		if page == 0 {
			from = version
		}
		if err := p.fits(ctx, e, r, policy, all); err != nil {
			return nil, 0, err
		}
		if !more && page == 0 {
			all.seal()
			return all, from, nil
		}
		if !more {
			break
		}
		if err := r.moveToLong(ctx); err != nil {
			return nil, 0, err
		}
	}
	upTo, err := p.loadChanges(ctx, tenant, from, all, r.moveToLong)
	all.seal()
	if err == nil && all.overflown() {
		err = errTooLarge
	}
	return all, upTo, err
}

// loadChanges stores what has changed since a version, page by page, and calls between before each
// further page. It returns the version of the first page: the next read continues from there, and
// finds what has changed between the pages. What had changed before is in one of the pages, as it
// is by then.
func (p *Policies) loadChanges(
	ctx context.Context, tenant limit.TenantID, since int64, into *subjects, between func(context.Context) error,
) (upTo int64, err error) {
	for after, page := "", 0; ; page++ {
		answered := p.answered.Load()
		version, next, err := p.source.ChangedSubjects(ctx, tenant, since, after, into.store)
		if err != nil {
			return 0, p.sourceError(err, answered)
		}
		if page == 0 {
			upTo = version
		}
		if next == "" {
			return upTo, nil
		}
		if err := between(ctx); err != nil {
			return 0, err
		}
		after = next
	}
}

type compileError struct {
	version int64
	err     error
}

func (e *compileError) Error() string { return "policy does not compile: " + e.err.Error() }
func (e *compileError) Unwrap() error { return e.err }

// refreshLater starts to read what is stale of a loaded tenant, unless a refresh is running. If the
// tenant is being loaded for the first time, that load does it when it ends.
func (p *Policies) refreshLater(tenant limit.TenantID, e *tenantEntry) {
	if e.beginRefresh() {
		if !p.begin() {
			e.stopRefresh()
			return
		}
		go p.refresh(tenant, e)
	}
}

// beginRefresh reports whether something of a loaded tenant is stale and no refresh is running. If
// so, the caller reads it.
func (e *tenantEntry) beginRefresh() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.policy.Load() == nil || !e.stale.any() || e.refreshing != nil || e.gone {
		return false
	}
	e.refreshing = make(chan struct{})
	e.unqueue()
	return true
}

// take returns what is stale and is now read; false at the end of the refresh.
func (e *tenantEntry) take() (what stale, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	what, e.stale = e.stale, stale{}
	if !what.any() || e.gone {
		e.endRefresh()
		return what, false
	}
	return what, true
}

// restore marks what could not be read as stale again.
func (e *tenantEntry) restore(what stale) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stale.rules = e.stale.rules || what.rules
	e.stale.subjects = e.stale.subjects || what.subjects
	e.stale.all = e.stale.all || what.all
}

// refresh reads until nothing is stale, or until Close. If the source is unavailable, it retries
// with increasing delays. A read begins after the notification of a change, so it sees that change
// or a later one. After a failure, it reads in the queue of retries: some tenants whose changes
// take as long as a read may, and then fail, would otherwise keep those of all others waiting.
func (p *Policies) refresh(tenant limit.TenantID, e *tenantEntry) {
	const first, longest = 50 * time.Millisecond, time.Second
	defer p.work.Done()
	wait, queue := first, p.queues.changes
	for what, more := e.take(); more; what, more = e.take() {
		if p.read(tenant, e, queue, what) {
			wait, queue = first, p.queues.changes
			continue
		}
		queue = p.queues.retries
		if p.working.Err() != nil {
			e.stopRefresh()
			return
		}
		pause(p.working, wait/2+rand.N(wait))
		wait = min(2*wait, longest)
	}
}

// read reads what is stale of a loaded tenant. If it must be tried again, read returns false, and
// it is stale again.
func (p *Policies) read(tenant limit.TenantID, e *tenantEntry, queue chan struct{}, what stale) (done bool) {
	err := p.load(p.working, tenant, e, queue, what)
	var broken *compileError
	var panicked *PanicError
	switch {
	case err == nil:
		return true
	case p.working.Err() != nil:
		e.restore(what)
		return false
	case errors.Is(err, ErrUnknownTenant):
		p.remove(tenant, e)
		return true
	case errors.As(err, &broken): // until the next change, which comes with a notification
		p.metrics.policyErrors.Inc()
		p.log.Error("policy does not compile; the last valid one stays active", "tenant_id", tenant, "version", broken.version, "error", broken.err)
		return true
	case errors.Is(err, errTooLarge) && e.pinned.Load():
		p.metrics.policyErrors.Inc()
		p.log.Error("the policy of a tenant has become larger than WEIR_POLICY_MEMORY; the last valid one stays active", "tenant_id", tenant)
		return true
	case errors.Is(err, errTooLarge): // until its next change, nothing would replace the old policy
		p.refuse(tenant, err)
		if p.remove(tenant, e) {
			p.metrics.policies.evictions.Inc()
		}
		return true
	}
	level := slog.LevelWarn
	if errors.As(err, &panicked) {
		level = slog.LevelError
		p.metrics.policyErrors.Inc()
		what.all = what.subjects // some of them may have been stored
	}
	p.log.Log(context.Background(), level, "policy cannot be read; the last valid one stays active", "tenant_id", tenant, "error", err)
	e.restore(what)
	return false
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stopRefresh ends a refresh before its end.
func (e *tenantEntry) stopRefresh() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endRefresh()
}

// endRefresh ends a refresh. The caller holds the lock.
func (e *tenantEntry) endRefresh() {
	close(e.refreshing)
	e.refreshing = nil
}
