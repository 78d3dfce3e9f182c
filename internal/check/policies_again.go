package check

import (
	"container/heap"
	"sync"
	"time"

	"weir/internal/limit"
)

// After the restore of a backup, all loaded tenants are read again. An instance with 66 000 of them
// needs a minute for it, in which checks use what was loaded before. So the tenants that asked last
// are read first, and a change does not wait for any of them.

// again has the tenants that are to be read again.
type again struct {
	mu      sync.Mutex
	waiting againHeap
	readers int
}

const (
	// againReaders is the number of tenants that are read again at once.
	againReaders = 2
	// againPause is how long a reader pauses after a tenant that cannot be read.
	againPause = time.Second
)

// againTenant is a tenant that is to be read again.
type againTenant struct {
	id    limit.TenantID
	entry *tenantEntry
	used  int64
}

// againHeap is a heap by the last use: the latest one is first.
type againHeap []againTenant

func (h againHeap) Len() int           { return len(h) }
func (h againHeap) Less(i, j int) bool { return h[i].used > h[j].used }
func (h againHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *againHeap) Push(x any)        { *h = append(*h, x.(againTenant)) }
func (h *againHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = againTenant{}
	*h = (*h)[:last]
	return x
}

// Reload means that the data of a tenant may be from another history, even with an equal version.
// It is read again in the background.
func (p *Policies) Reload(tenant limit.TenantID) {
	e, ok := p.tenants.Load(tenant)
	if !ok {
		return
	}
	e.mu.Lock()
	e.stale = stale{rules: true, subjects: true, all: true}
	// A load or refresh that is running reads it all again when it has ended.
	queue := e.policy.Load() != nil && e.refreshing == nil && e.queued == nil && !e.gone
	if queue {
		e.queued = make(chan struct{})
	}
	e.mu.Unlock()
	if queue {
		p.readLater(againTenant{tenant, e, e.used.Load()})
	}
}

// unqueue notes that a tenant is no longer to be read again. The caller holds the lock.
func (e *tenantEntry) unqueue() {
	if e.queued != nil {
		close(e.queued)
		e.queued = nil
	}
}

// requeue ends a refresh that is to be tried again later.
func (e *tenantEntry) requeue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.gone {
		e.queued = make(chan struct{})
	}
	e.endRefresh()
}

// readLater adds a tenant to those that are read again.
func (p *Policies) readLater(t againTenant) {
	p.again.mu.Lock()
	defer p.again.mu.Unlock()
	heap.Push(&p.again.waiting, t)
	if p.again.readers < againReaders && p.begin() {
		p.again.readers++
		go p.readAgain()
	}
}

// next returns the tenant that asked last. If there is none, the reader ends.
func (a *again) next() (t againTenant, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		a.readers--
		a.waiting = nil // of as many tenants as were loaded
		return t, false
	}
	t, _ = heap.Pop(&a.waiting).(againTenant)
	return t, true
}

// readAgain reads tenants again until none is left, or until Close.
func (p *Policies) readAgain() {
	defer p.work.Done()
	for {
		t, ok := p.again.next()
		if !ok || p.working.Err() != nil {
			return
		}
		if !t.entry.beginRefresh() { // a change came first, and reads everything
			continue
		}
		for what, more := t.entry.take(); more; what, more = t.entry.take() {
			if p.read(t.id, t.entry, p.queues.again, what) {
				continue
			}
			t.entry.requeue()
			t.used = 0 // the others first
			p.readLater(t)
			pause(p.working, againPause)
			break
		}
	}
}
