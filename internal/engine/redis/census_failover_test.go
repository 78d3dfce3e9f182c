package redis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

// failing is a Cluster whose fullest master can fail. No tenant makes a call after the first look.
type failing struct {
	census  *redisengine.Census
	first   *listShard
	second  *listShard
	replica *listShard // of the first one
	told    []float64  // parts of the memory
	now     time.Time
	promote func() // the replica takes the place of the first one
}

func newFailing(t *testing.T) *failing {
	first := "one:1"
	info := func(used string) *listShard {
		return &listShard{alive: 1000, info: strings.Replace(shardFull, "used_memory:900", "used_memory:"+used, 1)}
	}
	f := &failing{first: info("850"), second: info("300"), replica: info("840"), now: time.Now()}
	client := shardsAt(t, map[string]redis.Hook{"one:1": f.first, "replica:1": f.replica, "two:1": f.second}, func() string { return first })
	f.promote = func() {
		first = "replica:1"
		require.NoError(t, client.ForEachMaster(t.Context(), func(context.Context, *redis.Client) error { return nil }), "it reads the slot map")
	}
	f.census = redisengine.NewCensus(redisengine.CensusOptions{
		Client: client, Instances: func() int { return 1 }, Bound: func(limit.TenantID) (int64, bool) { return 16_000_000, true },
		Prefix: func(tenant limit.TenantID) string {
			return map[bool]string{true: "w{a}", false: "w{b}"}[tenant[0] == 0]
		},
		Measured: func(used, most int64, _ int) { f.told = append(f.told, float64(used)/float64(most)) },
	})
	for n := range 4 {
		f.census.Left(limit.TenantID{byte(n), 15: 1})
	}
	f.census.LookDue(t.Context(), f.now) // finds the masters
	f.told = nil
	f.look(t, time.Second)
	require.Equal(t, []float64{0.85}, f.told)
	return f
}

// look looks after so much time, of which it returns what was told.
func (f *failing) look(t *testing.T, after time.Duration) (told []float64) {
	before := len(f.told)
	f.now = f.now.Add(after)
	f.census.LookDue(t.Context(), f.now)
	return f.told[before:]
}

// While the fullest master has failed and no other one has taken its place, what else needs the
// memory is soon told of that of the others. Otherwise, nothing would be written to these.
func TestMemoryIsToldWithoutAFailedMaster(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.first.set(func(s *listShard) { s.info = "" })
	require.Empty(t, f.look(t, time.Second), "it may be slow only")
	require.Empty(t, f.look(t, time.Second))
	require.Equal(t, []float64{0.3}, f.look(t, time.Second))
	require.True(t, f.census.Memory().Full, "its own tenants are bounded by what it said last")
	f.first.set(func(s *listShard) { s.info = shardFull })
	require.Equal(t, []float64{0.9}, f.look(t, time.Second))
}

// After a failover, the memory of the new master counts instead of that of the one that failed,
// also if its tenants make no calls.
func TestMemoryAfterAFailover(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.first.set(func(s *listShard) { s.info = "" })
	require.Empty(t, f.look(t, time.Second))
	f.promote()
	require.Equal(t, []float64{0.84}, f.look(t, time.Second))
	require.Equal(t, redisengine.MemoryUse{Used: 0.84, Full: true}, f.census.Memory())
}

// While no master answers, nothing is told.
func TestMemoryIsNotToldWithoutAMaster(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	for _, master := range []*listShard{f.first, f.second} {
		master.set(func(s *listShard) { s.info = "" })
	}
	for range 20 {
		require.Empty(t, f.look(t, time.Second))
	}
}
