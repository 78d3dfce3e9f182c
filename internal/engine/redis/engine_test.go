package redis_test

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

func redisClient(tb testing.TB) redis.UniversalClient {
	return clientOf(tb, testenv.RedisURL(tb))
}

func clientOf(tb testing.TB, url string, opts ...redisengine.ClientOption) redis.UniversalClient {
	client, err := redisengine.NewClient(url, append([]redisengine.ClientOption{redisengine.WithTimeout(patience)}, opts...)...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, client.Close()) })
	return client
}

const patience = testenv.RedisTimeout

// redisOptions returns options for tests that are not about time. A busy machine may take longer
// than a service would wait.
func redisOptions() redisengine.Options { return redisengine.Options{Deadline: patience} }

func TestRedisEngine(t *testing.T) {
	enginetest.Suite(t, redisengine.New(redisClient(t), redisOptions()))
}

// numbersOf returns the numbers of an algorithm, with a limit per minute and a penalty.
func numbersOf(a limit.Algorithm, lim int64) limit.Numbers {
	n := limit.Numbers{Algorithm: a, Limit: lim, WindowMS: 60_000, PenaltyMS: 30_000}
	if a.Bucket() {
		n.Burst = lim
	}
	if a == limit.SlidingWindowBuckets {
		n.PrecisionMS = 1_000
	}
	return n
}

func allKeys(t *testing.T, client redis.UniversalClient, prefix string) []string {
	var keys []string
	scan := client.Scan(context.Background(), 0, prefix+"*", 1000).Iterator()
	for scan.Next(context.Background()) {
		keys = append(keys, scan.Val())
	}
	require.NoError(t, scan.Err())
	return keys
}

// A counter without an expiry that nobody charges again would block its customer forever.
func TestRedisKeysExpire(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	latest := map[string]int64{} // after this time, the state of a key no longer matters
	for _, a := range limit.Algorithms {
		key := prefix + a.String()
		for range 40 {
			call := &engine.Call{Cost: 1, Counters: []engine.Counter{{Key: key, Numbers: numbersOf(a, 30)}}}
			eng.Evaluate(ctx, call)
			require.NoError(t, call.Err)
			v := call.Outcome.Verdicts[0]
			latest[key] = max(latest[key], v.ResetMS-call.Outcome.NowMS)
			if a == limit.SlidingWindowCounter {
				latest[key] = 120_000 // two windows, whatever the count
			}
			latest[key+":p"] = 30_000
		}
	}
	keys := allKeys(t, client, prefix)
	require.Len(t, keys, 2*len(limit.Algorithms), "a counter and a penalty mark each")
	for _, key := range keys {
		ttl, err := client.PTTL(ctx, key).Result()
		require.NoError(t, err)
		require.Positive(t, ttl, key)
		require.LessOrEqual(t, ttl.Milliseconds(), latest[key]+1_000, key)
	}

	// A log that lost its expiry gets one again, also from a denial.
	log := prefix + limit.SlidingWindowLog.String()
	require.NoError(t, client.Persist(ctx, log).Err())
	eng.Evaluate(ctx, &engine.Call{Cost: 1, Counters: []engine.Counter{{Key: log, Numbers: numbersOf(limit.SlidingWindowLog, 30)}}})
	ttl, err := client.PTTL(ctx, log).Result()
	require.NoError(t, err)
	require.Positive(t, ttl)
}

// Denied clients that continue to send requests must not extend their wait, nor use up anything.
func TestRedisDenialWritesNothing(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	now := int64(1_704_672_000_123)
	var full []engine.Counter
	for _, a := range limit.Algorithms {
		full = append(full, engine.Counter{Key: prefix + a.String(), Numbers: numbersOf(a, 30)})
	}
	ask := func(at, cost int64, counters ...engine.Counter) engine.Outcome {
		call := &engine.Call{NowMS: at, Cost: cost, Counters: counters}
		eng.Evaluate(ctx, call)
		require.NoError(t, call.Err)
		return call.Outcome
	}
	for i := range int64(30) {
		require.True(t, ask(now+i, 1, full...).Allowed)
	}
	for _, c := range full { // the penalty marks
		require.False(t, ask(now+30, 1, c).Allowed)
	}
	dump := func() map[string]string {
		dumps := map[string]string{}
		for _, key := range allKeys(t, client, prefix) {
			value, err := client.Dump(ctx, key).Result()
			require.NoError(t, err)
			at, err := client.PExpireTime(ctx, key).Result()
			require.NoError(t, err)
			dumps[key] = fmt.Sprintf("%x until %d", value, at.Milliseconds())
		}
		return dumps
	}
	before := dump()
	require.Len(t, before, 2*len(limit.Algorithms))
	fresh := engine.Counter{Key: prefix + "fresh", Numbers: numbersOf(limit.TokenBucket, 30)}
	r := rand.New(rand.NewPCG(1, 1))
	for range 1_000 {
		c := full[r.IntN(len(full))]
		at := now + 31 + r.Int64N(20_000)
		require.False(t, ask(at, 1+r.Int64N(40), c, fresh).Allowed)
		require.True(t, ask(at, 0, c, fresh).Allowed, "a peek")
	}
	require.Equal(t, before, dump())
}

// If a counter's key has an invalid value, the customer is served as if it did not exist. This
// holds for rules with and without a penalty, which different scripts decide.
func TestRedisRepairsForeignValues(t *testing.T) {
	for _, penaltyMS := range []int64{30_000, 0} {
		testRepairs(t, penaltyMS)
	}
}

func testRepairs(t *testing.T, penaltyMS int64) {
	ctx := context.Background()
	client := redisClient(t)
	const now = int64(1_704_672_000_123)
	for _, a := range limit.Algorithms {
		eng := redisengine.New(client, redisOptions())
		prefix := enginetest.Prefix()
		n := numbersOf(a, 30)
		n.PenaltyMS = penaltyMS
		ask := func(key string, cost int64) engine.Outcome {
			call := &engine.Call{NowMS: now, Cost: cost, Counters: []engine.Counter{{Key: key, Numbers: n}}}
			eng.Evaluate(ctx, call)
			require.NoError(t, call.Err, "%s %s", a, key)
			return call.Outcome
		}
		want := ask(prefix+"fresh", 2)
		good, err := client.Get(ctx, prefix+"fresh").Result()
		require.NoError(t, err)

		foreign := map[string]string{
			"empty": "", "text": "not a counter", "digits": "12", "ones": strings.Repeat("\xff", len(good)),
			"zeros": strings.Repeat("\x00", len(good)), "short": good[:len(good)-1], "long": good + "x",
			"other version": "\xf0" + good[1:], "huge": strings.Repeat("\x11\x22", 100_000),
			// valid, except that the instant or number after the first byte is far in the future
			"future": good[:1] + "\xff\xff\xff\xff\xff" + good[6:],
		}
		if a == limit.SlidingWindowLog {
			foreign["future"] = good[:7] + "\xff\xff\xff\xff\xff\xff" + good[13:]
		}
		for name, value := range foreign {
			require.NoError(t, client.Set(ctx, prefix+name, value, 0).Err())
		}
		require.NoError(t, client.RPush(ctx, prefix+"list", "a").Err())
		require.NoError(t, client.HSet(ctx, prefix+"hash", "a", "b").Err())
		foreign["list"], foreign["hash"] = "", ""
		repairs := int64(0)
		for name := range foreign {
			key := prefix + name
			require.Equal(t, want, ask(key, 2), "%s, %s", a, name)
			switch {
			case name == "empty" && a == limit.SlidingWindowLog: // GETRANGE cannot distinguish it from a missing key
			case (name == "list" || name == "hash") && penaltyMS == 0 && a != limit.SlidingWindowLog && a != limit.SlidingWindowBuckets: // neither can MGET
			default:
				repairs++
			}
			require.Equal(t, repairs, eng.Repaired(), "%s, %s", a, name)
			value, err := client.Get(ctx, key).Result()
			require.NoError(t, err)
			require.Equal(t, good, value, "%s, %s", a, name)
			ttl, err := client.PTTL(ctx, key).Result()
			require.NoError(t, err)
			require.Positive(t, ttl)
		}
		if penaltyMS == 0 {
			continue
		}
		for name, set := range map[string]func(key string) error{
			"list": func(key string) error { return client.RPush(ctx, key, "a").Err() },
			"text": func(key string) error { return client.Set(ctx, key, "for ever", 0).Err() },
		} {
			key := prefix + "mark" + name
			require.NoError(t, set(key+":p"))
			require.Equal(t, want, ask(key, 2), name)
			require.True(t, ask(key, 29).Verdicts[0].Penalized)
			require.GreaterOrEqual(t, ask(key, 1).Verdicts[0].RetryAfterMS, int64(30_000), "the mark was written again")
		}
		for _, key := range allKeys(t, client, prefix) {
			require.NoError(t, client.Del(ctx, key).Err())
		}
	}
}

// A check does not read all of a full log, but must still find each entry.
func TestRedisLongLog(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	memory := engine.NewMemory(engine.MemoryOptions{})
	key := enginetest.Prefix() + "log"
	n := limit.Numbers{Algorithm: limit.SlidingWindowLog, Limit: 2_000, WindowMS: 10_000}
	r := rand.New(rand.NewPCG(1, 2))
	now, longest := int64(1_704_672_000_123), int64(0)
	for range 100 {
		calls := make([]*engine.Call, 100)
		same := make([]*engine.Call, 100)
		n.Limit = 500 + r.Int64N(2_000)
		step := r.Int64N(30)
		for i := range calls {
			now += r.Int64N(step + 1)
			call := engine.Call{NowMS: now - r.Int64N(3), Cost: r.Int64N(4), Counters: []engine.Counter{{Key: key, Numbers: n}}}
			if i%7 == 0 {
				call.Cost = 1 + r.Int64N(n.Limit)
			}
			other := call
			calls[i], same[i] = &call, &other
		}
		eng.Evaluate(ctx, calls...)
		memory.Evaluate(ctx, same...)
		for i := range calls {
			require.NoError(t, calls[i].Err)
			require.Equal(t, same[i].Outcome, calls[i].Outcome)
		}
		size, err := client.StrLen(ctx, key).Result()
		require.NoError(t, err)
		longest = max(longest, size)
	}
	require.Greater(t, longest, int64(12*300), "more than one read returns")
	require.Less(t, longest, int64(2*12*2_500+7), "expired entries are dropped")
}

// The memory for a million subjects is limited by the bytes of each value in Redis.
func TestRedisValuesAreSmall(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	for a, most := range map[limit.Algorithm]int64{
		limit.SlidingWindowCounter: 16, limit.FixedWindow: 14, limit.FixedWindowFirstHit: 14, limit.TokenBucket: 15,
		limit.LeakyBucket: 15, limit.LeakyBucketQueue: 15, limit.SlidingWindowBuckets: 7 + 5*2, limit.SlidingWindowLog: 7 + 12*2,
	} {
		key := prefix + a.String()
		for i := range int64(10) {
			call := &engine.Call{
				NowMS: 1_704_672_000_123 + i/5*1_000, Cost: 1_000,
				Counters: []engine.Counter{{Key: key, Numbers: numbersOf(a, 10_000)}},
			}
			eng.Evaluate(ctx, call)
			require.NoError(t, call.Err)
			require.True(t, call.Outcome.Allowed)
		}
		size, err := client.StrLen(ctx, key).Result()
		require.NoError(t, err)
		require.Equal(t, most, size, a)
	}

	// A whole number takes no memory in addition to its object. The entry in the table of keys, the
	// 14 bytes of the key and the object are 56 bytes.
	counter := engine.Counter{Key: "w{" + cryptorand.Text()[:2] + "}" + cryptorand.Text()[:9], Numbers: numbersOf(limit.SlidingWindowCounter, 10_000)}
	defer client.Del(ctx, counter.Key)
	for _, cost := range []int64{10_000, 1, 1} {
		eng.Evaluate(ctx, &engine.Call{NowMS: 1_704_672_000_123, Cost: cost, Counters: []engine.Counter{counter}})
	}
	used, err := client.MemoryUsage(ctx, counter.Key).Result()
	require.NoError(t, err)
	require.LessOrEqual(t, used, int64(56))
}

// A counter is incremented in place. It must keep its expiry, also if another script created it,
// and a number in another notation must not fail the checks that share its run.
func TestRedisAddsInPlace(t *testing.T) {
	ctx := context.Background()
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	n := numbersOf(limit.SlidingWindowCounter, 100)
	ask := func(key string, penaltyMS int64) engine.Outcome {
		n.PenaltyMS = penaltyMS
		call := &engine.Call{Cost: 1, Counters: []engine.Counter{{Key: key, Numbers: n}}}
		eng.Evaluate(ctx, call)
		require.NoError(t, call.Err)
		return call.Outcome
	}
	for name, first := range map[string]int64{"hot": 0, "main": 30_000} {
		key := prefix + name
		began := ask(key, first).NowMS / 60_000 * 60_000
		for range 10 {
			last := ask(key, 0)
			ttl, err := client.PTTL(ctx, key).Result()
			require.NoError(t, err)
			require.Greater(t, last.NowMS+ttl.Milliseconds(), last.Verdicts[0].ResetMS, "the state matters until then")
			require.LessOrEqual(t, last.NowMS+ttl.Milliseconds(), began+60_000+120_000+1_000)
		}
	}
	key := prefix + "hot"
	value, err := client.Get(ctx, key).Result()
	require.NoError(t, err)
	require.NoError(t, client.Set(ctx, key, " "+value, 0).Err())
	require.GreaterOrEqual(t, ask(key, 0).Verdicts[0].Remaining, int64(100-12))
	ttl, err := client.PTTL(ctx, key).Result()
	require.NoError(t, err)
	require.Positive(t, ttl)
}

// Counts that are too large for one whole number are exact, too.
func TestRedisGreatCounts(t *testing.T) {
	ctx := context.Background()
	eng, memory := redisengine.New(redisClient(t), redisOptions()), engine.NewMemory(engine.MemoryOptions{})
	n := limit.Numbers{Algorithm: limit.SlidingWindowCounter, Limit: limit.MaxLimit}
	for _, n.WindowMS = range []int64{limit.MinWindowMS, 60_000, limit.MaxWindowMS} {
		for _, cost := range []int64{1, 1000, 1430, 1431, 1432, 11_084, 11_085, 11_086, 5_000_000, limit.MaxLimit - 1, limit.MaxLimit} {
			key := enginetest.Prefix() + "k"
			for i := range int64(4) {
				call := engine.Call{NowMS: 1_704_672_000_123 + i*(n.WindowMS-1), Cost: cost, Counters: []engine.Counter{{Key: key, Numbers: n}}}
				same := call
				eng.Evaluate(ctx, &call)
				memory.Evaluate(ctx, &same)
				require.NoError(t, call.Err)
				require.Equal(t, same.Outcome, call.Outcome, "window %d, cost %d", n.WindowMS, cost)
			}
		}
	}
}

// Redis forgets its scripts when it restarts and on SCRIPT FLUSH. No check may fail because of
// this.
func TestRedisForgetsScripts(t *testing.T) {
	ctx := context.Background()
	server := testenv.StartRedis(t)
	client := clientOf(t, server.URL)
	eng := redisengine.New(client, redisOptions())
	counter := engine.Counter{Key: enginetest.Prefix() + "k", Numbers: numbersOf(limit.TokenBucket, 100)}
	remaining := int64(100)
	for i := range int64(5) {
		calls := make([]*engine.Call, 4)
		for j := range calls {
			calls[j] = &engine.Call{NowMS: 1_704_672_000_123, Cost: 1, Counters: []engine.Counter{counter}}
		}
		eng.Evaluate(ctx, calls...)
		for _, call := range calls {
			require.NoError(t, call.Err)
			remaining--
			require.Equal(t, remaining, call.Outcome.Verdicts[0].Remaining, "each counted once, in order")
		}
		require.GreaterOrEqual(t, eng.ScriptLoads(), i+1)
		require.NoError(t, client.ScriptFlush(ctx).Err())
	}
}

// While Redis hangs, a check is soon answered without it. When Redis continues, nothing that was
// given up is counted a second time.
func TestRedisHangs(t *testing.T) {
	ctx := context.Background()
	for _, own := range []redisengine.Options{{}, {Pipelines: 1024, MaxBatch: 1}} {
		server := testenv.StartRedis(t)
		client := clientOf(t, server.URL)
		eng := redisengine.New(client, own)
		patient := redisengine.New(client, redisOptions())
		counter := engine.Counter{Key: enginetest.Prefix() + "k", Numbers: numbersOf(limit.FixedWindow, 1_000)}
		ask := func(eng engine.Engine, cost int64) *engine.Call {
			call := &engine.Call{NowMS: 1_704_672_000_123, Cost: cost, Counters: []engine.Counter{counter}}
			eng.Evaluate(ctx, call)
			return call
		}
		require.NoError(t, ask(patient, 1).Err)
		server.Pause()
		done := make(chan *engine.Call)
		const asking = 200
		for range asking {
			go func() { done <- ask(eng, 1) }()
		}
		for range asking {
			require.Error(t, (<-done).Err)
		}
		// The server is still paused: nobody waited for it.
		server.Resume()
		peek := ask(patient, 0)
		require.NoError(t, peek.Err)
		require.GreaterOrEqual(t, peek.Outcome.Verdicts[0].Remaining, int64(1_000-1-asking), "each at most once")
		call := ask(patient, 1)
		require.NoError(t, call.Err, "and the next call succeeds")
		require.GreaterOrEqual(t, call.Outcome.Verdicts[0].Remaining, int64(1_000-2-asking))
		server.Kill()
		require.Error(t, ask(eng, 1).Err)
		require.Error(t, eng.Reset(ctx, counter))
	}
}

// A caller that disconnects does not wait, and does not affect the calls that share its pipeline.
func TestRedisCallerDisconnects(t *testing.T) {
	eng := redisengine.New(redisClient(t), redisOptions())
	gone, leave := context.WithCancel(context.Background())
	leave()
	call := &engine.Call{Cost: 1, Counters: []engine.Counter{{Key: enginetest.Prefix() + "k", Numbers: numbersOf(limit.FixedWindow, 5)}}}
	eng.Evaluate(gone, call)
	require.ErrorIs(t, call.Err, context.Canceled)
	eng.Evaluate(context.Background(), call)
	require.NoError(t, call.Err)
	require.EqualValues(t, 4, call.Outcome.Verdicts[0].Remaining)
}
