package redis_test

import (
	"fmt"
	"testing"

	"weir/internal/limit"
)

// BenchmarkCensusOfACall measures what the Census adds to a call that is answered: for counters in
// the list (a small bound) and those of which the list has a sample.
func BenchmarkCensusOfACall(b *testing.B) {
	s := newCensusStack(b)
	i := s.instance()
	for _, bound := range []int64{10_000, 1_000_000} {
		for _, a := range []limit.Algorithm{limit.SlidingWindowCounter, limit.FixedWindow, limit.TokenBucket} {
			b.Run(fmt.Sprintf("bound=%d/%s", bound, a), func(b *testing.B) {
				tenant := s.tenant(bound)
				call := s.call(tenant, 1)
				for subject := range uint64(10) {
					n := numbersOf(a, 1_000_000)
					n.PenaltyMS, n.WindowMS = 0, 60_000
					call.Counters = append(call.Counters, s.counter(tenant, subject, n))
				}
				for range 2 { // so that none is new
					if !i.admits(b, call) {
						b.Fatal("denied")
					}
				}
				count := i.census.Count()
				b.ReportAllocs()
				for b.Loop() {
					count(call)
				}
			})
		}
	}
}
