package limit

import "time"

// Numbers are what one algorithm decides by.
type Numbers struct {
	Algorithm   Algorithm
	Limit       int64    // units of cost per window, 1 to 10^9 (10^15 in the fixed windows)
	WindowMS    int64    // milliseconds; 0 with Calendar
	Calendar    Calendar // fixed_window only
	Burst       int64    // the three buckets only: capacity; never 0 there
	PrecisionMS int64    // sliding_window_buckets only: divides WindowMS
	PenaltyMS   int64    // 0: none
}

// Quota is the most that one request may ever cost.
func (n Numbers) Quota() int64 {
	if n.Algorithm.Bucket() {
		return n.Burst
	}
	return n.Limit
}

// LengthMS is the length of the window at an instant: of a calendar month, the present one's.
func (n Numbers) LengthMS(nowMS int64) int64 {
	switch n.Calendar {
	case NoCalendar:
		return n.WindowMS
	case CalendarDay:
		return dayMS
	case CalendarWeek:
		return 7 * dayMS
	default:
		t := time.UnixMilli(nowMS).UTC()
		return int64(time.Date(t.Year(), t.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()) * dayMS
	}
}

// Compact reports whether three small numbers are the whole state of a counter (StoredState), and no
// penalty can run. Nearly all counters are compact.
func (n *Numbers) Compact() bool {
	return n.PenaltyMS == 0 && n.Algorithm != SlidingWindowLog && n.Algorithm != SlidingWindowBuckets
}
