package limit

import "time"

// The bounds of leases, which pages and documents state.
const (
	LeaseHold       = 250 * time.Millisecond // the maximum time for which units are held
	LeaseHoldBucket = 100 * time.Millisecond // shorter, because the cushion of a bucket grows with it
	LeaseShare      = 4                      // at most 1/LeaseShare of the remaining units is prefetched
	LeaseLeast      = 2                      // units; fewer are not worth a prefetch
)

// LeaseBounds states the maximum cost of leasing for a rule.
type LeaseBounds struct {
	// Units is the maximum that one instance can hold of an unused counter: a quarter. A check on
	// another instance can be denied early by as many units, and a crash strands no more. For a
	// counter with n units per second it is about n/20.
	Units int64
	// HoldMS is the maximum time for which units are held, in milliseconds.
	HoldMS int64
	// Refill is the number of units by which a bucket may refill less while units of it are leased;
	// 0 for other algorithms.
	Refill int64
	// StrandedMS is the maximum time for which the units of a crashed instance count as used, in
	// milliseconds; for a calendar unit, that of the longest window.
	StrandedMS int64
}

// LeaseBounds returns the cost of leasing a counter with these numbers. Leased is false if no units
// can be prefetched, because of the algorithm or a small quota.
func (n *Numbers) LeaseBounds() (b LeaseBounds, leased bool) {
	if !n.Leasable() {
		return b, false
	}
	b.HoldMS = LeaseHold.Milliseconds()
	b.Units = n.Quota() / LeaseShare
	switch n.Algorithm {
	case SlidingWindowCounter:
		b.StrandedMS = 2 * n.WindowMS
	case TokenBucket, LeakyBucket:
		b.HoldMS = LeaseHoldBucket.Milliseconds()
		b.Refill = n.RefillWithin(b.HoldMS)
		b.StrandedMS, _ = MulDiv(b.Units, n.WindowMS, n.Limit, n.Limit-1)
		b.Units -= b.Refill
	default:
		b.StrandedMS = n.WindowMS
		switch n.Calendar {
		case CalendarDay:
			b.StrandedMS = dayMS
		case CalendarWeek:
			b.StrandedMS = 7 * dayMS
		case CalendarMonth:
			b.StrandedMS = 31 * dayMS
		case CalendarYear:
			b.StrandedMS = 366 * dayMS
		case NoCalendar:
		}
	}
	return b, b.Units >= LeaseLeast
}

// RefillWithin returns how many units are refilled within so many milliseconds from now, rounded up
// generously.
func (n *Numbers) RefillWithin(ms int64) int64 {
	units, _ := MulDiv(n.Limit, ms+2, n.WindowMS, 0)
	return units + 2
}

// HoldFor returns for how many milliseconds RefillWithin is at most so many units, at most a day.
func (n *Numbers) HoldFor(units int64) int64 {
	if units < 3 {
		return 0
	}
	ms, _ := MulDiv(units-2, n.WindowMS, n.Limit, 0)
	return max(0, min(ms, dayMS)-2)
}
