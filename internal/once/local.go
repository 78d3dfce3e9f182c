package once

import (
	"container/list"
	"context"
	"sync"
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

func (l *local) begin(ctx context.Context, claim *Claim, wait time.Duration) (*Claim, []byte, error) {
	var patience <-chan time.Time
	for {
		l.mu.Lock()
		l.evict(claim.tenant)
		e := l.entries[claim.name]
		if e == nil {
			claim.entry = l.add(claim, l.now().Add(Lifetime))
			l.mu.Unlock()
			return claim, nil, nil
		}
		answer := e.answer
		l.mu.Unlock()
		switch {
		case e.print != claim.print:
			return nil, nil, ErrReused
		case answer != nil:
			return nil, answer, nil
		}
		if patience == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-e.settled:
		case <-patience:
			return nil, nil, ErrPending
		case <-ctx.Done():
			return nil, nil, ErrPending
		}
	}
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
