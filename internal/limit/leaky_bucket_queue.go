package limit

// leakyBucketQueue admits as a leaky bucket does and tells each admitted request how long to
// wait until all admitted before it has drained. Only so is the outflow even.
type leakyBucketQueue struct{ bucket }

func (s *leakyBucketQueue) delay(n *Numbers, t int64) int64 { return s.when(n, t, 0) - t }

func (s *leakyBucketQueue) Clone() State { c := *s; return &c }
