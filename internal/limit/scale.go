package limit

import "math/bits"

// Share is a ratio by which the counts of a counter change.
type Share struct{ To, Of int64 }

// ScaleTo returns the ratios by which the counts of a counter change so that the used share of its
// quota stays the same when its numbers become to. For a bucket they are those of the time until it
// is full.
func (n *Numbers) ScaleTo(to *Numbers) []Share {
	if n.Algorithm.Bucket() {
		// level/B = level'/B' with level = time x L/W.
		return []Share{{n.Limit, to.Limit}, {to.Burst, n.Burst}}
	}
	return []Share{{to.Limit, n.Limit}}
}

// up returns ceil(a x To/Of), but not more than most. It rounds up, so that a change of plans never
// adds a unit.
func (s Share) up(a, most int64) int64 {
	if a <= 0 || s.To == s.Of {
		return min(max(a, 0), most)
	}
	high, low := bits.Mul64(uint64(a), uint64(s.To)) // positive
	if high >= uint64(s.Of) {
		return most
	}
	q, rest := bits.Div64(high, low, uint64(s.Of))
	if q >= uint64(most) {
		return most
	}
	if rest > 0 {
		q++
	}
	return int64(q) // not more than most
}

// Scale changes the counts of s at t by the ratios of ScaleTo. n are the numbers under which they
// were counted. Instants of windows and entries stay the same.
func Scale(s State, n, to *Numbers, t int64) {
	shares := n.ScaleTo(to)
	switch s := s.(type) {
	case *slidingWindowCounter:
		now, _ := s.at(n, t)
		now.cur, now.prev = shares[0].up(now.cur, MaxLimit), shares[0].up(now.prev, MaxLimit)
		*s = now
	case *slidingWindowLog:
		s.scale(n, shares[0], t)
	case *slidingWindowBuckets:
		_, live := s.at(n, t)
		s.parts = append([]subBucket(nil), live...)
		scaleSums(shares[0], len(s.parts), func(i int) *int64 { return &s.parts[i].count })
	case *fixedWindow:
		s.count = shares[0].up(s.count, MaxFixedLimit)
	case *fixedWindowFirstHit:
		s.count = shares[0].up(s.count, MaxFixedLimit)
	case *tokenBucket:
		s.scale(n, to, shares, t)
	case *leakyBucket:
		s.scale(n, to, shares, t)
	case *leakyBucketQueue:
		s.scale(n, to, shares, t)
	}
}

// scaleSums changes counts so that each sum of the first ones is scaled by the share, rounded up.
// The total is then not greater than that of a single count.
func scaleSums(share Share, count int, at func(int) *int64) {
	var before, after int64
	for i := range count {
		before += *at(i)
		sum := share.up(before, MaxLimit)
		*at(i) = sum - after
		after = sum
	}
}

func (s *slidingWindowLog) scale(n *Numbers, share Share, t int64) {
	_, first := s.at(n, t)
	base := s.sumBefore(first)
	var entries []logEntry
	for _, e := range s.entries[first:] {
		e.sum = share.up(e.sum-base, MaxLimit)
		entries = append(entries, e)
	}
	s.base, s.entries = 0, entries
}

func (s *bucket) scale(n, to *Numbers, shares []Share, t int64) {
	full, part := s.under(n, t)
	missing := full - t
	if part > 0 {
		missing++
	}
	for _, share := range shares {
		missing = share.up(missing, MaxWindowMS)
	}
	*s = bucket{full: t + missing, limit: to.Limit}
}
