package redis

import (
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/limit"
)

// charged adds the charged counters of a call to the list, and returns how many were new.
func (c *Census) charged(call *engine.Call, s *sentCall) (created int64) {
	verdicts := call.Outcome.Verdicts
	for i := range call.Counters {
		counter, v := &call.Counters[i], &verdicts[i]
		cost := call.CostOf(i)
		if !v.Allowed || cost == 0 || s.usedSpare(i) || counter.Grouped && !firstOfGroup(call, i) {
			continue
		}
		if name, listed := s.of.nameOf(counter.Key, 0); listed {
			ends := endOf(&counter.Numbers, v)
			if counter.Grouped {
				ends = endOfGroup(call, i)
			}
			if slot := c.toldOf(name); !slot.covers(name, ends) {
				c.add(s.of, name, ends+aheadOf(call, i, ends), slot)
			}
		}
		if s.spare == nil && counter.Numbers.Used(v) <= cost-v.CreditsSpent {
			created++ // it has nothing but this charge, which may exceed its limit
		}
	}
	return created
}

// firstOfGroup reports whether no earlier counter of the call is charged in the same group, which
// is one key.
func firstOfGroup(call *engine.Call, i int) bool {
	for j := range i {
		if o := &call.Counters[j]; o.Grouped && o.Key == call.Counters[i].Key && call.Outcome.Verdicts[j].Allowed {
			return false
		}
	}
	return true
}

// endOfGroup returns until when Redis has the group of counter i, its first one in the call.
func endOfGroup(call *engine.Call, i int) (ends int64) {
	for j := i; j < len(call.Counters); j++ {
		if o := &call.Counters[j]; o.Grouped && o.Key == call.Counters[i].Key && call.Outcome.Verdicts[j].Allowed {
			ends = max(ends, endOf(&o.Numbers, &call.Outcome.Verdicts[j]))
		}
	}
	return ends
}

// aheadOf returns how much longer the list has a counter than Redis will have it. The ends of
// windows, also of those in groups, do not move. Those of other counters move with each charge, so
// the list has them for some time longer: such a counter is added again only once in half of its
// life.
func aheadOf(call *engine.Call, i int, ends int64) int64 {
	// leastMS bounds how often a bucket is added that is nearly full all the time.
	const leastMS = 15_000
	n := &call.Counters[i].Numbers
	if !n.Algorithm.Bucket() && entriesOfCounter(n.Algorithm) == 0 {
		return 0
	}
	return min(max((ends-call.Outcome.NowMS)/2, leastMS), n.WindowMS)
}

// slackMS is SLACK of prelude.lua, which Redis adds to every expiry.
const slackMS = 1000

// endOf returns until when Redis has the key of a charged counter. It has a sliding window counter
// until the end of the next window, however few units it holds (counter_value.lua).
func endOf(n *limit.Numbers, v *limit.Verdict) int64 {
	ends := v.ResetMS
	if n.Algorithm == limit.SlidingWindowCounter {
		ends = (ends + n.WindowMS - 1) / n.WindowMS * n.WindowMS // the full quota is available in that window
	}
	return ends + slackMS
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
		if name, listed := s.of.nameOf(counter.Key, markName); listed {
			if ends, slot := call.Outcome.NowMS+penaltyMS+slackMS, c.toldOf(name); !slot.covers(name, ends) {
				c.add(s.of, name, ends, slot)
			}
		}
		began++
	}
	return began
}

// markName is added to the name of a counter, for the name of its mark in the list.
const markName = 0x5a17_c0ffee

// nameOf returns the name in the tenant's list of a counter: that of its key, plus a number. It
// reports false if the list does not have it.
func (t *tenantCounters) nameOf(key string, plus uint64) (name engine.KeyName, listed bool) {
	at := len(key) - nameBytes
	if at < 0 {
		return name, false
	}
	name = engine.ReadName(key[at:])
	name.Low = (name.Low + plus) & (1<<40 - 1)
	return name, t.samples(name)
}

// samples reports whether a name is in the tenant's list.
func (t *tenantCounters) samples(name engine.KeyName) bool {
	return name.High&(1<<t.sample.Load()-1) == 0
}

// toldCell has a name that was added to a list, as 30 bits of it, and its expiry in units of 1024
// ms. The probability that two names of a cell are taken for one is 2^-30. Cells are cleared each
// minute.
type toldCell struct{ atomic.Uint64 }

const (
	toldUnit  = 10 // bits of a unit of expiries
	toldUnits = 34 // bits of an expiry
)

// toldOf returns the cell of a name.
func (c *Census) toldOf(name engine.KeyName) *toldCell {
	return &c.told[(name.Low^name.High>>20)%uint64(len(c.told))]
}

// toldValue returns the value of the cell of a name that is in a list until it expires.
func toldValue(name engine.KeyName, expires int64) uint64 {
	return name.Low>>10<<toldUnits | uint64(expires)>>toldUnit&(1<<toldUnits-1)
}

// covers reports whether the name was the last one of the cell to be added, and is in its list
// until an instant.
func (s *toldCell) covers(name engine.KeyName, until int64) bool {
	value, least := s.Load(), toldValue(name, until+1<<toldUnit-1)
	return value>>toldUnits == least>>toldUnits && value >= least
}

// add queues a name for its list, rounded up to a unit.
func (c *Census) add(t *tenantCounters, name engine.KeyName, expires int64, slot *toldCell) {
	expires = (expires + 1<<toldUnit - 1) >> toldUnit << toldUnit
	if !c.touches.TryEnqueue(touch{t, name, expires}) {
		c.dropped.Add(1)
		return
	}
	slot.Store(toldValue(name, expires))
}
