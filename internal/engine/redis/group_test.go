package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/peers"
	"weir/internal/testenv"
)

// groupOf returns counters of all algorithms that a group can contain, with the same windows.
func groupOf(prefix string, lim int64) []engine.Counter {
	var counters []engine.Counter
	days, err := limit.NewCalendarWindows(limit.CalendarDay, nil)
	if err != nil {
		panic(err)
	}
	for i, n := range []limit.Numbers{
		{Algorithm: limit.SlidingWindowCounter, WindowMS: 60_000},
		{Algorithm: limit.FixedWindow, WindowMS: 10_000},
		{Algorithm: limit.FixedWindowFirstHit, WindowMS: 25_000},
		{Algorithm: limit.SlidingWindowCounter, WindowMS: 3_600_000},
		{Algorithm: limit.FixedWindow, Calendar: limit.CalendarDay, Bounds: days.Around(1_704_672_000_000)},
	} {
		n.Limit = lim * int64(i+1)
		counters = append(counters, engine.Counter{Key: prefix + "the-group", ID: fmt.Sprintf("%04d-rule", i), Grouped: true, Numbers: n})
	}
	return counters
}

func evaluate(t *testing.T, eng engine.Engine, now, cost int64, counters ...engine.Counter) engine.Outcome {
	t.Helper()
	call := &engine.Call{NowMS: now, Cost: cost, Counters: counters}
	eng.Evaluate(context.Background(), call)
	require.NoError(t, call.Err)
	return call.Outcome
}

// A customer under five rules gets the same answers from a group, which is mostly one sum, as from
// five counters. This holds as time passes, limits change, and rules join and leave, for any order
// of calls.
func TestGroupsCountExactly(t *testing.T) {
	server := testenv.StartRedis(t)
	client := clientOf(t, server.URL)
	eng := redisengine.New(client, redisOptions())
	for round := range 150 {
		r := rand.New(rand.NewPCG(9, uint64(round)))
		memory := engine.NewMemory(engine.MemoryOptions{})
		group := groupOf(enginetest.Prefix(), 2+r.Int64N(60))
		log := engine.Counter{Key: group[0].Key + "log", Numbers: numbersOf(limit.SlidingWindowLog, 100)}
		now := int64(1_704_672_000_000) + r.Int64N(100_000)
		for range 12 {
			now += r.Int64N(6_000) - 300
			if oneOf(r, 4) {
				group[r.IntN(len(group))].Numbers.Limit += r.Int64N(20)
			}
			some := group
			if oneOf(r, 3) { // a rule that is changed or off for a while
				some = append(append([]engine.Counter(nil), group[:2]...), group[3:]...)
			}
			calls := make([]*engine.Call, 1+r.IntN(20))
			for i := range calls {
				call := &engine.Call{NowMS: now, Cost: 1, DryRun: oneOf(r, 20), Counters: append([]engine.Counter(nil), some...)}
				if oneOf(r, 5) {
					call.Cost = r.Int64N(5)
				}
				switch c := &call.Counters[r.IntN(len(some))]; r.IntN(12) {
				case 0:
					c.Shadow = true
				case 1:
					c.Key, c.Grouped = c.OwnKey(), false
				case 2: // the other script decides
					call.Counters = append(call.Counters, log)
				}
				calls[i] = call
			}
			order := eng.EvaluateTogether(calls...)
			for i, c := range order {
				require.NoError(t, c.Err)
				same := *c
				same.Outcome = engine.Outcome{}
				memory.Evaluate(context.Background(), &same)
				require.Equal(t, same.Outcome, c.Outcome, "round %d, call %d: %+v", round, i, c)
			}
		}
	}
	require.Greater(t, commandCalls(t, client, "setrange"), int64(500), "calls that only added to the sum")
	require.Zero(t, eng.Repaired())
}

// A group must expire when nothing in it counts any more, and not before. A denied check changes
// nothing.
func TestGroupExpires(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	group := groupOf(enginetest.Prefix(), 3)[:4]
	last := evaluate(t, eng, 0, 1, group...)
	for range 2 {
		last = evaluate(t, eng, 0, 1, group...)
		ttl, err := client.PTTL(ctx, group[0].Key).Result()
		require.NoError(t, err)
		require.Greater(t, last.NowMS+ttl.Milliseconds(), last.Verdicts[3].ResetMS, "the longest window matters until then")
		require.LessOrEqual(t, ttl.Milliseconds(), int64(2*3_600_000+1_000))
	}
	require.True(t, last.Allowed)
	before, err := client.Dump(ctx, group[0].Key).Result()
	require.NoError(t, err)
	until, err := client.PExpireTime(ctx, group[0].Key).Result()
	require.NoError(t, err)
	for range 5 {
		require.False(t, evaluate(t, eng, 0, 1, group...).Allowed)
		require.True(t, evaluate(t, eng, 0, 0, group...).Allowed, "a peek")
	}
	after, err := client.Dump(ctx, group[0].Key).Result()
	require.NoError(t, err)
	require.Equal(t, before, after)
	now, err := client.PExpireTime(ctx, group[0].Key).Result()
	require.NoError(t, err)
	require.Equal(t, until, now)
}

// If a group's key has an invalid value, the customer is served as if it did not exist.
func TestGroupRepairsForeignValues(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	const now = int64(1_704_672_000_123)
	for name, spoil := range map[string]func(good string) string{
		"empty": func(string) string { return "" }, "text": func(string) string { return "not a group" }, "digits": func(string) string { return "12" },
		"ones":    func(good string) string { return strings.Repeat("\xff", len(good)) },
		"short":   func(good string) string { return good[:len(good)-1] },
		"version": func(good string) string { return "\xf0" + good[1:] },
		"members": func(good string) string { return good[:1] + "\xff" + good[2:] },
		"future": func(good string) string {
			return good[:10] + strings.Repeat("\xff", 12) + good[22:36] + strings.Repeat("\xff\xff\xff\xff\xff\xff\x01"+strings.Repeat("\x00", 10), 5) + good[36+5*17:]
		},
	} {
		eng := redisengine.New(client, redisOptions())
		group := groupOf(enginetest.Prefix(), 30)
		want := evaluate(t, eng, now, 2, group...)
		good, err := client.Get(ctx, group[0].Key).Result()
		require.NoError(t, err)
		require.NoError(t, client.Set(ctx, group[0].Key, spoil(good), 0).Err())
		require.Equal(t, want, evaluate(t, eng, now, 2, group...), name)
		require.EqualValues(t, 1, eng.Repaired(), name)
		value, err := client.Get(ctx, group[0].Key).Result()
		require.NoError(t, err)
		require.Equal(t, good, value, name)
		ttl, err := client.PTTL(ctx, group[0].Key).Result()
		require.NoError(t, err)
		require.Positive(t, ttl)
	}
	eng := redisengine.New(client, redisOptions())
	group := groupOf(enginetest.Prefix(), 30)
	require.NoError(t, client.RPush(ctx, group[0].Key, "a").Err())
	for i := range int64(3) {
		require.Equal(t, 29-i, evaluate(t, eng, now, 1, group...).Verdicts[0].Remaining)
	}
}

// If support resets one limit of a customer, the other limits keep their counts.
func TestGroupMemberIsReset(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	const now = int64(1_704_672_000_123)
	group := groupOf(enginetest.Prefix(), 10)
	for range 4 {
		evaluate(t, eng, now, 1, group...)
	}
	remaining := func() (left []int64) {
		for _, v := range evaluate(t, eng, now, 0, group...).Verdicts {
			left = append(left, v.Remaining)
		}
		return left
	}
	require.Equal(t, []int64{6, 16, 26, 36, 46}, remaining())
	require.NoError(t, eng.Reset(ctx, group[1]))
	require.Equal(t, []int64{6, 20, 26, 36, 46}, remaining())
	ttl, err := client.PTTL(ctx, group[0].Key).Result()
	require.NoError(t, err)
	require.Positive(t, ttl)
	evaluate(t, eng, now, 1, group...)
	require.Equal(t, []int64{5, 19, 25, 35, 45}, remaining())
	own := group[2]
	own.Key, own.Grouped = own.OwnKey(), false
	require.NoError(t, eng.Reset(ctx, own), "named by its own key")
	require.Equal(t, []int64{5, 19, 30, 35, 45}, remaining())
	require.NoError(t, eng.Reset(ctx, group...))
	require.Equal(t, []int64{10, 20, 30, 40, 50}, remaining())
	require.Empty(t, allKeys(t, client, group[0].Key))
}

// Ten rules of a customer are one small value.
func TestGroupIsSmall(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	five := groupOf("w{zz}", 1000)
	evaluate(t, eng, 1_704_672_000_123, 1, five...)
	defer client.Del(ctx, five[0].Key)
	size, err := client.StrLen(ctx, five[0].Key).Result()
	require.NoError(t, err)
	require.EqualValues(t, 36+5*29, size)
}

// An admin adds a second limit, gives it a penalty, and deletes it again. The first limit keeps
// counting all the time, and so does the second when it is created again unchanged.
func TestRulesJoinAndLeaveGroups(t *testing.T) {
	keys, tenant := check.NewKeys([16]byte{7}), uuid.New()
	registry := prometheus.NewRegistry()
	stack := engine.NewStack(engine.StackOptions{
		Shared: redisengine.New(redisClient(t), redisOptions()), Local: engine.NewMemory(engine.MemoryOptions{}),
		Share: peers.New(1, nil, registry).Share, Metrics: engine.NewMetrics(registry),
	})
	defer stack.Close()
	checker := check.NewChecker(check.CheckerOptions{Keys: keys, Engine: stack, Metrics: check.NewMetrics(registry)})
	rule := func(slug string, lim int64) limit.Rule {
		return limit.Rule{
			Slug: slug, Resource: "*", Algorithm: limit.FixedWindowFirstHit, Limit: lim, By: []string{"subject"},
			Window: limit.Window{Duration: limit.Duration{MS: 30 * 86_400_000}}, Mode: limit.Enforce,
		}
	}
	left := func(rules ...limit.Rule) (left []int64) {
		policy, err := check.CompilePolicy(keys, tenant, check.PolicyData{Rules: rules})
		require.NoError(t, err)
		for range 3 {
			left = left[:0]
			decisions, err := checker.Check(context.Background(), policy, []check.Request{{Subject: "ada", Resource: "r", Cost: 1}})
			require.NoError(t, err)
			require.True(t, decisions[0].Allowed)
			require.False(t, decisions[0].Degraded)
			for i := range decisions[0].Rules {
				left = append(left, decisions[0].Rules[i].Remaining)
			}
		}
		limits := checker.Inspect(context.Background(), policy, check.Request{Subject: "ada"})
		for i := range limits.Rules {
			require.Equal(t, left[i], limits.Rules[i].Remaining)
		}
		return left
	}
	a, b, c := rule("a", 100), rule("b", 200), rule("c", 300)
	require.Equal(t, []int64{97}, left(a))
	require.Equal(t, []int64{94, 197}, left(a, b), "two counters are a group")
	require.Equal(t, []int64{91, 194, 297}, left(a, b, c))
	b.Penalty.MS = 1000
	require.Equal(t, []int64{88, 191, 294}, left(a, b, c), "another script, without a group")
	b.Penalty.MS = 0
	require.Equal(t, []int64{188, 291}, left(b, c), "a is deleted")
	a.Resource = "r"
	require.Equal(t, []int64{85, 185, 288}, left(a, b, c), "a is created again, for one resource")
	require.Equal(t, []int64{82}, left(a))
	require.Equal(t, []int64{285}, left(c))
	a.Resource = "*"
	require.Equal(t, []int64{79, 182, 282}, left(a, b, c))
	b.Limit = 1000
	require.Equal(t, []int64{76, 979, 279}, left(a, b, c), "a new limit takes effect immediately")
}
