package limit

import "time"

// The bounds of leasing that people are told of.
const (
	LeaseHold       = 250 * time.Millisecond // the longest that units are held
	LeaseHoldBucket = 100 * time.Millisecond // shorter, because the cushion of a bucket grows with it
	LeaseShare      = 4                      // at most one part in so many of what remains is prefetched
	LeaseLeast      = 2                      // units; fewer save nothing
)

// LeaseBounds says what leasing costs a rule at most.
type LeaseBounds struct {
	// Units is how many one instance can hold of a counter that nothing was used of: a quarter. A
	// check elsewhere can be denied so many early, and a crash strands no more. Of one that is
	// asked for n units a second it is about n/20.
	Units int64
	// HoldMS is how long they can be held, milliseconds.
	HoldMS int64
	// Refill is how many units a bucket can fail to get back while units of it are leased; 0
	// elsewhere.
	Refill int64
	// StrandedMS is how long units that an instance took with it when it crashed can count as used,
	// milliseconds; for a calendar unit the longest one.
	StrandedMS int64
}

// LeaseBounds returns what leasing a counter with these numbers costs. Leased is false where no
// units can be prefetched, because the algorithm forbids it or the quota is too small.
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
		b.Refill = n.RefillWhileLeased(0)
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

// refillWhileLeased is how many units come back to a bucket until a lease ends that is taken so
// many milliseconds from now, and some more for what is rounded.
func (n *Numbers) RefillWhileLeased(fromNowMS int64) int64 {
	units, _ := MulDiv(n.Limit, LeaseHoldBucket.Milliseconds()+fromNowMS+2, n.WindowMS, 0)
	return units + 2
}
