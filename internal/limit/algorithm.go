package limit

import (
	"fmt"
)

// state is what is kept of one counter. Each algorithm has its own, in the file of its name,
// and its twin of the same name in lua/. The zero state is that of an unseen counter.
//
// What counts against the quota at an instant is called used. It falls by itself and rises
// only by a charge, so that one question, when it is down to some m, answers how long to wait
// for any cost and when the full quota is available.
//
// Instants are milliseconds since 1970. An instant before the newest thing stored (a clock
// that stepped back) is read as that thing's own. No method but charge changes the state.
type State interface {
	// remaining returns max(0, floor(quota - used)) at t. A cost is admitted if and only if it
	// is at most that.
	Remaining(n *Numbers, t int64) int64
	// when returns the earliest instant >= t at which used <= m, for 0 <= m < quota.
	when(n *Numbers, t, m int64) int64
	// delay returns how many milliseconds a request that is admitted at t must be held.
	delay(n *Numbers, t int64) int64
	// charge counts an admitted cost >= 1.
	Charge(n *Numbers, cost, t int64)
	Clone() State
}

// immediate is embedded by the states of algorithms that hold nobody up.
type immediate struct{}

func (immediate) delay(*Numbers, int64) int64 { return 0 }

// horizonMS bounds how far ahead of now a stored instant can lie: no window and no refill is
// longer than 366 days, and the rest is for clocks that step back. What lies further ahead was
// not written by a working clock and is read as absent. It is also the bound below which the
// products of the scripts are exact.
const horizonMS int64 = 1 << 35

// MaxInstantMS is the last instant that an engine decides at: 14 digits, some 3000 years.
const MaxInstantMS int64 = 99_999_999_999_999

func NewState(a Algorithm) State {
	switch a {
	case SlidingWindowCounter:
		return new(slidingWindowCounter)
	case SlidingWindowLog:
		return new(slidingWindowLog)
	case SlidingWindowBuckets:
		return new(slidingWindowBuckets)
	case FixedWindow:
		return new(fixedWindow)
	case FixedWindowFirstHit:
		return new(fixedWindowFirstHit)
	case TokenBucket:
		return new(tokenBucket)
	case LeakyBucket:
		return new(leakyBucket)
	case LeakyBucketQueue:
		return new(leakyBucketQueue)
	}
	panic(fmt.Sprintf("check: no algorithm %d", a))
}

// MaxLimit returns the greatest limit that the algorithm takes.
func (a Algorithm) MaxLimit() int64 {
	switch a {
	case FixedWindow, FixedWindowFirstHit:
		return MaxFixedLimit
	case SlidingWindowLog:
		return MaxLogLimit
	}
	return MaxLimit
}

// valid reports whether the arithmetic of n's algorithm is exact and bounded.
func (n *Numbers) Valid() bool {
	if n.Limit < 1 || n.Limit > n.Algorithm.MaxLimit() || n.PenaltyMS < 0 || n.PenaltyMS > MaxPenaltyMS {
		return false
	}
	if n.Calendar != NoCalendar {
		return n.Algorithm == FixedWindow && n.Calendar <= CalendarYear && n.WindowMS == 0 && n.Bounds != nil
	}
	if n.WindowMS < MinWindowMS || n.WindowMS > MaxWindowMS {
		return false
	}
	switch n.Algorithm {
	case SlidingWindowCounter, SlidingWindowLog, FixedWindow, FixedWindowFirstHit:
		return true
	case SlidingWindowBuckets:
		return n.PrecisionMS >= 1 && n.WindowMS%n.PrecisionMS == 0 && n.WindowMS/n.PrecisionMS <= MaxSubBuckets
	case TokenBucket, LeakyBucket, LeakyBucketQueue:
		return n.Burst >= 1 && n.Burst <= MaxLimit && productAtMost(n.Burst, n.WindowMS, n.Limit, MaxWindowMS)
	}
	return false
}
