package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// throttleRig is an instance in an outage that limits sign-ins: by person and address, by networks,
// and by person.
type throttleRig struct {
	t      *testing.T
	now    int64
	engine *Memory
}

func newThrottleRig(t *testing.T, o MemoryOptions) *throttleRig {
	r := &throttleRig{t: t, now: engineStart}
	o.Clock = func() int64 { return r.now }
	r.engine = NewMemory(o)
	return r
}

func (r *throttleRig) attempt(account, address, home, site string) bool {
	network := func(n int64) limit.Numbers {
		return limit.Numbers{Algorithm: limit.SlidingWindowCounter, Limit: n, WindowMS: 3_600_000}
	}
	c := &Call{Space: ThrottleSpace, Cost: 1, Fresh: true}
	for _, counter := range []struct {
		value   string
		numbers limit.Numbers
	}{
		{account + " " + address, limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: 10, WindowMS: 900_000}},
		{address, network(50)}, {home, network(200)}, {site, network(800)},
		{account, limit.Numbers{Algorithm: limit.TokenBucket, Limit: 100, Burst: 100, WindowMS: 86_400_000}},
	} {
		c.Counters = append(c.Counters, Counter{Key: fmt.Sprint("w{s}", len(c.Counters), counter.value), Numbers: counter.numbers})
	}
	r.engine.Evaluate(context.Background(), c)
	require.NoError(r.t, c.Err)
	return c.Outcome.Allowed
}

// flood makes so many attempts from each of some sites, with a new account each time, as fast as
// passwords are compared.
func (r *throttleRig) flood(sites, each int) {
	for s := range sites {
		for i := range each {
			r.now += 25
			r.attempt(fmt.Sprint("a", s, ".", i), fmt.Sprint("s", s, ".", i/50), fmt.Sprint("h", s, ".", i/200), fmt.Sprint("S", s))
		}
	}
}

// refused returns how many of so many people cannot make a first attempt.
func (r *throttleRig) refused(people int) (refused int) {
	for p := range people {
		r.now += 25
		if !r.attempt(fmt.Sprint("p", p), fmt.Sprint("pa", p), fmt.Sprint("ph", p), fmt.Sprint("pS", p)) {
			refused++
		}
	}
	return refused
}

// While Redis is unavailable, nobody is refused for what others do: neither for the attempts of an
// unknown sender with many networks, nor for the counters of tenants. Before, people shared
// counters with both: 30 sites refused 176 of 200, and 20 tenants 36 of 500.
func TestThrottlesHaveTheirOwnSpace(t *testing.T) {
	t.Run("many networks", func(t *testing.T) {
		r := newThrottleRig(t, MemoryOptions{})
		r.flood(40, 800)
		require.Zero(t, r.refused(200))
	})
	t.Run("tenants", func(t *testing.T) {
		r := newThrottleRig(t, MemoryOptions{MaxCounters: 20_000})
		for range 20 {
			attacker := uuid.New()
			for i := range 2_500 {
				r.engine.Evaluate(context.Background(), &Call{Tenant: attacker, Cost: 1, Counters: []Counter{{
					Key: fmt.Sprint("w{a}", attacker, i), Numbers: hourly,
				}}})
			}
		}
		counters, overflow := r.engine.counters.Load(), r.engine.overflow.Load()
		require.Zero(t, r.refused(500))
		require.Equal(t, counters, r.engine.counters.Load())
		require.Equal(t, overflow, r.engine.overflow.Load(), "nor do tenants lose room")
	})
}

// The counters of throttles are bounded. Beyond the bound they are shared, and still limit: nobody
// can try more by filling them. What has expired makes room, and nothing that was counted is lost.
func TestThrottlesAreBounded(t *testing.T) {
	r := newThrottleRig(t, MemoryOptions{MaxThrottles: 1_000})
	r.flood(100, 800)
	require.LessOrEqual(t, r.engine.Len(), 1_000+5)
	held := 0
	for i := range r.engine.shards {
		held += len(r.engine.shards[i].all)
	}
	require.LessOrEqual(t, held, 1_005+3*throttleSlots, "5000 networks, 80 000 accounts, and as many of both")
	require.LessOrEqual(t, r.refused(200), 60, "a tenth of the counters of addresses are full")
	ada := 0
	for !r.attempt(fmt.Sprint("ada", ada), fmt.Sprint("here", ada), fmt.Sprint("home", ada), fmt.Sprint("site", ada)) {
		ada++
	}
	allowed := 1
	for range 20 {
		if r.attempt(fmt.Sprint("ada", ada), fmt.Sprint("here", ada), fmt.Sprint("home", ada), fmt.Sprint("site", ada)) {
			allowed++
		}
	}
	require.LessOrEqual(t, allowed, 10)
	r.engine.most.apart[ThrottleSpace] = 100_000
	require.False(t, r.attempt(fmt.Sprint("ada", ada), fmt.Sprint("here", ada), fmt.Sprint("home", ada), fmt.Sprint("site", ada)), "a counter of its own begins with the shared one")

	r.now += 86_400_000
	for range memoryShards {
		r.engine.tidy(func(string) bool { return false })
	}
	require.Zero(t, r.engine.Len())
	require.Empty(t, r.engine.tenants)
}
