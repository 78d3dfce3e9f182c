package limit

// bucket is the arithmetic of the three buckets: a capacity of Burst units, of which Limit are
// refilled every WindowMS, evenly and in exact fractions. The only stored value is the instant at
// which the bucket is full, full + part/limit milliseconds.
//
//	used = max(0, full - t) * L / W
//
// The twin is bucket.lua.
type bucket struct {
	full  int64 // whole milliseconds
	part  int64 // 0 <= part < limit
	limit int64 // the denominator of part; the rule's limit may have changed since
}

// under returns the instant at which the bucket is full as a fraction of n's limit. A fraction of
// another limit is rounded up, which delays the subject by less than a millisecond.
func (s *bucket) under(n *Numbers, t int64) (full, part int64) {
	full, part = s.full, s.part
	if s.limit != n.Limit && part > 0 {
		full, part = full+1, 0
	}
	if full < t || full-t >= horizonMS {
		return t, 0
	}
	return full, part
}

func (s *bucket) Remaining(n *Numbers, t int64) int64 {
	full, part := s.under(n, t)
	level, fraction := MulDiv(n.Limit, full-t, n.WindowMS, part)
	if fraction > 0 {
		level++ // remaining units are rounded down
	}
	return max(0, n.Burst-level)
}

// when returns ceil(full - m*W/L), the instant at which m units are missing.
func (s *bucket) when(n *Numbers, t, m int64) int64 {
	full, part := s.under(n, t)
	early, rest := MulDiv(m, n.WindowMS, n.Limit, 0)
	at := full - early
	if rest < part {
		at++
	}
	return max(t, at)
}

func (s *bucket) Charge(n *Numbers, cost, t int64) {
	full, part := s.under(n, t)
	longer, rest := MulDiv(cost, n.WindowMS, n.Limit, part)
	*s = bucket{full: full + longer, part: rest, limit: n.Limit}
}

// Refund returns units only if nothing was charged since, because later charges were added to these
// units.
func (s *bucket) Refund(n *Numbers, units, ground int64) bool {
	full := s.full
	if s.part > 0 {
		full++
	}
	if full != ground || s.limit != n.Limit {
		return false
	}
	*s = s.less(n, units)
	return true
}

// less returns the bucket without units that were charged.
func (s *bucket) less(n *Numbers, units int64) bucket {
	sooner, rest := MulDiv(units, n.WindowMS, n.Limit, 0)
	left := bucket{full: s.full - sooner, part: s.part - rest, limit: s.limit}
	if left.part < 0 {
		left.full, left.part = left.full-1, left.part+n.Limit
	}
	return left
}

// RefundAfter implements Bucket.
func (s *bucket) RefundAfter(n *Numbers, units, t int64) bool {
	left := s.less(n, units)
	if s.limit != n.Limit || left.full <= t {
		return false
	}
	*s = left
	return true
}

func (*bucket) Idle() bool { return false }
