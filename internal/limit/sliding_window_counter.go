package limit

// slidingWindowCounter keeps two numbers: what was admitted in the window of now and in the one
// before. The earlier one counts by the share of it that a window ending now still covers:
//
//	used = cur + floor(prev * (W - e) / W), e = milliseconds since the window began
type slidingWindowCounter struct {
	immediate
	index     int64 // of the window of cur: floor(t / W)
	cur, prev int64
}

// at returns the state as it stands at t, and how long the window of cur has run then.
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
	return max(0, n.Limit-now.used(n, e))
}

// when asks for the share of a count that is at most m: floor(count * (W - e) / W) <= m means
// count * (W - e) < (m + 1) * W, which gives e.
func (s *slidingWindowCounter) when(n *Numbers, t, m int64) int64 {
	now, e := s.at(n, t)
	if now.used(n, e) <= m {
		return t
	}
	start, count, rest := now.index*n.WindowMS, now.prev, m-now.cur
	if rest < 0 { // cur alone is too much: it must become the window before
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
	if s.index == ground+1 { // the window that was charged has become the one before
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
