package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// inOutage makes an attempt by each of some rules in an outage, as one of so many instances.
func (r *throttleRig) inOutage(instances int64, account string) bool {
	full := Counter{Key: "w{s}" + account, Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 12, WindowMS: 900_000}}
	part := full
	part.Numbers = Share{Count: instances}.numbers(full.Numbers)
	c := &Call{Space: ThrottleSpace, Cost: 1, Fresh: true, Counters: []Counter{part}}
	c.local = &localCall{nowMS: r.now, counters: []Counter{full}, primes: make([]prime, 1)}
	r.engine.Evaluate(context.Background(), c)
	require.NoError(r.t, c.Err)
	return c.Outcome.Allowed
}

// Shared counters of throttles remain the same when the number of instances changes during an
// outage. Before, everybody began at zero.
func TestSharedThrottlesOfMoreInstances(t *testing.T) {
	r := newThrottleRig(t, MemoryOptions{MaxThrottles: 1})
	require.True(t, r.inOutage(1, "first"))
	for range 6 {
		require.True(t, r.inOutage(2, "ada"))
	}
	require.False(t, r.inOutage(2, "ada"))
	require.False(t, r.inOutage(3, "ada"), "6 of 4 are used")
	allowed := 0
	for range 20 {
		if r.inOutage(1, "ada") {
			allowed++
		}
	}
	require.Equal(t, 6, allowed, "of 12")
}

// What is charged to Redis after an outage is counted there in the same space.
func TestDebtsKeepTheirSpace(t *testing.T) {
	for _, space := range []Space{TenantSpace, QuotaSpace, ThrottleSpace} {
		r := newThrottleRig(t, MemoryOptions{})
		counter := Counter{Key: fmt.Sprint("w{s}", space), Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 10, WindowMS: 60_000}}
		c := &Call{Space: space, Cost: 1, Counters: []Counter{counter}}
		c.local = &localCall{nowMS: r.now, counters: c.Counters, primes: make([]prime, 1)}
		r.engine.Evaluate(context.Background(), c)
		require.NoError(t, c.Err)
		d := r.engine.owed(counter.Key, r.now, 0)
		require.NotNil(t, d)
		require.Equal(t, space, d.call.Space)
	}
}
