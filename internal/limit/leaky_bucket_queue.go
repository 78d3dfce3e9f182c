package limit

// leakyBucketQueue allows the same requests as a leaky bucket. Each allowed request must wait until
// all earlier ones have drained, so that the flow is even. The twin is leaky_bucket_queue.lua.
type leakyBucketQueue struct{ bucket }

func (s *leakyBucketQueue) delay(n *Numbers, t int64) int64 { return s.when(n, t, 0) - t }

func (s *leakyBucketQueue) Clone() State { c := *s; return &c }
