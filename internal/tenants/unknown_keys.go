package tenants

import (
	"sync"
	"time"
)

// unknownKeys remembers keys that the database does not have, for one to two periods: two
// generations, of which the older one is dropped completely. It evicts only its own entries.
type unknownKeys struct {
	mu           sync.Mutex
	young, old   map[[32]byte]struct{}
	youngBeganAt time.Time
}

func (u *unknownKeys) has(hash [32]byte, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.age(now)
	_, young := u.young[hash]
	_, old := u.old[hash]
	return young || old
}

func (u *unknownKeys) add(hash [32]byte, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.age(now)
	if u.young == nil {
		u.young = map[[32]byte]struct{}{}
	}
	if len(u.young) < maxUnknown/2 {
		u.young[hash] = struct{}{}
	}
}

func (u *unknownKeys) age(now time.Time) {
	since := now.Sub(u.youngBeganAt)
	if since >= 0 && since < unknownPeriod {
		return
	}
	u.old = u.young
	if since < 0 || since >= 2*unknownPeriod {
		u.old = nil
	}
	u.young, u.youngBeganAt = nil, now
}
