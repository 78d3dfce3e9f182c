package limit

// StoredState is the state of one compact counter (Numbers.Compact) of any algorithm, without an
// allocation.
type StoredState struct {
	counter  slidingWindowCounter
	fixed    fixedWindow
	firstHit fixedWindowFirstHit
	bucket   tokenBucket
	queue    leakyBucketQueue
}

// Load sets the state from its stored numbers and returns it. For a sliding window counter they are
// the number of its window and the counts of that and of the previous window. For a fixed window
// they are its end, its count and, for a calendar window, its length in seconds. For a bucket they
// are the instant at which it is full, and its fraction. spent is added to the count. ok is false
// for impossible numbers.
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
	s.bucket = tokenBucket{bucket: b} // a leaky bucket makes the same decisions
	return &s.bucket, count < n.Limit
}
