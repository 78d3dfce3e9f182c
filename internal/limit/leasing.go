package limit

// Leasable reports whether units of a counter with these numbers can be charged now and granted
// later, with the same result as charging them then. This is not possible if each request counts at
// its own instant (sliding_window_log), is delayed by earlier ones (leaky_bucket_queue), or starts
// a penalty when it is denied, and with overage, where a prefetched unit would count as excess.
func (n *Numbers) Leasable() bool {
	return n.Algorithm != SlidingWindowLog && n.Algorithm != LeakyBucketQueue && n.PenaltyMS == 0 && !n.Overage
}

// Refundable reports whether units can be returned at all. A unit of a bucket must move the instant
// at which it is full by a millisecond or more, so that every charge is detected.
func (n *Numbers) Refundable() bool { return !n.Algorithm.Bucket() || n.Limit <= n.WindowMS }

// Ground returns RefundPart.Ground of a charge with the verdict v at nowMS.
func (n *Numbers) Ground(v *Verdict, nowMS int64) int64 {
	switch n.Algorithm {
	case SlidingWindowCounter:
		return nowMS / n.WindowMS
	case SlidingWindowBuckets:
		return nowMS / n.PrecisionMS
	}
	return v.ResetMS
}

// Bucket is the state of a bucket.
type Bucket interface {
	Refundable
	// RefundAfter returns units although the bucket was charged again since. It returns false and
	// changes nothing if the bucket would be full at t.
	RefundAfter(n *Numbers, units, t int64) bool
}

// Refundable is a state to which units can be returned.
type Refundable interface {
	State
	// Refund returns units that were charged to the state that ground names (RefundPart.Ground).
	// Otherwise it returns false and changes nothing.
	Refund(n *Numbers, units, ground int64) bool
	// Idle reports whether nothing is counted, so that the state is that of a new counter.
	Idle() bool
}
