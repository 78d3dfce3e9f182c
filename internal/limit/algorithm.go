package limit

import (
	"fmt"
)

// State is the stored state of one counter. Each algorithm has its own state, in the file of its
// name, and a twin with the same name in lua/. The zero state is that of a new counter.
//
// The units that count against the quota at an instant are called used. They fall with time and
// rise only by a charge. Therefore one function, the instant at which at most m units are used,
// computes both the wait for any cost and the time at which the full quota is available.
//
// Instants are milliseconds since 1970. An instant before the newest stored one (the clock stepped
// back) is replaced by that one. Only Charge changes the state.
type State interface {
	// Remaining returns max(0, floor(n.Ceiling() - used)) at t. A cost is allowed if and only if it
	// is at most that.
	Remaining(n *Numbers, t int64) int64
	// when returns the earliest instant >= t at which used <= m, for 0 <= m < n.Ceiling().
	when(n *Numbers, t, m int64) int64
	// delay returns how many milliseconds a request that is allowed at t must wait.
	delay(n *Numbers, t int64) int64
	// Charge counts an allowed cost >= 1.
	Charge(n *Numbers, cost, t int64)
	Clone() State
}

// immediate is embedded by the states of algorithms without delays.
type immediate struct{}

func (immediate) delay(*Numbers, int64) int64 { return 0 }

// horizonMS is the maximum distance of a stored instant from now: no window and no refill is longer
// than 366 days, and the rest is for clocks that step back. A stored instant further in the future
// is invalid and treated as absent. The products of the scripts are exact below this bound.
const horizonMS int64 = 1 << 35

// MaxInstantMS is the last instant for which an engine decides: 14 digits, some 3000 years.
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

// MaxLimit returns the maximum limit for the algorithm.
func (a Algorithm) MaxLimit() int64 {
	switch a {
	case FixedWindow, FixedWindowFirstHit:
		return MaxFixedLimit
	case SlidingWindowLog:
		return MaxLogLimit
	}
	return MaxLimit
}

// Factor returns factor, or the largest smaller one by which a limit and its burst (0: none) can be
// multiplied within their ranges; at least 1.
func (a Algorithm) Factor(limit, burst, factor int64) int64 {
	most := a.MaxLimit() / limit
	if burst > 0 {
		most = min(most, MaxLimit/burst)
	}
	return max(min(factor, most), 1)
}

// Valid reports whether the arithmetic of n's algorithm is exact for n.
func (n *Numbers) Valid() bool {
	if n.Limit < 1 || n.Limit > n.Algorithm.MaxLimit() || n.PenaltyMS < 0 || n.PenaltyMS > MaxPenaltyMS {
		return false
	}
	if n.Overage && !n.Overages() {
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
