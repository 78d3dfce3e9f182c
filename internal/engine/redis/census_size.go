package redis

import (
	"math/bits"

	"weir/internal/engine"
	"weir/internal/limit"
)

// A sliding_window_log has an entry of 12 bytes for each allowed request, and sub-buckets have one
// of 5 bytes for each part of the window. So that a tenant's list follows what Redis stores, these
// entries are in it too: one of so many, chosen by a keyed hash of the counter and the instant of
// the entry. As many together are about as large as another counter, about 120 bytes. A counter
// with fewer entries counts as one counter.
//
// The instant is that of Redis, so all instances name an entry alike, and adding it again changes
// nothing. An entry stays in the list for two windows: a counter removes entries that have expired
// only when they are more than half of it, or when it expires itself, at most two windows after the
// entry.
const (
	entriesOfLog     = 10
	entriesOfBuckets = 24
)

// entriesOfCounter returns how many entries of an algorithm count as one counter, or 0.
func entriesOfCounter(a limit.Algorithm) int64 {
	switch a {
	case limit.SlidingWindowLog:
		return entriesOfLog
	case limit.SlidingWindowBuckets:
		return entriesOfBuckets
	}
	return 0
}

// grown adds the entries to the list that an allowed call may have added to its counters, and
// returns how many of them count as a counter.
func (c *Census) grown(call *engine.Call, s *sentCall) (created int64) {
	for i := range call.Counters {
		counter, v := &call.Counters[i], &call.Outcome.Verdicts[i]
		n := &counter.Numbers
		per := entriesOfCounter(n.Algorithm)
		if per == 0 || !v.Allowed || call.CostOf(i) <= v.CreditsSpent || n.Used(v) < per || s.usedSpare(i) {
			continue
		}
		part := max(1, n.PrecisionMS)
		if s.spare != nil { // coarse_log.lua, coarse_buckets.lua
			part = max(part, n.CoarseMS())
		}
		now := call.Outcome.NowMS
		if name, counts := nameOfEntry(counter.Key, now-now%part, per); counts {
			created += c.addEntry(s.of, name, now-now%part+2*n.WindowMS)
		}
	}
	return created
}

// nameOfEntry returns the name in the list for an entry of a counter, and whether the entry is the
// one of per entries that counts. It mixes the bits of a keyed hash, so no tenant can choose
// instants whose entries do not count.
func nameOfEntry(key string, atMS, per int64) (name engine.KeyName, counts bool) {
	at := len(key) - nameBytes
	if at < 0 {
		return name, false
	}
	name = engine.ReadName(key[at:])
	// The finalizer of SplitMix64.
	h := name.Low ^ bits.RotateLeft64(name.High, 32) ^ uint64(atMS)*oddFactor // positive
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	// The sample of a list is by other bits than these, the upper 16.
	counts = (h>>48)*uint64(per)>>16 == 0 // per is positive
	return engine.KeyName{Low: h & (1<<40 - 1), High: h >> 24 & (1<<32 - 1)}, counts
}

// addEntry adds an entry to the tenant's list, soon, and returns 1, or 0 if this instance has added
// it already.
func (c *Census) addEntry(t *tenantCounters, name engine.KeyName, expires int64) int64 {
	slot := c.toldOf(name)
	if slot.covers(name, expires) {
		return 0
	}
	if !t.samples(name) {
		slot.Store(toldValue(name, expires+1<<toldUnit-1))
		return 1
	}
	c.add(t, name, expires, slot)
	return 1
}
