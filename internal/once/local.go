package once

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Limits for the records in this process. The oldest record is evicted first. A tenant has at most
// a quarter, so that one tenant cannot evict the records of all others.
const (
	maxLocalRecords = 10_000
	maxLocalBytes   = 16 << 20
	tenantPart      = 4
)

// local has the records of this process, which are used while Redis is unavailable.
type local struct {
	mu      sync.Mutex
	entries map[string]*entry
	count   atomic.Int64 // of the entries: without any, find and has take no lock
	all     recordList
	tenants map[uuid.UUID]*recordList
	now     func() time.Time
}

// recordList has entries in the order of their claims.
type recordList struct {
	list.List
	bytes int // of the answers
}

// over reports whether there are too many records for a part of the limits.
func (r *recordList) over(part int) bool {
	return r.Len() > maxLocalRecords/part || r.bytes > maxLocalBytes/part
}

func (r *recordList) oldest() *entry {
	front := r.Front()
	if front == nil {
		return nil
	}
	e, _ := front.Value.(*entry)
	return e
}

type entry struct {
	name    string
	tenant  uuid.UUID
	print   Print
	answer  []byte
	settled chan struct{} // closed when the answer is stored, or the claim is released
	expires time.Time
	at, own *list.Element // among all records, and among those of the tenant
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

// has reports whether there is a record in this process.
func (l *local) has(claim *Claim) bool {
	if l.count.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current(claim) != nil
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
		answer := e.answer
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
		case <-e.settled:
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
	if e != nil && !l.now().Before(e.expires) { // finish adds records which expire before older ones
		l.remove(e)
		return nil
	}
	return e
}

func (l *local) finish(claim *Claim, answer []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := claim.entry
	if e == nil { // the claim was created in Redis
		if l.entries[claim.name] != nil {
			return
		}
		e = l.add(claim, l.now().Add(Lifetime-time.Since(claim.since)))
	} else if l.entries[claim.name] != e { // evicted, and perhaps claimed again
		return
	}
	e.answer = append([]byte{}, answer...)
	l.all.bytes += len(answer)
	l.tenants[e.tenant].bytes += len(answer)
	close(e.settled)
	l.evict(e.tenant)
}

func (l *local) release(claim *Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := claim.entry; e != nil && l.entries[claim.name] == e {
		l.remove(e)
	}
}

// add creates a pending entry. The caller holds the lock.
func (l *local) add(claim *Claim, expires time.Time) *entry {
	e := &entry{name: claim.name, tenant: claim.tenant, print: claim.print, settled: make(chan struct{}), expires: expires}
	own := l.tenants[e.tenant]
	if own == nil {
		own = new(recordList)
		l.tenants[e.tenant] = own
	}
	l.entries[e.name], e.at, e.own = e, l.all.PushBack(e), own.PushBack(e)
	l.count.Add(1)
	return e
}

// evict removes expired entries, and the oldest ones if there are too many, of the tenant or of
// all. The caller holds the lock.
func (l *local) evict(tenant uuid.UUID) {
	for own := l.tenants[tenant]; own != nil && own.over(tenantPart); {
		l.remove(own.oldest())
	}
	now := l.now()
	for e := l.all.oldest(); e != nil && (l.all.over(1) || !now.Before(e.expires)); e = l.all.oldest() {
		l.remove(e)
	}
}

// remove removes an entry and wakes the callers that wait for it. The caller holds the lock.
func (l *local) remove(e *entry) {
	own := l.tenants[e.tenant]
	delete(l.entries, e.name)
	l.count.Add(-1)
	l.all.Remove(e.at)
	l.all.bytes -= len(e.answer)
	own.bytes -= len(e.answer)
	if own.Remove(e.own); own.Len() == 0 {
		delete(l.tenants, e.tenant)
	}
	if e.answer == nil {
		close(e.settled)
	}
}
