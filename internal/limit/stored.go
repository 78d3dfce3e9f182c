package limit

// StoredState holds the state of one compact counter (Numbers.Compact), of whatever algorithm,
// without an allocation.
type StoredState struct {
	counter  slidingWindowCounter
	fixed    fixedWindow
	firstHit fixedWindowFirstHit
	bucket   tokenBucket
	queue    leakyBucketQueue
}

// Load sets the state from its stored numbers and returns it: of a sliding window counter the
// number of its window and the counts of that and the window before; of a fixed window its end,
// count and, of a calendar's, length in seconds; of a bucket the instant at which it is full and
// the fraction of that. spent is added to the count. ok is false for numbers that no counter can
// have.
func (s *StoredState) Load(n *Numbers, at, count, before, spent int64) (_ State, ok bool) {
	switch n.Algorithm {
	case SlidingWindowCounter:
		count += spent
		s.counter = slidingWindowCounter{index: at, cur: count, prev: before}
		return &s.counter, at <= MaxInstantMS && count <= MaxLimit && before <= MaxLimit
	case FixedWindow:
		s.fixed = fixedWindow{end: at, count: count + spent, seconds: before}
		return &s.fixed, count+spent <= MaxFixedLimit
	case FixedWindowFirstHit:
		s.firstHit = fixedWindowFirstHit{fixedWindow{end: at, count: count + spent}}
		return &s.firstHit, count+spent <= MaxFixedLimit
	}
	b := bucket{full: at, part: count, limit: n.Limit}
	if n.Algorithm == LeakyBucketQueue {
		s.queue = leakyBucketQueue{b}
		return &s.queue, count < n.Limit
	}
	s.bucket = tokenBucket{bucket: b} // a leaky bucket decides alike
	return &s.bucket, count < n.Limit
}
