package limit

// fixedWindow counts what was allowed in the current window. Windows are aligned to 1970, or are
// calendar windows. The twins are fixed_window.lua, and fixed_at and first_end in
// evaluate_many.lua.
type fixedWindow struct {
	immediate
	end     int64 // of the last counted window
	count   int64 // units allowed in it
	seconds int64 // length in whole seconds for a calendar window; otherwise 0
}

func (s *fixedWindow) open(t int64) bool { return t < s.end && s.end-t < horizonMS }

// openSpan returns the end and the length of the window that is open at t, and whether the rule's
// schedule has changed since: another zone, or another anchor. The count is then kept, and ends
// with the rule's window. An instant before the start of the window means that the clock stepped
// back; it says nothing about the schedule.
func (s *fixedWindow) openSpan(n *Numbers, t int64) (end, seconds int64, moved bool) {
	if n.Bounds == nil || t < s.end-1000*s.seconds {
		return s.end, s.seconds, false
	}
	if now := n.Bounds.At(t); now.EndMS != s.end {
		return now.EndMS, now.seconds(), true
	}
	return s.end, s.seconds, false
}

// seconds returns the length of a window as counters store it.
func (s Span) seconds() int64 { return (s.EndMS - s.StartMS) / 1000 }

// Follow changes the end of the window that is open at t to that of the rule's current schedule,
// and reports whether it changed.
func (s *fixedWindow) Follow(n *Numbers, t int64) (moved bool) {
	if s.open(t) {
		s.end, s.seconds, moved = s.openSpan(n, t)
	}
	return moved
}

func (s *fixedWindow) used(t int64) int64 {
	if s.open(t) {
		return s.count
	}
	return 0
}

func (s *fixedWindow) Remaining(n *Numbers, t int64) int64 { return max(0, n.Enforced()-s.used(t)) }

func (s *fixedWindow) when(n *Numbers, t, m int64) int64 {
	if s.used(t) <= m {
		return t
	}
	end, _, _ := s.openSpan(n, t)
	return end
}

func (s *fixedWindow) Charge(n *Numbers, cost, t int64) {
	if s.Follow(n, t); !s.open(t) {
		now := n.windowAt(t)
		s.end, s.count, s.seconds = now.EndMS, 0, 0
		if n.Bounds != nil {
			s.seconds = now.seconds()
		}
	}
	s.count += cost
}

func (s *fixedWindow) Clone() State { c := *s; return &c }

// fixedWindowFirstHit is a fixed window that begins with the first allowed request.
type fixedWindowFirstHit struct{ fixedWindow }

func (s *fixedWindowFirstHit) Charge(n *Numbers, cost, t int64) {
	if !s.open(t) {
		s.end, s.count = t+n.WindowMS, 0
	}
	s.count += cost
}

func (s *fixedWindowFirstHit) Clone() State { c := *s; return &c }

// Refund returns units to the window that ends at ground.
func (s *fixedWindow) Refund(_ *Numbers, units, ground int64) bool {
	if s.end != ground || s.count < units {
		return false
	}
	s.count -= units
	return true
}

// Idle reports whether nothing is counted: a window without units was never opened.
func (s *fixedWindow) Idle() bool { return s.count == 0 }
