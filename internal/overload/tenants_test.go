package overload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// risen returns a bound that has risen to 10 000, of calls with this timeout.
func risen(timeout time.Duration) *Bound {
	b := New(10_000, 2, timeout)
	for range 20 {
		b.Adjust(Signals{InFlight: 2000})
	}
	return b
}

// Only the tenant whose calls wait gets a bound, which falls until its calls wait for the target.
// Before, thousands of its calls waited until their timeout, and were then decided in process,
// which took the processor from its neighbours.
func TestTenantWithAQueueIsBounded(t *testing.T) {
	b := risen(time.Second)
	loud, quiet := limit.TenantID{1}, limit.TenantID{2}
	require.EqualValues(t, 5000, b.ShareOf(loud))
	const perSecond = 20_000 // calls of the tenant that Redis decides
	var wait time.Duration
	for range 100 {
		inFlight := min(2000, b.ShareOf(loud))
		wait = time.Duration(inFlight) * time.Second / perSecond
		b.Adjust(Signals{InFlight: inFlight, Refused: 2000 - inFlight, Standing: []Queue{
			{Tenant: loud, Wait: wait, Requests: inFlight, Underway: 20}, {Tenant: quiet, Wait: 2 * time.Millisecond, Requests: 3},
		}})
		require.EqualValues(t, b.Share(), b.ShareOf(quiet))
	}
	require.Greater(t, wait, maxQueued/3, "Redis must stay busy")
	require.Less(t, wait, maxQueued*3/4)
	require.Len(t, b.Bounded(), 1)
	require.EqualValues(t, 10_000, b.Limit(), "no other tenant waits")
}

// The bound of a tenant never falls below leastOfTenant, and it ends within seconds after the
// queue.
func TestBoundOfATenantEnds(t *testing.T) {
	b := risen(time.Second)
	loud := limit.TenantID{1}
	for range 20 {
		b.Adjust(Signals{InFlight: 200, Standing: []Queue{{Tenant: loud, Wait: time.Second, Requests: 150}}})
	}
	require.EqualValues(t, leastOfTenant, b.ShareOf(loud))
	intervals := 0
	for ; len(b.Bounded()) > 0; intervals++ {
		b.Adjust(Signals{InFlight: 200})
	}
	require.Less(t, time.Duration(intervals)*Interval, 10*time.Second)
	require.EqualValues(t, b.Share(), b.ShareOf(loud))
}

// Calls that were not sent in time have left the queue, so no wait above four times their timeout
// is seen. With a short timeout, the target is lower.
func TestTargetIsBelowTheTimeout(t *testing.T) {
	b := risen(10 * time.Millisecond)
	loud := limit.TenantID{1}
	b.Adjust(Signals{InFlight: 2000, Standing: []Queue{{Tenant: loud, Wait: 35 * time.Millisecond, Requests: 2000}}})
	require.Less(t, b.ShareOf(loud), int64(2000))
	b.Adjust(Signals{InFlight: 2000, Queued: 35 * time.Millisecond})
	require.Less(t, b.Limit(), int64(2000))
}

// While a few tenants wait, only their own bounds fall, also if no other tenant has a call in the
// queue: a neighbour that seldom asks finds a place. If many wait, the bound of all requests falls.
func TestSeldomNeighbourIsNotRefused(t *testing.T) {
	b := risen(time.Second)
	wait := func(tenants int, each int64) {
		s := Signals{InFlight: 2000, Queued: time.Second}
		for n := range tenants {
			s.Standing = append(s.Standing, Queue{Tenant: limit.TenantID{byte(n + 1)}, Wait: time.Second, Requests: each})
		}
		for range 20 {
			b.Adjust(s)
		}
	}
	wait(1, 1000)
	require.EqualValues(t, leastOfTenant, b.ShareOf(limit.TenantID{1}))
	require.EqualValues(t, 10_000, b.Limit())
	wait(fewTenants, 100)
	require.EqualValues(t, 10_000, b.Limit(), "they leave room for others")
	wait(fewTenants+1, 400)
	require.EqualValues(t, leastBound, b.Limit())
	for range 100 {
		b.Adjust(Signals{InFlight: 20})
	}
	wait(1, 900)
	require.EqualValues(t, leastBound, b.Limit(), "most requests are of others")
}

// A tenant that waits for several servers has one bound, by its requests for all of them.
func TestTenantThatWaitsForSeveralServers(t *testing.T) {
	loud := limit.TenantID{1}
	queues := []Queue{{Tenant: loud, Wait: time.Second, Requests: 1000}, {Tenant: loud, Wait: 30 * time.Millisecond, Requests: 500}}
	for range 2 {
		b := risen(time.Second)
		b.Adjust(Signals{InFlight: 2000, Standing: queues})
		require.EqualValues(t, 750, b.ShareOf(loud))
		queues[0], queues[1] = queues[1], queues[0]
	}
}

// If Redis is far away, calls wait for a pipeline although nothing is overloaded, and many must be
// on their way to keep it busy. Before, a fixed smallest bound was too high for a Redis nearby, and
// a lower one would have refused calls to a distant one.
func TestBoundsFollowTheRoundTrip(t *testing.T) {
	b := risen(time.Second)
	const trip, underway = 80 * time.Millisecond, 300
	far := limit.TenantID{1}
	ask := func(wait time.Duration) {
		for range 20 {
			b.Adjust(Signals{InFlight: 1500, Queued: wait, Trip: trip, Standing: []Queue{{Tenant: far, Wait: wait, Requests: 1000, Underway: underway}}})
		}
	}
	ask(trip)
	require.Empty(t, b.Bounded())
	require.EqualValues(t, 10_000, b.Limit())
	ask(3 * trip)
	require.EqualValues(t, 2*underway, b.ShareOf(far), "as many wait as are on their way")
	require.EqualValues(t, 10_000, b.Limit())

	b = risen(50 * time.Millisecond)
	ask(101 * time.Millisecond)
	require.NotEmpty(t, b.Bounded(), "however long the trip is, calls are not sent too late")
}

func TestFixedBoundIgnoresQueues(t *testing.T) {
	b := Fixed(10)
	b.Adjust(Signals{Standing: []Queue{{Wait: time.Minute, Requests: 10}}})
	require.EqualValues(t, 5, b.ShareOf(limit.TenantID{}))
	require.Empty(t, b.Bounded())
}
