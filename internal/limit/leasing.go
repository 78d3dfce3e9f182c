package limit

// Leasable reports whether units of a counter with these numbers can be charged now and granted
// a moment later, as if they had been asked for then. Not so where each request counts at its
// own instant (sliding_window_log), is held up by those before it (leaky_bucket_queue), or
// starts a penalty when denied.
func (n *Numbers) Leasable() bool {
	return n.Algorithm != SlidingWindowLog && n.Algorithm != LeakyBucketQueue && n.PenaltyMS == 0
}

// refundable reports whether units can go back at all: a unit of a bucket must move the instant of
// being full by a millisecond or more, so that no charge goes unnoticed.
func (n *Numbers) Refundable() bool { return !n.Algorithm.Bucket() || n.Limit <= n.WindowMS }

// ground is RefundPart.Ground of a charge that was answered with v at nowMS.
func (n *Numbers) Ground(v *Verdict, nowMS int64) int64 {
	switch n.Algorithm {
	case SlidingWindowCounter:
		return nowMS / n.WindowMS
	case SlidingWindowBuckets:
		return nowMS / n.PrecisionMS
	}
	return v.ResetMS
}

// refundable is a state that units can go back to.
type Refundable interface {
	State
	// refund takes units back that were charged to the state ground names (RefundPart.Ground), or
	// reports false and changes nothing.
	Refund(n *Numbers, units, ground int64) bool
	// idle reports whether nothing is counted, so that the state is that of an unseen counter.
	Idle() bool
}
