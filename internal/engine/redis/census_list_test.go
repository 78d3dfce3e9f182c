package redis_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// expiries returns when the counters of a tenant end, by its list and by Redis, by the last bytes
// of their keys.
func (s *censusStack) expiries(tenant limit.TenantID) (listed, stored map[string]int64) {
	s.t.Helper()
	client, ctx := clientOf(s.t, s.server.URL), s.t.Context()
	listed, stored = map[string]int64{}, map[string]int64{}
	for _, key := range allKeys(s.t.(*testing.T), client, "w{") {
		if !strings.HasPrefix(key, s.keys.Prefix(tenant)) {
			continue
		}
		if strings.HasPrefix(key, s.keys.Prefix(tenant)+"n"+string(tenant[:])) {
			names, err := client.ZRangeWithScores(ctx, key, 0, -1).Result()
			require.NoError(s.t, err)
			for _, name := range names {
				listed[name.Member.(string)] = int64(name.Score)
			}
			continue
		}
		at, err := client.PExpireTime(ctx, key).Result()
		require.NoError(s.t, err)
		if at > 0 { // it has not expired meanwhile
			stored[key[len(s.keys.Prefix(tenant)):]] = at.Milliseconds()
		}
	}
	return listed, stored
}

// The list has a counter for as long as Redis has it, and not for much longer. Before, it had one
// unit of a bucket that is full again in a quarter of an hour for up to 18 hours, and a sliding
// window counter up to a window too short.
func TestCensusListsTheLifeOfCounters(t *testing.T) {
	const second, minute, hour = int64(1_000), int64(60_000), int64(3_600_000)
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(10_000)
	windows := map[string]int64{} // by name
	var calls []func(cost int64) *engine.Call
	add := func(n limit.Numbers) {
		subject := uint64(len(calls))
		counter := s.counter(tenant, subject, n)
		windows[counter.Key[len(counter.Key)-9:]] = n.WindowMS
		calls = append(calls, func(cost int64) *engine.Call { return s.call(tenant, cost, counter) })
	}
	for _, a := range limit.Algorithms {
		for _, window := range []int64{10 * minute, hour, 25 * hour, 300 * 24 * hour} {
			for _, most := range []int64{100, 5_000} {
				n := numbersOf(a, most)
				n.WindowMS, n.PenaltyMS = window, 0
				if n.PrecisionMS > 0 {
					n.PrecisionMS = window / 20
				}
				add(n)
			}
		}
	}
	group := groupOf("", 100)
	calls = append(calls, func(cost int64) *engine.Call {
		own := s.counter(tenant, 1<<40, limit.Numbers{})
		name := engine.ReadName(own.Key[len(own.Key)-9:]).Minus(engine.ReadName(own.ID)).Append(nil)
		counters := append([]engine.Counter{}, group[2], group[2])
		counters[0].Numbers = limit.Numbers{Algorithm: limit.SlidingWindowCounter, Limit: 1_000, WindowMS: hour}
		counters[1].Numbers = limit.Numbers{Algorithm: limit.FixedWindow, Limit: 1_000, WindowMS: hour}
		counters[1].ID = "0009-rule"
		for j := range counters {
			counters[j].Key = s.keys.Prefix(tenant) + string(name)
		}
		windows[string(name)] = hour
		return s.call(tenant, cost, counters...)
	})
	begun := map[string]int64{}
	for round, cost := range []int64{1, 40, 2} {
		for _, call := range calls {
			c := call(cost)
			require.True(t, i.admits(t, c))
			begun[c.Counters[0].Key[len(c.Counters[0].Key)-9:]] = c.Outcome.NowMS
		}
		i.census.Look(t.Context())
		listed, stored := s.expiries(tenant)
		require.Greater(t, len(stored), len(calls)/2)
		for name, ends := range stored {
			require.Contains(t, listed, name)
			require.GreaterOrEqual(t, listed[name], ends, "round %d, window %d", round, windows[name])
			more := min(windows[name], max((ends-begun[name])/2, 15*second))
			require.LessOrEqual(t, listed[name], ends+more+3*second, "round %d, window %d", round, windows[name])
		}
	}
}

// An instance that tells of a counter late does not shorten the life that another one has told of.
func TestCensusKeepsTheLongestLife(t *testing.T) {
	s := newCensusStack(t)
	early, late := s.instance(), s.instance()
	tenant := s.tenant(1_000)
	bucket := limit.Numbers{Algorithm: limit.TokenBucket, Limit: 100, Burst: 100, WindowMS: 86_400_000}
	require.True(t, late.admits(t, s.call(tenant, 1, s.counter(tenant, 1, bucket))))
	require.True(t, early.admits(t, s.call(tenant, 90, s.counter(tenant, 1, bucket))))
	early.census.Look(t.Context())
	late.census.Look(t.Context())
	listed, stored := s.expiries(tenant)
	require.Len(t, listed, 1)
	for name, ends := range stored {
		require.GreaterOrEqual(t, listed[name], ends)
	}
}

// A counter whose end moves with each charge is not added to the list at each one.
func TestCensusTellsSeldom(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(1_000)
	bucket := limit.Numbers{Algorithm: limit.TokenBucket, Limit: 100_000, Burst: 100_000, WindowMS: 86_400_000}
	call := s.call(tenant, 1, s.counter(tenant, 1, bucket))
	count, r := i.census.Count(), rand.New(rand.NewPCG(1, 1))
	call.Outcome = engine.Outcome{NowMS: beginMS, Allowed: true, Verdicts: []limit.Verdict{{Allowed: true, Remaining: 10}}}
	for range 1_000 { // in 100 seconds
		call.Outcome.NowMS += 100
		call.Outcome.Verdicts[0].ResetMS = call.Outcome.NowMS + 20_000 + r.Int64N(70_000)
		count(call)
	}
	require.LessOrEqual(t, i.census.Queued(), 15)
}
