package tenants

import (
	"slices"
	"sync"

	"github.com/google/uuid"
)

// Loops execute the pending tasks of all tenants in steps. A step takes the first tasks of each
// tenant in turn: the first one of each, then the second one of each, and so on. Its cost does not
// depend on how many tasks a tenant has, and is bounded however many tenants there are.
//
// A step finds its tenants with one of the queries of queries/turns.sql. Usually few tasks are due,
// and their tenants are those of the step. Else the step goes through the tenants that have tasks,
// in the order of their ids, and the next step continues behind the last one. So each of them comes
// in turn. After them, the tenants with the oldest tasks fill the step, so that those with a
// backlog do not wait until the loop has gone through all others.
//
// Example with 3 tasks in a step: the tenant a has a million due tasks, and b, c, d and e have one
// each. The first step takes one of a, b and c each, the second one those of d and e, and one of a.

const (
	// turnsLookedAt is the number of tenants with pending tasks among which a step looks for those
	// whose tasks are due. A look takes some microseconds.
	turnsLookedAt = 10_000
	turnsFailed   = 100 // of so many tenants that fail, the cause is none of them, and the round ends
	leastShare    = 10  // tasks of a tenant that a step reads at least
)

// turn is where a loop continues. Each server has its own.
type turn struct {
	mu   sync.Mutex
	last uuid.UUID
}

// after returns the tenant after which the next step begins.
func (t *turn) after() uuid.UUID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// passed records the last tenant of a step; uuid.Nil: there is none behind it.
func (t *turn) passed(last uuid.UUID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = last
}

// turnsOf returns the tenants of a step in order: those in turn before those with the oldest tasks.
// Those in without are left out. It never returns nil, which would be NULL.
func turnsOf(inTurn, withOldest, without []uuid.UUID) []uuid.UUID {
	out := make([]uuid.UUID, 0, len(inTurn)+len(withOldest))
	seen := make(map[uuid.UUID]bool, len(inTurn)+len(withOldest)+len(without))
	for _, tenant := range without {
		seen[tenant] = true
	}
	for _, tenant := range slices.Concat(inTurn, withOldest) {
		if !seen[tenant] {
			seen[tenant] = true
			out = append(out, tenant)
		}
	}
	return out
}

// shareOf returns how many tasks of each tenant a step reads that executes most of them. It bounds
// their sum, and leaves few places empty where one tenant has many and the others have few.
func shareOf(most, tenants int) int32 {
	return int32(min(most, max(leastShare, 2*most/max(tenants, 1))))
}

// isFull reports whether tasks may be left after a step: it has as many as it may have, of all
// tenants or of one.
func isFull[T any](tasks []T, most int, share int32, tenant func(T) uuid.UUID) bool {
	count := map[uuid.UUID]int32{}
	for _, task := range tasks {
		if count[tenant(task)]++; count[tenant(task)] == share {
			return true
		}
	}
	return len(tasks) == most
}

// failedTenants are the tenants whose tasks failed in a round, and the first error.
type failedTenants struct {
	tenants []uuid.UUID
	first   error
}

func (f *failedTenants) add(tenant uuid.UUID, err error) {
	f.tenants = append(f.tenants, tenant)
	if f.first == nil {
		f.first = err
	}
}

func (f *failedTenants) has(tenant uuid.UUID) bool { return slices.Contains(f.tenants, tenant) }
