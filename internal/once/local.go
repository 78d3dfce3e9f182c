package once

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Limits for the records in this process. A tenant has at most a quarter, and evicts its own oldest
// record. If all have too many, the oldest one of the tenant with the most is evicted. So a few
// tenants with very many evict their own, and not those of others.
const (
	maxLocalRecords = 10_000
	maxLocalBytes   = 16 << 20
	tenantPart      = 4
)

// local has the records of this process: answers that could not be stored in Redis, and one for
// each claim that has no answer yet, also if it is in Redis. If Redis becomes unavailable while a
// request is being executed, a repeat finds that one.
//
// The records of such claims are not evicted, because a repeat would then be executed at the same
// time. There are as many as requests with keys that are being executed.
type local struct {
	mu      sync.Mutex
	entries map[string]*entry
	count   atomic.Int64 // of the entries: without any, find takes no lock
	all     recordList   // of those whose requests are not being executed
	tenants map[uuid.UUID]*recordList
	largest largest
	now     func() time.Time
}

type entry struct {
	name    string
	tenant  uuid.UUID
	print   Print
	answer  []byte
	settled chan struct{} // for waiting repeats, if any: closed when there is an answer, or the entry is removed
	expires time.Time
	at, own *list.Element // among all records, and among those of the tenant; nil: its request is being executed
}

func newLocal(now func() time.Time) *local {
	return &local{entries: map[string]*entry{}, tenants: map[uuid.UUID]*recordList{}, now: now}
}

// begin is Begin with the records of this process alone.
func (l *local) begin(ctx context.Context, claim *Claim, wait time.Duration) (*Claim, []byte, error) {
	answer, err := l.look(ctx, claim, wait, true)
	if answer != nil || err != nil {
		return nil, answer, err
	}
	return claim, nil, nil
}

// find returns the answer of a record in this process, or nil if there is no record. Such a record
// stays valid when Redis is available again: Redis does not know it, or only that it is pending.
func (l *local) find(ctx context.Context, claim *Claim, wait time.Duration) ([]byte, error) {
	if l.count.Load() == 0 {
		return nil, nil
	}
	return l.look(ctx, claim, wait, false)
}

// hold creates the record of a claim that is in Redis. It returns false if there is one already, of
// a request that was claimed here meanwhile, because it did not reach Redis.
func (l *local) hold(claim *Claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current(claim) != nil {
		return false
	}
	claim.entry = l.add(claim, l.now().Add(Lifetime-time.Since(claim.since)))
	return true
}

// look waits for the answer of a record and returns it. If there is no record, it returns nil. It
// creates one then, if create is set.
func (l *local) look(ctx context.Context, claim *Claim, wait time.Duration, create bool) ([]byte, error) {
	var patience <-chan time.Time
	for {
		l.mu.Lock()
		e := l.current(claim)
		if e == nil {
			if create {
				claim.entry = l.add(claim, l.now().Add(Lifetime))
			}
			l.mu.Unlock()
			return nil, nil
		}
		answer, settled := e.answer, e.settled
		if answer == nil && settled == nil {
			settled = make(chan struct{})
			e.settled = settled
		}
		l.mu.Unlock()
		switch {
		case e.print != claim.print:
			return nil, ErrReused
		case answer != nil:
			return answer, nil
		}
		if patience == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-settled:
		case <-patience:
			return nil, ErrPending
		case <-ctx.Done():
			return nil, ErrPending
		}
	}
}

// current returns the record of a claim's key, or nil. The caller holds the lock.
func (l *local) current(claim *Claim) *entry {
	l.evict(claim.tenant)
	e := l.entries[claim.name]
	if e != nil && !l.now().Before(e.expires) { // the order is not that of their expiry
		l.remove(e)
		return nil
	}
	return e
}

func (l *local) finish(claim *Claim, answer []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := claim.entry
	if e == nil || l.entries[claim.name] != e { // expired, and perhaps claimed again
		return
	}
	e.answer = append([]byte{}, answer...)
	e.settle()
	l.list(e)
	l.evict(e.tenant)
}

func (l *local) release(claim *Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := claim.entry; e != nil && l.entries[claim.name] == e {
		l.remove(e)
	}
}

// abandon makes the record of a claim without an answer one that can be evicted.
func (l *local) abandon(claim *Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := claim.entry; l.entries[claim.name] == e && e.at == nil {
		l.list(e)
		l.evict(e.tenant)
	}
}

// add creates a pending entry. The caller holds the lock.
func (l *local) add(claim *Claim, expires time.Time) *entry {
	e := &entry{name: claim.name, tenant: claim.tenant, print: claim.print, expires: expires}
	l.entries[e.name] = e
	l.count.Add(1)
	return e
}

// list adds an entry to those that can be evicted. The caller holds the lock.
func (l *local) list(e *entry) {
	own := l.tenants[e.tenant]
	if own == nil {
		own = &recordList{place: -1}
		l.tenants[e.tenant] = own
	}
	e.at, e.own = l.all.PushBack(e), own.PushBack(e)
	l.all.bytes += len(e.answer)
	own.bytes += len(e.answer)
	l.largest.changed(own)
}

// evict removes expired entries whose requests are not being executed, and others of these if the
// tenant or all have too many. The caller holds the lock.
func (l *local) evict(tenant uuid.UUID) {
	for own := l.tenants[tenant]; own != nil && own.over(tenantPart); {
		l.remove(own.oldest())
	}
	now := l.now()
	for e := l.all.oldest(); e != nil && !now.Before(e.expires); e = l.all.oldest() {
		l.remove(e)
	}
	for l.all.over(1) {
		l.remove(l.largest.first().oldest())
	}
}

// remove removes an entry and wakes the callers that wait for it. The caller holds the lock.
func (l *local) remove(e *entry) {
	delete(l.entries, e.name)
	l.count.Add(-1)
	e.settle()
	if e.at == nil {
		return
	}
	own := l.tenants[e.tenant]
	l.all.Remove(e.at)
	l.all.bytes -= len(e.answer)
	own.bytes -= len(e.answer)
	if own.Remove(e.own); own.Len() == 0 {
		delete(l.tenants, e.tenant)
	}
	l.largest.changed(own)
}

// settle wakes the callers that wait for an entry. The caller holds the lock.
func (e *entry) settle() {
	if e.settled != nil {
		close(e.settled)
		e.settled = nil
	}
}
