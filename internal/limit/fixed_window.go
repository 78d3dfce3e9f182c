package limit

import "time"

// fixedWindow counts what was admitted in the window of now, one of those that lie end to end
// from 1970 on, or of the calendar's days, weeks and months in UTC.
type fixedWindow struct {
	immediate
	end   int64 // of the last counted window
	count int64 // admitted in it
}

func (s *fixedWindow) open(t int64) bool { return t < s.end && s.end-t < horizonMS }

func (s *fixedWindow) used(t int64) int64 {
	if s.open(t) {
		return s.count
	}
	return 0
}

func (s *fixedWindow) Remaining(n *Numbers, t int64) int64 { return max(0, n.Limit-s.used(t)) }

func (s *fixedWindow) when(_ *Numbers, t, m int64) int64 {
	if s.used(t) <= m {
		return t
	}
	return s.end
}

func (s *fixedWindow) Charge(n *Numbers, cost, t int64) { s.add(cost, t, windowEnd(n, t)) }

func (s *fixedWindow) add(cost, t, end int64) {
	if !s.open(t) {
		s.end, s.count = end, 0
	}
	s.count += cost
}

func (s *fixedWindow) Clone() State { c := *s; return &c }

// fixedWindowFirstHit is a fixed window that the first admitted request opens.
type fixedWindowFirstHit struct{ fixedWindow }

func (s *fixedWindowFirstHit) Charge(n *Numbers, cost, t int64) { s.add(cost, t, t+n.WindowMS) }

func (s *fixedWindowFirstHit) Clone() State { c := *s; return &c }

// windowEnd returns the first instant after the window that t is in.
func windowEnd(n *Numbers, t int64) int64 {
	// 1970 began on a Thursday: the first Monday was its day 4.
	const week, monday = 7 * dayMS, 4 * dayMS
	switch n.Calendar {
	case CalendarDay:
		return t - t%dayMS + dayMS
	case CalendarWeek:
		return t - (t-monday+week)%week + week
	case CalendarMonth:
		at := time.UnixMilli(t).UTC()
		return time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	}
	return t - t%n.WindowMS + n.WindowMS
}

func (s *fixedWindow) Refund(_ *Numbers, units, ground int64) bool {
	if s.end != ground || s.count < units {
		return false
	}
	s.count -= units
	return true
}

// idle reports whether nothing is counted: a window that nobody is left in was never opened.
func (s *fixedWindow) Idle() bool { return s.count == 0 }
