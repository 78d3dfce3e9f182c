package limit

// leakyBucket is a meter: each request pours its cost in, Limit per window drain out, evenly,
// and what would overflow Burst is denied. It is the token bucket seen from the other side.
type leakyBucket struct {
	immediate
	bucket
}

func (s *leakyBucket) Clone() State { c := *s; return &c }
