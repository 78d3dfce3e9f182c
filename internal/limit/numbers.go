package limit

// Numbers are the parameters of one algorithm.
type Numbers struct {
	Algorithm   Algorithm
	Limit       int64    // units of cost per window, 1 to 10^9 (10^15 in the fixed windows)
	WindowMS    int64    // milliseconds; 0 with Calendar
	Calendar    Calendar // fixed_window only
	Burst       int64    // only for buckets: capacity; never 0
	PrecisionMS int64    // sliding_window_buckets only: divides WindowMS
	PenaltyMS   int64    // 0: none
	Bounds      *Bounds  // with Calendar: the windows that the engine chooses from
}

// Quota returns the maximum cost of one request.
func (n Numbers) Quota() int64 {
	if n.Algorithm.Bucket() {
		return n.Burst
	}
	return n.Limit
}

// LengthMS returns the length of the window at an instant; of a calendar window, the current one.
func (n *Numbers) LengthMS(nowMS int64) int64 {
	if n.Bounds == nil {
		return n.WindowMS
	}
	s := n.Bounds.At(nowMS)
	return s.EndMS - s.StartMS
}

// windowAt returns the aligned window of an instant.
func (n *Numbers) windowAt(t int64) Span {
	if n.Bounds != nil {
		return n.Bounds.At(t)
	}
	start := t - t%n.WindowMS
	return Span{StartMS: start, EndMS: start + n.WindowMS}
}

// Compact reports whether the state of a counter consists of three small numbers (StoredState),
// without penalty. Nearly all counters are compact.
func (n *Numbers) Compact() bool {
	return n.PenaltyMS == 0 && n.Algorithm != SlidingWindowLog && n.Algorithm != SlidingWindowBuckets
}
