package redis

import (
	"math/bits"
	"sync/atomic"

	"weir/internal/engine"
)

// charged adds the charged counters of a call to the list, and returns how many were new.
func (c *Census) charged(call *engine.Call, s *sentCall) (created int64) {
	verdicts := call.Outcome.Verdicts
	for i := range call.Counters {
		counter, v := &call.Counters[i], &verdicts[i]
		cost := call.CostOf(i)
		if !v.Allowed || cost == 0 || s.usedSpare(i) {
			continue
		}
		resets, windowMS, first := v.ResetMS, counter.Numbers.WindowMS, true
		if counter.Grouped { // the group is one key
			for j := range call.Counters {
				if o := &call.Counters[j]; j != i && o.Grouped && o.Key == counter.Key && verdicts[j].Allowed {
					first = first && i < j
					resets, windowMS = max(resets, verdicts[j].ResetMS), max(windowMS, o.Numbers.WindowMS)
				}
			}
		}
		if !first {
			continue
		}
		c.touch(s.of, counter.Key, 0, resets, windowMS)
		if s.spare == nil && v.Overage == 0 && v.Remaining+cost >= counter.Numbers.Quota() {
			created++ // it was not charged before
		}
	}
	return created
}

// marked adds the marks of penalties that began with the call to the list, and returns how many
// began. A mark is a key that may live much longer than its counter. If the window lasts longer,
// the wait is that of the window, and the mark is not counted beside its counter.
func (c *Census) marked(call *engine.Call, s *sentCall) (began int64) {
	for i := range call.Counters {
		counter, v := &call.Counters[i], &call.Outcome.Verdicts[i]
		penaltyMS := counter.Numbers.PenaltyMS
		if penaltyMS == 0 || !v.Penalized || v.RetryAfterMS != penaltyMS || s.usedSpareMark(i) {
			continue // the wait for a penalty that began before is shorter
		}
		const parts = 32 // the expiry of a mark is fixed, so it is rounded up by a small part only
		c.touch(s.of, counter.Key, markName, call.Outcome.NowMS+penaltyMS, penaltyMS/parts)
		began++
	}
	return began
}

// markName is added to the name of a counter, for the name of its mark in the list.
const markName = 0x5a17_c0ffee

// touch adds a counter that was charged to the tenant's list, soon, unless it is there already. Its
// name in the list is that of its key, plus a number.
func (c *Census) touch(t *tenantCounters, key string, plus uint64, resets, windowMS int64) {
	at := len(key) - nameBytes
	if at < 0 {
		return
	}
	name := engine.ReadName(key[at:])
	name.Low = (name.Low + plus) & (1<<40 - 1)
	if !t.samples(name) {
		return
	}
	// The expiry of most counters moves with each charge. It is rounded up, so that a counter is
	// added again only once in half a window.
	const shortest = 2000
	step := bits.Len64(uint64(max(windowMS, shortest))) - 1
	expires := (resets>>step + 1) << step
	value, slot := c.toldOf(name, expires)
	if slot.Load() != value {
		c.add(touch{t, name, expires}, value, slot)
	}
}

// samples reports whether a name is in the tenant's list.
func (t *tenantCounters) samples(name engine.KeyName) bool {
	return name.High&(1<<t.sample.Load()-1) == 0
}

// toldOf returns the slot of a name, and its value if the name with this expiry was the last one
// that was added there.
func (c *Census) toldOf(name engine.KeyName, expires int64) (value uint64, slot *atomic.Uint64) {
	value = (name.Low ^ name.High<<24 ^ uint64(expires)*oddFactor) | 1
	return value, &c.told[(name.Low^name.High>>20)%uint64(len(c.told))]
}

// add queues a name for its list.
func (c *Census) add(m touch, value uint64, slot *atomic.Uint64) {
	if !c.touches.TryEnqueue(m) {
		c.dropped.Add(1)
		return
	}
	slot.Store(value)
}
