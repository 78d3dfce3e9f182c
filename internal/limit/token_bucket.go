package limit

// tokenBucket holds up to Burst tokens and gains Limit tokens per window, evenly. A request takes
// its cost in tokens or is denied. The twin is token_bucket.lua.
type tokenBucket struct {
	immediate
	bucket
}

func (s *tokenBucket) Clone() State { c := *s; return &c }
