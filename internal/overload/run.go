package overload

import (
	"context"
	"math"
	"runtime/metrics"
	"time"

	"weir/internal/limit"
)

// lookEvery is the time between two looks at the number of requests in flight.
const lookEvery = 10 * time.Millisecond

// Sources are what Run reads.
type Sources struct {
	// Queued returns the smallest wait for Redis since its last call.
	Queued func() time.Duration
	// Trip returns the shortest round trip to Redis of the last seconds.
	Trip func() time.Duration
	// Waiting calls each for the tenants that wait behind calls of their own, as in Queue.
	Waiting func(each func(tenant limit.TenantID, wait time.Duration, requests, underway int64))
	// InFlight returns the number of requests in flight.
	InFlight func() int64
	// Told, if not nil, is called with the waits of each Interval.
	Told func(Signals)
}

// Run adjusts the bound every Interval until ctx ends.
func (b *Bound) Run(ctx context.Context, from Sources) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var runnable Runnable
	runnable.Mean()
	s := Signals{}
	note := func(tenant limit.TenantID, wait time.Duration, requests, underway int64) {
		s.Standing = append(s.Standing, Queue{tenant, wait, requests, underway})
	}
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			s.InFlight = max(s.InFlight, from.InFlight())
			if now.Sub(last) < Interval {
				continue
			}
			last = now
			s.Queued, s.Trip, s.Runnable, s.Refused, s.Failed = from.Queued(), from.Trip(), runnable.Mean(), b.TakeRefused(), b.TakeFailed()
			from.Waiting(note)
			b.Adjust(s)
			if from.Told != nil {
				from.Told(s)
			}
			s = Signals{Standing: s.Standing[:0]}
		}
	}
}

// Runnable reads from the runtime how long goroutines waited for a processor.
type Runnable struct {
	sample [1]metrics.Sample
	before []uint64
}

// Mean returns the mean wait since its last call, and 0 for the first one.
func (r *Runnable) Mean() time.Duration {
	r.sample[0].Name = "/sched/latencies:seconds"
	metrics.Read(r.sample[:])
	h := r.sample[0].Value.Float64Histogram()
	first := len(r.before) != len(h.Counts)
	if first {
		r.before = make([]uint64, len(h.Counts))
	}
	mean := meanSince(h.Counts, r.before, h.Buckets)
	copy(r.before, h.Counts)
	if first {
		return 0
	}
	return mean
}

// meanSince returns the mean of the values that a histogram has counted since before. buckets are
// the bounds of the counts, in seconds.
func meanSince(counts, before []uint64, buckets []float64) time.Duration {
	var total, sum float64
	for i, n := range counts {
		if n == before[i] {
			continue
		}
		low, high := buckets[i], buckets[i+1]
		if math.IsInf(low, -1) {
			low = 0
		}
		if math.IsInf(high, 1) {
			high = low
		}
		total += float64(n - before[i])
		sum += float64(n-before[i]) * (low + high) / 2
	}
	if total == 0 {
		return 0
	}
	return time.Duration(sum / total * float64(time.Second))
}
