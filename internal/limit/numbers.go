package limit

import "slices"

// Numbers are the parameters of one algorithm.
type Numbers struct {
	Algorithm   Algorithm
	Limit       int64    // units of cost per window, 1 to 10^9 (10^15 in the fixed windows)
	WindowMS    int64    `json:",omitempty"` // milliseconds; 0 with Calendar
	Calendar    Calendar `json:",omitempty"` // fixed_window only
	Overage     bool     `json:",omitempty"` // calls may exceed the limit, and the excess is counted; only if Overages allows it
	Burst       int64    `json:",omitempty"` // only for buckets: capacity; never 0
	PrecisionMS int64    `json:",omitempty"` // sliding_window_buckets only: divides WindowMS
	PenaltyMS   int64    `json:",omitempty"` // 0: none
	Bounds      *Bounds  `json:",omitempty"` // with Calendar: the windows that the engine chooses from
}

// Quota returns the maximum cost of one request.
func (n Numbers) Quota() int64 {
	if n.Algorithm.Bucket() {
		return n.Burst
	}
	return n.Limit
}

// Overages reports whether calls can exceed the limit of a counter with these numbers. A bucket has
// no excess that belongs to a window: it would only be paid off later. A log would have an entry
// for each further request. A penalty begins with a denial, and there would be none.
func (n *Numbers) Overages() bool {
	return n.PenaltyMS == 0 && slices.Contains(excessAlgorithms, n.Algorithm)
}

// Enforced returns the limit that engines enforce: with overage, the greatest one that the
// algorithm can count.
func (n *Numbers) Enforced() int64 {
	if n.Overage {
		return n.Algorithm.MaxLimit()
	}
	return n.Limit
}

// Ceiling returns the most units that can be used at once: the quota, or more with overage.
func (n *Numbers) Ceiling() int64 {
	if n.Overage {
		return n.Enforced()
	}
	return n.Quota()
}

// Used returns the units that count against the quota, by a verdict. Of a bucket and of a lowered
// limit, these are at most the quota.
func (n *Numbers) Used(v *Verdict) int64 { return n.Quota() - v.Remaining + v.Overage }

// split splits what remains until the ceiling into what remains of the quota, and the excess.
func (n *Numbers) split(v *Verdict) {
	used := n.Ceiling() - v.Remaining
	v.Remaining, v.Overage = max(0, n.Limit-used), max(0, used-n.Limit)
}

// Split fills in a verdict whose Remaining is that until the ceiling.
func (n *Numbers) Split(v *Verdict) {
	if n.Overage {
		n.split(v)
	}
}

// LengthMS returns the length of the window at an instant; of a calendar window, the current one.
func (n *Numbers) LengthMS(nowMS int64) int64 {
	if n.Bounds == nil {
		return n.WindowMS
	}
	s := n.Bounds.At(nowMS)
	return s.EndMS - s.StartMS
}

// windowAt returns the aligned window of an instant.
func (n *Numbers) windowAt(t int64) Span {
	if n.Bounds != nil {
		return n.Bounds.At(t)
	}
	start := t - t%n.WindowMS
	return Span{StartMS: start, EndMS: start + n.WindowMS}
}

// Compact reports whether the state of a counter consists of three small numbers (StoredState),
// without penalty. Nearly all counters are compact.
func (n *Numbers) Compact() bool {
	return n.PenaltyMS == 0 && n.Algorithm != SlidingWindowLog && n.Algorithm != SlidingWindowBuckets
}

// LifeMS returns the longest time in milliseconds for which a charged unit can count.
func (n *Numbers) LifeMS() int64 {
	const day = 24 * 3_600_000
	switch {
	case n.Calendar == CalendarDay:
		return 2 * day // a day of 25 hours, in a zone that changes its clock
	case n.Calendar == CalendarWeek:
		return 8 * day
	case n.Calendar == CalendarMonth:
		return 32 * day
	case n.Calendar == CalendarYear:
		return 367 * day
	case n.Algorithm == SlidingWindowCounter:
		return 2 * n.WindowMS
	case n.Algorithm.Bucket():
		life, _ := MulDiv(n.Burst, n.WindowMS, n.Limit, n.Limit-1)
		return life
	}
	return n.WindowMS
}
