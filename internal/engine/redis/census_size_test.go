package redis_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// longLog is a rule whose counters grow with each request, for as long as possible.
var longLog = limit.Numbers{Algorithm: limit.SlidingWindowLog, Limit: limit.MaxLogLimit, WindowMS: limit.MaxWindowMS}

// beginMS is when the calls of these tests begin. They pass their instants, so no test waits.
var beginMS = time.Now().UnixMilli()

// bytesOf returns the length of all values of a tenant that are not lists of counters.
func (s *censusStack) bytesOf(client redis.UniversalClient, tenant limit.TenantID) (bytes int) {
	for _, key := range allKeys(s.t.(*testing.T), client, "w{") {
		if strings.HasPrefix(key, s.keys.Prefix(tenant)) && !strings.HasPrefix(key, s.keys.Prefix(tenant)+"n"+string(tenant[:])) {
			n, err := client.StrLen(s.t.Context(), key).Result()
			require.NoError(s.t, err)
			bytes += int(n)
		}
	}
	return bytes
}

// fill charges counters of some subjects at many different instants.
func (s *censusStack) fill(i instance, tenant limit.TenantID, n limit.Numbers, subjects, times int, fromMS, stepMS int64) {
	for at := range times {
		calls := make([]*engine.Call, subjects)
		for subject := range calls {
			calls[subject] = s.call(tenant, 1, s.counter(tenant, uint64(subject), n))
			calls[subject].NowMS = fromMS + int64(at)*stepMS
		}
		i.Evaluate(s.t.Context(), calls...)
		for _, call := range calls {
			require.NoError(s.t, call.Err)
			require.True(s.t, call.Outcome.Allowed)
		}
		if at%100 == 99 {
			i.census.Look(s.t.Context())
		}
	}
}

// A tenant with few subjects and long logs reaches its bound, because a log counts by its size.
// From then on its logs hardly grow. Below the bound, they are exact.
func TestCensusBoundsLogs(t *testing.T) {
	for _, bound := range []int64{1_000, 4_000} {
		s := newCensusStack(t)
		i := s.instance()
		tenant, client := s.tenant(bound), clientOf(t, s.server.URL)
		const usual = 120 // bytes of a counter
		subjects := int(bound) / 100
		s.fill(i, tenant, longLog, subjects, 500, beginMS, 1_000)
		estimate, err := i.census.Alive(t.Context(), tenant, bound)
		require.NoError(t, err)
		require.InEpsilon(t, subjects*500/10, estimate, 0.2, "one for each ten entries")
		require.Equal(t, subjects*(7+500*12), s.bytesOf(client, tenant), "an entry for each request")

		s.fill(i, tenant, longLog, subjects, 1_500, beginMS+500_000, 1_000)
		require.LessOrEqual(t, i.census.Left(tenant), int64(0), "the tenant is full")
		require.LessOrEqual(t, s.bytesOf(client, tenant), int(bound)*usual)
		require.Greater(t, s.bytesOf(client, tenant), int(bound)*usual/2, "the bound can be used")
		call := s.call(tenant, 0, s.counter(tenant, 1, longLog))
		call.NowMS = beginMS + 3_000_000
		require.True(t, i.admits(t, call))
		require.EqualValues(t, limit.MaxLogLimit-2_000, call.Outcome.Verdicts[0].Remaining, "each request is counted")
	}
}

// Small logs count as one counter each.
func TestCensusOfSmallLogs(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(2_000)
	s.fill(i, tenant, longLog, 500, 9, beginMS, 1_000)
	i.census.Look(t.Context())
	estimate, err := i.census.Alive(t.Context(), tenant, 2_000)
	require.NoError(t, err)
	require.EqualValues(t, 500, estimate)
}

// Sub-buckets of a long list count, too, and a part of the window only once.
func TestCensusBoundsSubBuckets(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	const bound, subjects = 5_000, 250
	tenant, client := s.tenant(bound), clientOf(t, s.server.URL)
	n := limit.Numbers{Algorithm: limit.SlidingWindowBuckets, Limit: 1_000_000, WindowMS: 120 * 86_400_000, PrecisionMS: 86_400_000}
	s.fill(i, tenant, n, subjects, 120, beginMS, n.PrecisionMS)
	s.fill(i, tenant, n, subjects, 100, beginMS+119*n.PrecisionMS, 1)
	i.census.Look(t.Context())
	estimate, err := i.census.Alive(t.Context(), tenant, bound)
	require.NoError(t, err)
	require.InEpsilon(t, subjects*(1+(120-24)/24), estimate, 0.2)
	require.Equal(t, subjects*(7+5*120), s.bytesOf(client, tenant))
}

// The counters of a full tenant answer like limit.Growing: with the same calls, coarse_log.lua and
// coarse_buckets.lua leave the same units, and the values stay small.
func TestCensusCoarseCounters(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant, client := s.tenant(1_000), clientOf(t, s.server.URL)
	rules := []limit.Numbers{
		{Algorithm: limit.SlidingWindowLog, Limit: 1_000, WindowMS: 100_000},
		{Algorithm: limit.SlidingWindowLog, Limit: 30, WindowMS: 100_000, PenaltyMS: 1_000},
		{Algorithm: limit.SlidingWindowBuckets, Limit: 10_000, WindowMS: 120_000, PrecisionMS: 1_000},
		{Algorithm: limit.SlidingWindowBuckets, Limit: 10_000, WindowMS: 10_000, PrecisionMS: 1_000},
	}
	for k, n := range rules {
		call := s.call(tenant, 1, s.counter(tenant, uint64(k)<<32, n))
		call.NowMS = beginMS
		require.True(t, i.admits(t, call))
	}
	for round := range 2 {
		s.flood(i, tenant, 2_000*round, 2_000, aYear)
		i.census.Look(t.Context())
	}
	require.LessOrEqual(t, i.census.Left(tenant), int64(0))
	for k, n := range rules {
		r := rand.New(rand.NewPCG(3, uint64(k)))
		twin := limit.NewState(n.Algorithm).(limit.Growing)
		twin.Coarsen(true)
		twin.Charge(&n, 1, beginMS)
		counter, now, most := s.counter(tenant, uint64(k)<<32, n), beginMS, int64(0)
		for range 3_000 {
			if now += r.Int64N(200); r.IntN(300) == 0 {
				now += r.Int64N(2 * n.WindowMS)
			}
			call := s.call(tenant, 1+r.Int64N(3), counter)
			call.NowMS = now
			j := limit.Judgement{Numbers: &n, State: twin}
			if n.PenaltyMS == 0 {
				want := j.Admit(call.Cost, now)
				if want.Allowed {
					j.Charge(&want, call.Cost, now)
				}
				j.Finish(&want, call.Cost, now)
				i.Evaluate(t.Context(), call)
				require.NoError(t, call.Err)
				require.Equal(t, want, call.Outcome.Verdicts[0])
			} else {
				i.Evaluate(t.Context(), call)
				require.NoError(t, call.Err)
			}
			size, err := client.StrLen(t.Context(), counter.Key).Result()
			require.NoError(t, err)
			most = max(most, size)
		}
		if n.Algorithm == limit.SlidingWindowLog {
			require.LessOrEqual(t, most, int64(7+12*2*(limit.ExactEntries+22)))
		} else {
			require.LessOrEqual(t, most, int64(7+5*(limit.ExactEntries+22)))
		}
	}
}
