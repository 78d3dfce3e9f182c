package limit

// Share is a ratio by which the counts of a counter change.
type Share struct{ To, Of int64 }

// ScaleTo returns the ratios by which the counts of a counter change so that the used share of its
// quota stays the same when its numbers become to. For a bucket they are those of the time until it
// is full.
func (n *Numbers) ScaleTo(to *Numbers) []Share {
	if n.Algorithm.Bucket() {
		// level/B = level'/B' with level = time x L/W. In this order, no result is greater than a
		// window, unless all of the quota is missing.
		return []Share{{n.Limit, n.Burst}, {to.Burst, to.Limit}}
	}
	return []Share{{to.Limit, n.Limit}}
}

// up returns ceil(a x To/Of), but not more than most. It rounds up, so that a change of plans never
// adds a unit.
func (s Share) up(a, most int64) int64 {
	if a <= 0 {
		return 0
	}
	q, rest := MulDiv(a, s.To, s.Of, 0)
	if rest > 0 {
		q++
	}
	return min(q, most)
}

// Scale changes the counts of s at t by the ratios of ScaleTo. n are the numbers under which they
// were counted. The used share is at most the whole quota: units beyond it stay only if both
// numbers allow overage, and then as they are. Instants of windows and entries stay the same. The
// twin is amend.lua: up for Share.up, scaled for count and sum, and the names of the other
// functions.
func Scale(s State, n, to *Numbers, t int64) {
	c := change{Share: n.ScaleTo(to)[0], n: n, to: to, over: n.Overage && to.Overage}
	switch s := s.(type) {
	case *slidingWindowCounter:
		s.scale(c, t)
	case *slidingWindowLog:
		s.scale(c, t)
	case *slidingWindowBuckets:
		_, live := s.at(n, t)
		s.parts = append([]subBucket(nil), live...)
		c.sums(len(s.parts), func(i int) *int64 { return &s.parts[i].count })
	case *fixedWindow:
		s.count = c.count(s.count, MaxFixedLimit)
	case *fixedWindowFirstHit:
		s.count = c.count(s.count, MaxFixedLimit)
	case *tokenBucket:
		s.scale(n, to, t)
	case *leakyBucket:
		s.scale(n, to, t)
	case *leakyBucketQueue:
		s.scale(n, to, t)
	}
}

// change is a change of the counts of one counter.
type change struct {
	Share
	n, to *Numbers
	over  bool // units beyond the limit stay
}

// count returns a count under the new limit.
func (c change) count(a, most int64) int64 {
	if c.over {
		return min(c.up(min(a, c.n.Limit), most)+max(0, a-c.n.Limit), most)
	}
	return c.up(a, min(c.to.Limit, most))
}

// sum returns a sum of counts under the new limit, without the bound of the quota.
func (c change) sum(a int64) int64 {
	if c.over {
		return c.count(a, MaxLimit)
	}
	return c.up(a, MaxLimit)
}

// excess returns by how much the sum of all counts is beyond the quota.
func (c change) excess(total int64) int64 {
	if c.over {
		return 0
	}
	return max(0, c.sum(total)-c.to.Limit)
}

// sums changes counts, oldest first, so that each sum of the first ones is scaled, rounded up. The
// total is then not greater than that of a single count. What is beyond the quota is taken from the
// oldest ones, because the quota is free again when the newest ones end.
func (c change) sums(count int, at func(int) *int64) {
	var total, before, after int64
	for i := range count {
		total += *at(i)
	}
	excess := c.excess(total)
	for i := range count {
		before += *at(i)
		sum := max(0, c.sum(before)-excess)
		*at(i) = sum - after
		after = sum
	}
}

func (s *slidingWindowCounter) scale(c change, t int64) {
	now, e := s.at(c.n, t)
	now.cur = c.count(now.cur, MaxLimit)
	now.prev = c.sum(now.prev)
	if rest := c.to.Limit - now.cur; !c.over && now.used(c.n, e)-now.cur > rest { // the weight of the previous window is lowered
		most, _ := MulDiv(rest+1, c.n.WindowMS, c.n.WindowMS-e, c.n.WindowMS-e-1)
		now.prev = min(now.prev, most-1)
	}
	*s = now
}

func (s *slidingWindowLog) scale(c change, t int64) {
	_, first := s.at(c.n, t)
	base := s.sumBefore(first)
	excess := c.excess(s.total() - base)
	var entries []logEntry
	for _, e := range s.entries[first:] {
		e.sum = max(0, c.sum(e.sum-base)-excess)
		entries = append(entries, e)
	}
	s.base, s.entries = 0, entries
}

func (s *bucket) scale(n, to *Numbers, t int64) {
	full, part := s.under(n, t)
	missing := full - t
	if part > 0 {
		missing++
	}
	for _, share := range n.ScaleTo(to) {
		missing = share.up(missing, MaxWindowMS)
	}
	empty := Share{to.WindowMS, to.Limit}.up(to.Burst, MaxWindowMS) // all of it is missing
	*s = bucket{full: t + min(missing, empty), limit: to.Limit}
}
