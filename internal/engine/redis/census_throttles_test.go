package redis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/throttle"
)

// signInRules are rules of several algorithms, as those of sign-ins.
var signInRules = throttle.ByNetwork(
	limit.Rule{Slug: "account-address", Algorithm: limit.FixedWindowFirstHit, Limit: 10, Window: throttle.Every(15 * time.Minute)},
	limit.Rule{Slug: "address", Algorithm: limit.SlidingWindowCounter, Limit: 50, Window: throttle.Every(time.Hour)},
	limit.Rule{Slug: "account", Algorithm: limit.TokenBucket, Limit: 100, Window: throttle.Every(24 * time.Hour)},
)

// nobody is the owner of the counters of throttles.
var nobody limit.TenantID

// fillThrottles makes the list of throttles as long as after millions of attempts.
func (s *censusStack) fillThrottles(i instance) {
	s.t.Helper()
	sample := i.census.Sample(nobody)
	names := make([]redis.Z, i.census.Usable(nobody)>>sample+1)
	for n := range names {
		names[n] = redis.Z{Score: float64(time.Now().Add(24 * time.Hour).UnixMilli()), Member: fmt.Sprintf("%09d", n)}
	}
	list := s.keys.Prefix(nobody) + "n" + string(nobody[:]) + string(rune('0'+sample))
	require.NoError(s.t, clientOf(s.t, s.server.URL).ZAdd(s.t.Context(), list, names...).Err())
	i.census.Look(s.t.Context())
	require.Zero(s.t, i.census.Left(nobody))
}

// Nobody gets more guesses by filling Redis with the counters of attempts, from very many networks
// and for very many accounts. Before, the rules shared their spare counters, and each overwrote
// what another had counted: 1431 of 5000 guesses at one password were allowed.
func TestThrottlesLimitWithoutRoom(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	signIns := throttle.New("sign-in", i.Engine, s.keys.Private, time.Now, signInRules...)
	s.fillThrottles(i)
	allowed := 0
	for n := range 2_000 {
		network := fmt.Sprint("net", n)
		account := "ada"
		if n%4 > 0 {
			account = fmt.Sprint("other", n)
		}
		try, _ := signIns.BeginFrom(t.Context(), account, [3]string{network, network + "h", network + "s"})
		if try != nil && account == "ada" {
			allowed++
		}
	}
	require.LessOrEqual(t, allowed, 100)
	require.Greater(t, allowed, 50, "few others use the same counter")
}

// The bound of throttles is not that of a tenant, and their spare counters are more.
func TestThrottlesHaveTheirOwnBound(t *testing.T) {
	s := newCensusStack(t)
	s.bounds.Store(nobody, int64(1_000))
	i := s.instance()
	require.Greater(t, i.census.Usable(nobody), int64(500_000))
	require.Greater(t, i.census.Spares(nobody), int64(10_000))
}

// A canary is never a spare counter: the next probe would find another one and report that Redis
// has lost its data.
func TestCanariesAreNoSpareCounters(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	s.fillThrottles(i)
	key := engine.CanaryKey(0)
	call := engine.Call{Cost: 1, Counters: []engine.Counter{{
		Key: key, Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: limit.MaxFixedLimit, WindowMS: limit.MaxWindowMS},
	}}}
	i.Evaluate(context.Background(), &call)
	require.NoError(t, call.Err)
	found, err := clientOf(t, s.server.URL).Exists(t.Context(), key).Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, found)
}
