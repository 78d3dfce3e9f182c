package redis_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// nearlyFull is the part of the memory from which on tenants are bounded.
const nearlyFull = 0.8

// smallStack is a censusStack whose Redis has a maximum of memory.
func smallStack(t testing.TB, megabytes int, settings ...string) *censusStack {
	server := testenv.StartRedis(t, append(settings, fmt.Sprintf("maxmemory %dmb", megabytes))...)
	return &censusStack{t: t, server: server, keys: check.NewKeys([16]byte{7}), n: 1}
}

// inUse returns the part of the maximum memory that is in use.
func (s *censusStack) inUse() float64 {
	info, err := clientOf(s.t, s.server.URL).Info(s.t.Context(), "memory").Result()
	require.NoError(s.t, err)
	number := func(name string) float64 {
		_, rest, _ := strings.Cut(info, "\n"+name+":")
		text, _, _ := strings.Cut(rest, "\r")
		n, err := strconv.ParseFloat(text, 64)
		require.NoError(s.t, err)
		return n
	}
	return number("used_memory") / number("maxmemory")
}

// floodLooking checks new subjects, with a look after so many as an instance checks in a second.
func (s *censusStack) floodLooking(i instance, tenant limit.TenantID, from, subjects int) {
	const second = 5000
	for first := from; first < from+subjects; first += second {
		s.flood(i, tenant, first, min(second, from+subjects-first), aYear)
		i.census.Look(s.t.Context())
	}
}

// A tenant whose bound is more than fits into Redis gets no new counters before it is full, and no
// check fails. Other tenants get theirs. When Redis has memory again, it gets new ones, too.
func TestMemoryBoundsTheLargestTenant(t *testing.T) {
	s := smallStack(t, 16)
	i := s.instance()
	large, small := s.tenant(1_000_000), s.tenant(1_000_000)
	s.flood(i, small, 0, 100, aYear)
	s.floodLooking(i, large, 0, 200_000)
	require.LessOrEqual(t, i.census.Left(large), int64(0))
	require.Greater(t, s.inUse(), nearlyFull)
	require.Less(t, s.inUse(), 0.97)
	memory := i.census.Memory()
	require.Greater(t, memory.Used, nearlyFull)
	require.True(t, memory.Full)
	require.Equal(t, 1, memory.Bounded)

	s.flood(i, small, 100, 1000, aYear)
	keys, lists := s.keysOf(small)
	require.Equal(t, 1100, keys-lists, "each has its own counter")
	fresh := s.tenant(1_000_000)
	s.flood(i, fresh, 0, 500, aYear)
	keys, lists = s.keysOf(fresh)
	require.Equal(t, 500, keys-lists, "also of a tenant that begins now")
	one := s.call(large, 1, s.counter(large, 1, aYear))
	require.True(t, i.admits(t, one))
	require.EqualValues(t, aYear.Limit-2, one.Outcome.Verdicts[0].Remaining, "existing counters count on")

	require.NoError(t, clientOf(t, s.server.URL).FlushAll(t.Context()).Err())
	i.census.Look(t.Context())
	require.Greater(t, i.census.Left(large), int64(10_000))
	memory = i.census.Memory()
	require.False(t, memory.Full)
	require.Zero(t, memory.Bounded)
}

// Any number of tenants, one after the other, do not fill Redis: each gets less than the one
// before. An instance that has just started, and knows none of them, bounds them as well.
func TestMemoryBoundsManyTenants(t *testing.T) {
	s := smallStack(t, 64, "enable-debug-command yes")
	i := s.instance()
	require.NoError(t, clientOf(t, s.server.URL).Do(t.Context(), "DEBUG", "POPULATE", 400_000, "other", 30).Err())
	before := s.inUse()
	require.Greater(t, before, 0.5)
	for n := range 8 {
		s.floodLooking(i, s.tenant(1_000_000), 0, 40_000)
		if n%4 == 3 {
			i = s.instance()
			i.census.Look(t.Context())
		}
	}
	require.Greater(t, s.inUse(), nearlyFull)
	require.Less(t, s.inUse(), 0.97)
	small := s.tenant(1_000_000)
	s.flood(i, small, 0, 60, aYear)
	i.census.Look(t.Context())
	s.flood(i, small, 60, 60, aYear)
	keys, lists := s.keysOf(small)
	require.Equal(t, 120, keys-lists)
}

// Between two looks, an instance gives a tenant a part of what is left of the memory, so that it
// does not fill Redis before its memory is read again.
func TestMemoryBetweenTwoLooks(t *testing.T) {
	s := smallStack(t, 16)
	i := s.instance()
	for s.inUse() < 0.6 {
		s.flood(i, s.tenant(1_000_000), 0, 10_000, aYear)
	}
	i.census.Look(t.Context())
	before := s.inUse()
	fresh, known := s.tenant(1_000_000), s.tenant(1_000_000)
	s.flood(i, known, 0, 1, aYear)
	i.census.Look(t.Context())
	s.flood(i, known, 1, 50_000, aYear)
	s.flood(i, fresh, 0, 50_000, aYear)
	require.Less(t, s.inUse(), before+2*(1-before)/4, "at most an eighth for each, spare counters, and buffers of connections")
}

// Without a maximum of memory, it bounds nobody.
func TestNoMaximumOfMemory(t *testing.T) {
	s := newCensusStack(t)
	i := s.instance()
	tenant := s.tenant(1000)
	s.flood(i, tenant, 0, 100, aYear)
	i.census.Look(t.Context())
	require.Zero(t, i.census.Memory())
	require.EqualValues(t, 775, i.census.Left(tenant))
}

const (
	shardEmpty = "# Memory\r\nused_memory:1000000\r\nmaxmemory:1000000000\r\n"
	shardFull  = "# Memory\r\nused_memory:900000000\r\nused_memory_startup:1000000\r\nmaxmemory:1000000000\r\n# Keyspace\r\ndb0:keys=4000000,expires=4000000\r\n"
)

// shardsOfMemory has two masters, of which one is nearly full. All lists say that a tenant has many
// counters.
func shardsOfMemory(t *testing.T, o redisengine.CensusOptions) (census *redisengine.Census, full *listShard) {
	full = &listShard{info: shardFull, alive: 100_000}
	client := twoShards(t, map[string]redis.Hook{"one:1": full, "two:1": &listShard{info: shardEmpty, alive: 100_000}})
	o.Client, o.Instances = client, func() int { return 1 }
	o.Bound = func(limit.TenantID) (int64, bool) { return 16_000_000, true }
	return redisengine.NewCensus(o), full
}

// A master that is nearly full bounds its own tenants only, and of a tenant with partitions on
// several masters what is on it. The operator's tenant has the quotas of all others, and is not
// bounded.
func TestMemoryOfShards(t *testing.T) {
	t.Parallel()
	const prefixOne, prefixTwo = "w{b}", "w{a}" // slots 3300 and 15495
	onOne, onTwo, both, operator := limit.TenantID(uuid.New()), limit.TenantID(uuid.New()), limit.TenantID(uuid.New()), limit.TenantID(uuid.New())
	census, full := shardsOfMemory(t, redisengine.CensusOptions{
		Operator: operator,
		Prefix: func(tenant limit.TenantID) string {
			if tenant == onTwo || tenant == both {
				return prefixTwo
			}
			return prefixOne
		},
		Places: func(tenant limit.TenantID) []string {
			if tenant == both {
				return []string{prefixTwo, prefixOne, prefixTwo, prefixTwo}
			}
			return nil
		},
	})
	all := []limit.TenantID{onOne, onTwo, both, operator}
	look := func(now time.Time) {
		for _, tenant := range all {
			census.Left(tenant)
		}
		census.LookAt(t.Context(), now)
	}
	now := time.Now()
	look(now) // finds the masters
	look(now.Add(time.Second))
	// 10 MB are left, so 7.3 × 10 MB / 224 bytes fit: 324 700 counters. The tenants have 100 000,
	// and a quarter of that, so nobody is bounded by the level. Each may create an eighth of the
	// rest.
	require.EqualValues(t, 5580, census.Left(onOne))
	require.EqualValues(t, 4*5580, census.Left(both))
	require.Greater(t, census.Left(onTwo), int64(1_000_000))
	require.Greater(t, census.Left(operator), int64(1_000_000))
	require.Equal(t, redisengine.MemoryUse{Used: 0.9, Full: true}, census.Memory())

	full.set(func(s *listShard) { s.info = strings.Replace(s.info, "used_memory:900", "used_memory:909", 1) })
	look(now.Add(2 * time.Second))
	// 1 MB is left, so 32 470 counters fit, and the level is half of that.
	require.LessOrEqual(t, census.Left(onOne), int64(0))
	require.LessOrEqual(t, census.Left(both), int64(0))
	require.Greater(t, census.Left(onTwo), int64(1_000_000))
	require.Greater(t, census.Left(operator), int64(1_000_000))
	require.EqualValues(t, 256, census.Spares(onOne), "many tenants may need them")
	require.EqualValues(t, 4096, census.Spares(onTwo))
	require.Equal(t, redisengine.MemoryUse{Used: 0.909, Full: true, Bounded: 2}, census.Memory())
}

// While a server does not tell its memory, what it said last is used: for some seconds, or until it
// answers if it was nearly full. What is created until then is no more than before.
func TestMemoryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	census, full := shardsOfMemory(t, redisengine.CensusOptions{Prefix: func(limit.TenantID) string { return "w{b}" }})
	tenant := limit.TenantID(uuid.New())
	now := time.Now()
	tell := func(info string, after time.Duration) (left int64) {
		full.set(func(s *listShard) { s.info = info })
		census.LookAt(t.Context(), now.Add(after))
		return census.Left(tenant)
	}
	census.Left(tenant)
	tell(shardFull, 0)
	require.EqualValues(t, 5580, tell(shardFull, time.Second))
	require.EqualValues(t, 2790, tell("", 2*time.Second))
	require.EqualValues(t, 1395, tell("", 9*time.Second))
	require.EqualValues(t, 697, tell("", time.Minute), "it was nearly full")
	require.True(t, census.Memory().Full)

	half := strings.Replace(shardFull, "used_memory:900", "used_memory:740", 1)
	less := tell(half, 2*time.Minute)
	require.Greater(t, less, int64(100_000))
	require.EqualValues(t, less/2, tell("", 2*time.Minute+time.Second))
	require.Greater(t, tell("", 2*time.Minute+12*time.Second), int64(1_000_000), "it was not")
}

// A server with much memory that does not answer bounds nobody, also if it has one of many places.
func TestEmptyMemoryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	places := make([]string, 64)
	for i := range places {
		places[i] = "w{a}"
	}
	places[0] = "w{b}"
	census, other := shardsOfMemory(t, redisengine.CensusOptions{
		Prefix: func(limit.TenantID) string { return "w{b}" },
		Places: func(limit.TenantID) []string { return places },
	})
	other.set(func(s *listShard) { s.info = shardEmpty })
	tenant, now := limit.TenantID(uuid.New()), time.Now()
	for n := range 6 {
		if n == 2 {
			other.set(func(s *listShard) { s.info = "" })
		}
		census.Left(tenant)
		census.LookAt(t.Context(), now.Add(time.Duration(n)*time.Second))
		require.Greater(t, census.Left(tenant), int64(1_000_000))
	}
}

// The first look at a tenant finds its servers, and bounds it by what is known of their memory.
func TestMemoryOfANewTenant(t *testing.T) {
	t.Parallel()
	census, _ := shardsOfMemory(t, redisengine.CensusOptions{Prefix: func(limit.TenantID) string { return "w{b}" }})
	known, fresh := limit.TenantID(uuid.New()), limit.TenantID(uuid.New())
	now := time.Now()
	census.Left(known)
	census.LookAt(t.Context(), now)
	census.LookAt(t.Context(), now.Add(time.Second))
	census.Left(fresh)
	census.LookAt(t.Context(), now.Add(2*time.Second))
	require.EqualValues(t, 5580, census.Left(fresh))
}

// All instances use the same number of shared counters, whatever they have read before: each number
// has counters of its own.
func TestSparesAreTheSameOnAllInstances(t *testing.T) {
	t.Parallel()
	o := redisengine.CensusOptions{Prefix: func(limit.TenantID) string { return "w{b}" }}
	old, ofOld := shardsOfMemory(t, o)
	fresh, ofFresh := shardsOfMemory(t, o)
	tenant, now := limit.TenantID(uuid.New()), time.Now()
	look := func(census *redisengine.Census, server *listShard, used string) {
		server.set(func(s *listShard) { s.info = strings.Replace(shardFull, "used_memory:900", "used_memory:"+used, 1) })
		for range 2 { // the first one finds the server
			census.Left(tenant)
			now = now.Add(time.Second)
			census.LookAt(t.Context(), now)
		}
	}
	look(old, ofOld, "810")
	for _, c := range []struct {
		used      string
		spares    int64
		full, was bool
	}{{"780", 256, false, true}, {"740", 4096, false, false}, {"760", 256, false, false}, {"810", 256, true, true}} {
		look(old, ofOld, c.used)
		look(fresh, ofFresh, c.used)
		require.EqualValues(t, c.spares, old.Spares(tenant), c.used)
		require.EqualValues(t, c.spares, fresh.Spares(tenant), c.used)
		require.Equal(t, c.was, old.Memory().Full, "the log has no line for each small change")
		require.Equal(t, c.full, fresh.Memory().Full)
	}
}

// What else needs the memory is told of that of the fullest master when it was read, and of how
// many masters there are, and not while the master does not answer: then it is unknown what was
// written since.
func TestMemoryIsTold(t *testing.T) {
	t.Parallel()
	var told [][3]int64
	census, full := shardsOfMemory(t, redisengine.CensusOptions{
		Prefix: func(tenant limit.TenantID) string {
			return map[bool]string{true: "w{a}", false: "w{b}"}[tenant[0] == 0]
		},
		Measured: func(used, most int64, servers int) { told = append(told, [3]int64{used, most, int64(servers)}) },
	})
	now := time.Now()
	for n := range 2 {
		census.Left(limit.TenantID{byte(n), 15: 1})
	}
	for n := range 3 {
		census.LookAt(t.Context(), now.Add(time.Duration(n)*time.Second))
	}
	require.Equal(t, [][3]int64{{0, 0, 0}, {900_000_000, 1_000_000_000, 2}, {900_000_000, 1_000_000_000, 2}}, told)
	full.set(func(s *listShard) { s.info = "" })
	census.LookAt(t.Context(), now.Add(3*time.Second))
	require.Len(t, told, 3)
}
