package limit

// leakyBucket is a meter: each request adds its cost, Limit per window drains evenly, and a request
// that would exceed Burst is denied. It makes the same decisions as the token bucket. The
// twin is leaky_bucket.lua.
type leakyBucket struct {
	immediate
	bucket
}

func (s *leakyBucket) Clone() State { c := *s; return &c }
