package usage

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"weir/internal/limit"
)

// With many active tenants, writing the counts of each of them every second would cost more than
// the checks. Therefore, the counts of quiet tenants are held in memory and written together, at
// most maxHold after they were counted. The counts of busy tenants, and of those that somebody
// looks at, are still written every second.
//
// The tenants take turns by shard. With a hold of 4 seconds, the first second writes shards 0, 4, 8
// and so on, and the next one shards 1, 5, 9 and so on. For example, 100,000 tenants with a check
// every two seconds have 50,000 tenants to write each second without a hold. With a hold of 32
// seconds, about 3,100 are written each second, each with all of its counts since its last turn.
const (
	// maxHold is the longest time that counts are held, in flushes of a second each. It is a power
	// of two that divides usageShards.
	maxHold = 32
	// The hold is doubled while more tenants than manyTenants are written in a second, and halved
	// while there are fewer than fewTenants.
	manyTenants = 1000
	fewTenants  = 300
	// busyChecks is the number of checks from which the counts of a tenant are written in the next
	// second.
	busyChecks = 100
)

// hold says which shards are drained in which second. The lock of delivery guards it.
type hold struct {
	seconds int // a power of two from 1 to maxHold
	turn    int // the number of drains
}

// due reports whether a shard is drained completely this time.
func (h *hold) due(shard int) bool { return shard%h.seconds == h.turn%h.seconds }

// next ends a drain that has taken the counts of so many tenants.
func (h *hold) next(tenants int) {
	h.turn++
	switch {
	case tenants > manyTenants && h.seconds < maxHold:
		h.seconds *= 2
	case tenants < fewTenants && h.seconds > 1:
		h.seconds /= 2
	}
}

// drain moves counts to a buffer: those of the shards that are due and of tenants that are busy or
// looked at, or those of all tenants. It returns the instant from which it holds counts, in
// milliseconds since 1970; 0 if it holds none.
func (u *Recorder) drain(now time.Time, all bool, looked map[limit.TenantID]bool, to *usageBuffer) (heldSinceMS int64) {
	lookedIn := [usageShards][]limit.TenantID{}
	for tenant := range looked {
		i := shardOf(tenant)
		lookedIn[i] = append(lookedIn[i], tenant)
	}
	taken := 0
	for i := range u.shards {
		s := &u.shards[i]
		var moved []table
		s.mu.Lock()
		if all || u.hold.due(i) || s.heldSinceMS > 0 && now.UnixMilli()-s.heldSinceMS >= maxHold*usageFlushEvery.Milliseconds() {
			taken += len(s.dirty)
			moved = s.takeAll(now)
		} else {
			moved = s.takeUrgent(lookedIn[i])
			if since := s.heldSinceMS; since > 0 && (heldSinceMS == 0 || since < heldSinceMS) {
				heldSinceMS = since
			}
		}
		s.mu.Unlock()
		if len(moved) > 0 {
			u.build(i, moved, to)
		}
	}
	u.hold.next(taken)
	return heldSinceMS
}

// lookedAt returns the tenants that somebody looks at.
func (u *Recorder) lookedAt() map[limit.TenantID]bool {
	if u.looked == nil {
		return nil
	}
	out := map[limit.TenantID]bool{}
	for _, tenant := range u.looked() {
		out[tenant] = true
	}
	return out
}

// dueSubjects returns the keys of the lists of subjects to deliver now. Without a hold, these are
// all lists every ten seconds. With a hold, a list costs one write: it is due when its minute has
// ended and all shards have had their turn since then. The lists of tenants that are looked at are
// due every ten seconds. The oldest lists come first.
func (u *Recorder) dueSubjects(now time.Time, last bool, looked map[limit.TenantID]bool) (due []Key) {
	periodic := now.Sub(u.tops) >= usageSubjectsEvery
	all := last || u.hold.seconds == 1 && periodic
	if u.hold.seconds == 1 && !all {
		return nil
	}
	if periodic {
		u.tops = now
	}
	settled := now.Add(-time.Minute - maxHold*usageFlushEvery).UnixMilli()
	for tenant, l := range u.waiting.lines {
		for i := range l.tops {
			if top := &l.tops[i]; all || top.StartMS <= settled || periodic && looked[tenant] {
				due = append(due, Key{Tenant: tenant, StartMS: top.StartMS, Grain: top.Grain})
			}
		}
	}
	slices.SortFunc(due, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.StartMS, b.StartMS), bytes.Compare(a.Tenant[:], b.Tenant[:]))
	})
	if !all {
		due = due[:min(len(due), max(maxBatchSubjects, len(due)/maxHold))]
	}
	return due
}

// build adds the counts of tables that have left a shard to a buffer. It holds the lock of the
// shard only to return the memory: there may be many rows, and checks of other tenants wait for the
// lock.
func (u *Recorder) build(shard int, moved []table, to *usageBuffer) {
	if u.building != nil {
		u.building(shard)
	}
	for i := range moved {
		m := &moved[i]
		m.rows(to.add)
		to.addSubjects(&m.tops)
		clear(m.counts[:cap(m.counts)])
	}
	s := &u.shards[shard]
	s.mu.Lock()
	for i := range moved {
		moved[i].owner.spare = moved[i].counts
	}
	s.mu.Unlock()
}

// takeAll returns everything that the shard has counted, and removes tenants that have been idle
// for long.
func (s *usageShard) takeAll(now time.Time) []table {
	for _, t := range s.dirty {
		s.held = t.take(s.held)
		t.dirty, t.urgent, t.frequent, t.checksHeld = false, false, false, 0
	}
	s.dirty, s.urgent, s.heldSinceMS = s.dirty[:0], s.urgent[:0], 0
	oldest := now.Add(-usageIdle).UnixMilli() / time.Minute.Milliseconds()
	for id, t := range s.tenants {
		if t.minute < oldest {
			delete(s.tenants, id)
		}
	}
	out := append(s.held, s.soon...)
	s.held, s.soon = nil, nil
	return out
}

// takeUrgent returns the counts of tenants that are busy or looked at.
func (s *usageShard) takeUrgent(looked []limit.TenantID) []table {
	for _, tenant := range looked {
		if t := s.tenants[tenant]; t != nil && t.dirty {
			s.hurry(t)
		}
	}
	for _, t := range s.urgent {
		s.soon = t.take(s.soon)
		t.urgent, t.frequent, t.checksHeld = false, true, 0
	}
	s.urgent = s.urgent[:0]
	out := s.soon
	s.soon = nil
	return out
}

// hurry lists a tenant for the next drain.
func (s *usageShard) hurry(t *tenantUsage) {
	if !t.urgent {
		t.urgent = true
		s.urgent = append(s.urgent, t)
	}
}
