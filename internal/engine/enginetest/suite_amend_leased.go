package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// scaledRig has a counter whose limit changes between 10 (narrow) and 1000 (wide) while units of it
// are held.
type scaledRig struct {
	testing.TB
	eng          engine.Engine
	algorithm    limit.Algorithm
	narrow, wide limit.Numbers
	prefix, last string
	at           int64
	counter      engine.Counter
}

func newScaledRig(tb testing.TB, eng engine.Engine, a limit.Algorithm, grouped bool) *scaledRig {
	s := &scaledRig{TB: tb, eng: eng, algorithm: a, narrow: five(a), wide: five(a), prefix: Prefix(), at: start + 7_000}
	s.narrow.Limit, s.wide.Limit = 10, 1000
	if a.Bucket() {
		s.narrow.Burst, s.wide.Burst = 10, 1000
	}
	s.last = s.prefix + "the-first"
	s.counter = counter(s.prefix+"a-counter", s.narrow)
	if grouped {
		s.counter.Key, s.counter.ID, s.counter.Grouped = s.prefix+"of-groups", "the-rule-", true
	}
	s.counter.Leased = true
	return s
}

// take charges units under some numbers, a millisecond after what was before.
func (s *scaledRig) take(units int64, n limit.Numbers) *engine.Call {
	s.Helper()
	s.at++
	s.counter.Numbers = n
	call := ask(s, s.eng, s.at, units, s.counter)
	require.True(s, call.Outcome.Allowed)
	return call
}

// amend scales the counter, a millisecond after what was before.
func (s *scaledRig) amend(from, to limit.Numbers) {
	s.Helper()
	s.at++
	s.amendNow(from, to)
}

func (s *scaledRig) amendNow(from, to limit.Numbers) {
	s.Helper()
	s.counter.Numbers = from
	amend(s, s.eng, s.last, s.at, false, []limit.Numbers{to}, s.counter)
	amend(s, s.eng, s.last, s.at+1, false, []limit.Numbers{to}, s.counter)
	s.last += "+" // another name
}

// used requires how many units are counted.
func (s *scaledRig) used(want int64, n limit.Numbers, message string) {
	s.Helper()
	require.Equal(s, want, n.Limit-remains(s, s.eng, s.at, s.counter, n).Remaining, "%s: %s", s.algorithm, message)
}

// back returns units.
func (s *scaledRig) back(call *engine.Call, units int64) (refused int) {
	s.Helper()
	r := refundOf(call, units)
	r.NowMS = s.at
	return refund(s, s.eng, r)
}

// Units that were charged before their counter was scaled return by the same ratio, rounded down.
// They never return a greater share than was charged.
func testAmendScalesReturns(t *testing.T, eng engine.Engine) {
	for _, a := range leasable() {
		for _, grouped := range []bool{false, true} {
			rig := func() *scaledRig { return newScaledRig(t, eng, a, grouped) }
			if grouped && (a.Bucket() || a == limit.SlidingWindowBuckets) {
				continue // is in no group
			}
			if a.Bucket() {
				testAmendedBuckets(rig())
				continue
			}
			s := rig()
			s.take(500, s.wide)
			took := s.take(150, s.wide)
			s.amend(s.wide, s.narrow)
			s.used(7, s.narrow, "650 of 1000 are 6.5 of 10")
			require.Equal(t, 0, s.back(took, 150))
			s.used(6, s.narrow, "150 of 1000 are 1.5 of 10")

			s = rig()
			s.take(1, s.narrow)
			took = s.take(4, s.narrow)
			s.amend(s.narrow, s.wide)
			s.used(500, s.wide, "5 of 10 are 500 of 1000")
			require.Equal(t, 0, s.back(took, 4))
			s.used(100, s.wide, "4 of 10 are 400 of 1000")
			took = s.take(40, s.wide)
			require.Equal(t, 0, s.back(took, 40))
			s.used(100, s.wide, "units that were charged after the change return as they are")

			s = rig()
			s.take(400, s.wide)
			took = s.take(155, s.wide)
			for range 3 {
				s.amend(s.wide, s.narrow)
				s.amend(s.narrow, s.wide)
			}
			s.used(600, s.wide, "555 are 5.55 of 10, so 6 of 10")
			require.Equal(t, 0, s.back(took, 155))
			s.used(500, s.wide, "155 are 1.55 of 10, so 1 of 10")
			require.Equal(t, 1, s.back(took, 600), "more than are counted")

			s = rig()
			s.take(400, s.wide)
			took = s.take(100, s.wide)
			for range 5 {
				s.amend(s.wide, s.narrow)
				s.amend(s.narrow, s.wide)
			}
			require.Equal(t, 1, s.back(took, 100), "more changes than are kept: nothing returns")
			s.used(500, s.wide, "after ten changes")

			testAmendedEarlyAndLate(rig)
		}
	}
}

// Units may be charged under the new limit before the counter is scaled, or at the same instant. If
// the counter had more than its old limit, it was not scaled by the ratio.
func testAmendedEarlyAndLate(rig func() *scaledRig) {
	s := rig()
	s.take(2, s.narrow)
	took := s.take(4, s.wide)
	s.amend(s.narrow, s.wide)
	s.used(600, s.wide, "2 and 4 of 10")
	require.Equal(s, 0, s.back(took, 4))
	s.used(200, s.wide, "it is the instant that matters, not the limit")

	s = rig()
	s.take(2, s.narrow)
	took = s.take(20, s.wide)
	s.amend(s.narrow, s.wide)
	s.used(1000, s.wide, "22 of 10 are everything")
	require.Equal(s, 1, s.back(took, 20))
	s.used(1000, s.wide, "nothing returns")

	s = rig()
	took = s.take(500, s.wide)
	s.amendNow(s.wide, s.narrow)
	require.Equal(s, 0, s.back(took, 300))
	s.used(2, s.narrow, "at the same instant, the smaller number returns: 3, and not 300")

	s = rig()
	took = s.take(5, s.narrow)
	s.amendNow(s.narrow, s.wide)
	require.Equal(s, 0, s.back(took, 4))
	s.used(496, s.wide, "at the same instant, the smaller number returns: 4, and not 400")
}

// A bucket takes nothing back that was charged before it was scaled, also under the same limit.
func testAmendedBuckets(s *scaledRig) {
	took := s.take(500, s.wide)
	s.amend(s.wide, s.narrow)
	s.amend(s.narrow, s.wide)
	left := remains(s, s.eng, s.at, s.counter, s.wide)
	r := refundOf(took, 100)
	r.NowMS, r.Parts[0].Until = s.at, limit.MaxInstantMS
	require.Equal(s, 1, refund(s, s.eng, r))
	require.Equal(s, left, remains(s, s.eng, s.at, s.counter, s.wide))
	took = s.take(100, s.wide)
	require.Equal(s, 0, s.back(took, 50), "charged after the change")
}
