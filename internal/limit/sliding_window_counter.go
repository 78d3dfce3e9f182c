package limit

// slidingWindowCounter stores two counts: of the current window and of the previous one. The
// previous count is weighted by the share of the previous window that a window ending now covers:
//
//	used = cur + floor(prev * (W - e) / W), e = milliseconds since the window began
//
// The twins are sliding_window_counter.lua, and counter_at in evaluate_many.lua.
type slidingWindowCounter struct {
	immediate
	index     int64 // of the current window: floor(t / W)
	cur, prev int64
}

// at returns the state at t, and how long the window of cur has lasted by then.
func (s *slidingWindowCounter) at(n *Numbers, t int64) (slidingWindowCounter, int64) {
	i := t / n.WindowMS
	now := slidingWindowCounter{index: i}
	switch start := s.index * n.WindowMS; {
	case start > t: // the clock stepped back
		if start-t < horizonMS {
			return *s, 0
		}
	case i == s.index:
		now.cur, now.prev = s.cur, s.prev
	case i == s.index+1:
		now.prev = s.cur
	}
	return now, t - i*n.WindowMS
}

func (s *slidingWindowCounter) used(n *Numbers, e int64) int64 {
	weighted, _ := MulDiv(s.prev, n.WindowMS-e, n.WindowMS, 0)
	return s.cur + weighted
}

func (s *slidingWindowCounter) Remaining(n *Numbers, t int64) int64 {
	now, e := s.at(n, t)
	return max(0, n.Enforced()-now.used(n, e))
}

// when finds the instant at which the weighted count is at most m: floor(count * (W - e) / W) <= m
// means count * (W - e) < (m + 1) * W, from which e follows.
func (s *slidingWindowCounter) when(n *Numbers, t, m int64) int64 {
	now, e := s.at(n, t)
	if now.used(n, e) <= m {
		return t
	}
	start, count, rest := now.index*n.WindowMS, now.prev, m-now.cur
	if rest < 0 { // cur alone is too much: it must become the previous window
		start, count, rest = start+n.WindowMS, now.cur, m
	}
	ceil, _ := MulDiv(rest+1, n.WindowMS, count, count-1)
	return start + n.WindowMS - ceil + 1
}

func (s *slidingWindowCounter) Charge(n *Numbers, cost, t int64) {
	*s, _ = s.at(n, t)
	s.cur += cost
}

func (s *slidingWindowCounter) Clone() State { c := *s; return &c }

func (s *slidingWindowCounter) Refund(_ *Numbers, units, ground int64) bool {
	count := &s.cur
	if s.index == ground+1 { // the window that was charged is now the previous one
		count = &s.prev
	} else if s.index != ground {
		return false
	}
	if *count < units {
		return false
	}
	*count -= units
	return true
}

func (s *slidingWindowCounter) Idle() bool { return s.cur == 0 && s.prev == 0 }
