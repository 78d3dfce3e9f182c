package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// timedEvery is how many calls there are for one that is timed: reading the clock costs about as
// much as a decision in memory.
const timedEvery = 64

// Calls calls a function from as many callers as the plan has connections, as fast as it returns.
// The result has the latencies of one call in 64.
func Calls(ctx context.Context, plan Plan, call func() (allowed bool, err error)) (*Result, error) {
	var phase atomic.Int32
	results, errs := make([]*Result, plan.Connections), make([]error, plan.Connections)
	var callers sync.WaitGroup
	for i := range plan.Connections {
		results[i] = NewResult()
		callers.Go(func() { errs[i] = keepCalling(&phase, results[i], call) })
	}
	total := NewResult()
	total.Elapsed = plan.run(ctx, &phase)
	callers.Wait()
	if err := firstError(append([]error{ctx.Err()}, errs...)); err != nil {
		return nil, fmt.Errorf("calls: %w", err)
	}
	for _, r := range results {
		total.merge(r)
	}
	return total, nil
}

// keepCalling calls until the run is over, and counts the calls of the measured phase.
func keepCalling(phase *atomic.Int32, r *Result, call func() (bool, error)) error {
	for {
		began := time.Now()
		for i := range timedEvery {
			allowed, err := call()
			if err != nil {
				return err
			}
			var latency time.Duration
			if i == 0 {
				latency = time.Since(began)
			}
			r.Asked++
			switch phase.Load() {
			case over:
				return nil
			case measuring:
				r.Requests++
				if !allowed {
					r.Denied++
				}
				if i == 0 {
					record(r.latency, latency)
				}
			}
		}
	}
}
