package once

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Limits for the records in this process. The oldest record is evicted first.
const (
	maxLocalRecords = 10_000
	maxLocalBytes   = 16 << 20
)

// local has the records of this process, which are used while Redis is unavailable.
type local struct {
	mu      sync.Mutex
	entries map[string]*entry
	oldest  *list.List // of *entry, in the order of their claims
	bytes   int
	now     func() time.Time
}

type entry struct {
	name    string
	print   Print
	answer  []byte
	settled chan struct{} // closed when the answer is stored, or the claim is released
	expires time.Time
	at      *list.Element
}

func newLocal(now func() time.Time) *local {
	return &local{entries: map[string]*entry{}, oldest: list.New(), now: now}
}

func (l *local) begin(ctx context.Context, claim *Claim, wait time.Duration) (*Claim, []byte, error) {
	var patience <-chan time.Time
	for {
		l.mu.Lock()
		l.evict()
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
	l.bytes += len(answer)
	close(e.settled)
	l.evict()
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
	e := &entry{name: claim.name, print: claim.print, settled: make(chan struct{}), expires: expires}
	l.entries[e.name], e.at = e, l.oldest.PushBack(e)
	return e
}

// evict removes expired entries, and the oldest ones if there are too many. The caller holds the
// lock.
func (l *local) evict() {
	for front := l.oldest.Front(); front != nil; front = l.oldest.Front() {
		e, _ := front.Value.(*entry)
		if l.now().Before(e.expires) && len(l.entries) <= maxLocalRecords && l.bytes <= maxLocalBytes {
			return
		}
		l.remove(e)
	}
}

// remove removes an entry and wakes the callers that wait for it. The caller holds the lock.
func (l *local) remove(e *entry) {
	delete(l.entries, e.name)
	l.oldest.Remove(e.at)
	l.bytes -= len(e.answer)
	if e.answer == nil {
		close(e.settled)
	}
}
