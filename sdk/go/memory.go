package weir

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	memoryTime    = time.Second
	memoryEntries = 10_000
)

// A memory stores denials of the server until they end, so that a caller that continues to check
// costs nothing.
type memory struct {
	held atomic.Int64 // number of entries; if it is 0, no key is built

	mu      sync.Mutex
	entries map[string]remembered
}

type remembered struct {
	decision Decision
	sentAt   time.Time // when the request was sent, which is before the decision
	until    time.Time
}

func newMemory() *memory { return &memory{entries: map[string]remembered{}} }

// recall returns the stored denial for a question, if it is still valid.
func (m *memory) recall(q *question, now time.Time) (Decision, bool) {
	if m == nil || m.held.Load() == 0 {
		return Decision{}, false
	}
	key := q.key()
	m.mu.Lock()
	entry, found := m.entries[key]
	if found && !now.Before(entry.until) {
		delete(m.entries, key)
		m.held.Add(-1)
		found = false
	}
	m.mu.Unlock()
	if !found {
		return Decision{}, false
	}
	return entry.at(now), true
}

// at returns the decision with the times of now.
func (r *remembered) at(now time.Time) Decision {
	d := r.decision
	d.Source = SourceMemory
	passed := now.Sub(r.sentAt).Milliseconds()
	if d.RetryAfterMS.Known {
		d.RetryAfterMS.Value = max(0, d.RetryAfterMS.Value-passed)
	}
	if d.ResetAfterMS.Known {
		d.ResetAfterMS.Value = max(0, d.ResetAfterMS.Value-passed)
	}
	if d.Denial != nil && d.RetryAfterMS.Known {
		denial := *d.Denial
		denial.RetryAfter = N(ceilSeconds(d.RetryAfterMS.Value))
		d.Denial = &denial
	}
	if d.RetryAfterMS.Known && d.Headers.RetryAfter != "" {
		d.Headers.RetryAfter = strconv.FormatInt(ceilSeconds(d.RetryAfterMS.Value), 10)
	}
	return d
}

// remember stores a denial. It ignores other decisions.
func (m *memory) remember(q *question, d *Decision, sentAt time.Time) {
	if m == nil || d.Allowed || d.Source != SourceServer || d.Replayed {
		return
	}
	lasts := memoryTime
	if wait, known := d.RetryAfter(); known {
		lasts = min(lasts, wait)
	}
	if lasts <= 0 {
		return
	}
	key := q.key()
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, found := m.entries[key]; !found && len(m.entries) >= memoryEntries {
		m.evict(sentAt)
	}
	m.entries[key] = remembered{decision: *d, sentAt: sentAt, until: sentAt.Add(lasts)}
	m.held.Store(int64(len(m.entries)))
}

// evict removes all entries that have ended, or else one other entry.
func (m *memory) evict(now time.Time) {
	for key, entry := range m.entries {
		if !now.Before(entry.until) {
			delete(m.entries, key)
		}
	}
	if len(m.entries) >= memoryEntries {
		for key := range m.entries {
			delete(m.entries, key)
			return
		}
	}
}
