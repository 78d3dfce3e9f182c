package redis_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

// amendRuns is a hook that counts the runs of a script, and answers one of them with an error after
// the server has executed it.
type amendRuns struct{ runs, lose int }

func (h *amendRuns) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *amendRuns) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *amendRuns) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if name := cmd.Name(); err != nil || name != "evalsha" && name != "eval" {
			return err
		}
		if h.runs++; h.runs == h.lose {
			err = errors.New("the answer was lost")
			cmd.SetErr(err)
		}
		return err
	}
}

// fullLogs returns the counters of full logs with the greatest limit, one unit each millisecond,
// and the instant of the last one.
func fullLogs(t *testing.T, client redis.UniversalClient, prefix string, count int) (counters []engine.Counter, at int64) {
	t.Helper()
	const begin = 1_704_672_000_000
	n := limit.Numbers{Algorithm: limit.SlidingWindowLog, Limit: limit.MaxLogLimit, WindowMS: 86_400_000}
	log := []byte{18, 0, 0, 0, 0, 0, 0}
	for i := range limit.MaxLogLimit {
		log = appendLittle(appendLittle(log, begin+i), i+1)
	}
	for i := range count {
		c := engine.Counter{Key: fmt.Sprintf("%slog-%05d", prefix, i), Numbers: n}
		require.NoError(t, client.Set(t.Context(), c.Key, log, 0).Err())
		counters = append(counters, c)
	}
	return counters, begin + limit.MaxLogLimit - 1
}

// appendLittle appends a number in 6 bytes.
func appendLittle(b []byte, v int64) []byte {
	for range 6 {
		b, v = append(b, byte(v)), v>>8
	}
	return b
}

// callsInScripts returns how many commands of a name the server has executed.
func callsInScripts(t *testing.T, client redis.UniversalClient, command string) int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(info)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// A new plan scales all counters of a subject. Redis serves nobody else during a run, so a tenant
// with many full logs must not make it one long run: each log is read at once, and has a run of its
// own.
func TestRedisAmendsLongLogsOneByOne(t *testing.T) {
	const count = 12
	client := redisClient(t)
	runs := &amendRuns{}
	client.AddHook(runs)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	counters, at := fullLogs(t, client, prefix, count)
	a := &engine.Amendment{Once: prefix + "amendment", Done: prefix + "newest", Number: 7, NowMS: at}
	for _, c := range counters {
		to := c.Numbers
		to.Limit = 5_000
		a.Parts = append(a.Parts, engine.AmendPart{Counter: c, To: to})
	}
	short := engine.Amendment{Once: prefix + "of-a-low-limit", NowMS: at} // which fell: the entries stay
	for i := range a.Parts {
		part := a.Parts[i]
		part.Numbers.Limit, part.To.Limit = 10, 10
		short.Parts = append(short.Parts, part)
	}
	require.Len(t, short.Steps(), count)
	before := callsInScripts(t, client, "getrange")
	require.NoError(t, eng.Amend(t.Context(), a))
	require.Less(t, int64(callsInScripts(t, client, "getrange")-before), count*limit.MaxLogLimit/4, "commands: not one for each entry")
	require.GreaterOrEqual(t, runs.runs, count, "runs of the script")
	requireHalved(t, eng, a, at)
	require.InDelta(t, count*4_000, a.WorkUS, count*1_000, "about 4 ms for each")
	require.NoError(t, eng.Amend(t.Context(), a))
	require.True(t, a.Before)
	require.Zero(t, a.WorkUS)
}

// requireHalved requires that all logs of an amendment hold half of their units.
func requireHalved(t *testing.T, eng engine.Engine, a *engine.Amendment, at int64) {
	t.Helper()
	for i := range a.Parts {
		c := a.Parts[i].Counter
		call := &engine.Call{NowMS: at, Counters: []engine.Counter{c}}
		eng.Evaluate(t.Context(), call)
		require.NoError(t, call.Err)
		require.EqualValues(t, 5_000, call.Outcome.Verdicts[0].Remaining, "%s: 10000 of 10000 are 5000 of 5000", c.Key)
	}
}

// An amendment of several runs that is repeated after a failure changes each counter once, also if
// the list of rules has changed meanwhile. After the last run it changes nothing.
func TestRedisAmendsEachCounterOnce(t *testing.T) {
	client := redisClient(t)
	runs := &amendRuns{lose: 3}
	client.AddHook(runs)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	counters, at := fullLogs(t, client, prefix, 5)
	a := &engine.Amendment{Once: prefix + "amendment", Done: prefix + "newest", Number: 7, NowMS: at}
	for _, c := range counters {
		to := c.Numbers
		to.Limit = 5_000
		a.Parts = append(a.Parts, engine.AmendPart{Counter: c, To: to})
	}
	require.Error(t, eng.Amend(t.Context(), a))
	again := *a
	again.Parts = []engine.AmendPart{a.Parts[4], a.Parts[2], a.Parts[0], a.Parts[3], a.Parts[1]}
	require.NoError(t, eng.Amend(t.Context(), &again))
	requireHalved(t, eng, a, at)
	require.NoError(t, eng.Amend(t.Context(), a))
	requireHalved(t, eng, a, at)
	mark, err := client.Get(t.Context(), a.Once).Result()
	require.NoError(t, err)
	require.Equal(t, "1", mark)
}

// The number of the newest amendment lives for days after the last time that it was repeated, and
// no longer. It is one key for all amendments of a tenant: one that changes very many plans must
// not fill Redis with marks. An earlier amendment that comes again, late, changes nothing.
func TestRedisForgetsAmendments(t *testing.T) {
	client := redisClient(t)
	eng := redisengine.New(client, redisOptions())
	prefix := enginetest.Prefix()
	n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 100, WindowMS: 3_600_000}
	c := engine.Counter{Key: prefix + "counter", Numbers: n}
	charge := &engine.Call{Cost: 40, Counters: []engine.Counter{c}}
	eng.Evaluate(t.Context(), charge)
	require.NoError(t, charge.Err)
	to := n
	to.Limit = 10
	amendment := func(number int64) *engine.Amendment {
		once := fmt.Sprint(prefix, "amendment-", number)
		return &engine.Amendment{Once: once, Done: prefix + "newest", Number: number, Parts: []engine.AmendPart{{Counter: c, To: to}}}
	}
	life := func(key string) time.Duration {
		ttl, err := client.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		return ttl
	}
	a := amendment(8)
	require.NoError(t, eng.Amend(t.Context(), a))
	require.False(t, a.Before)
	require.InDelta(t, 50, a.WorkUS, 50, "an ordinary one is short")
	require.Greater(t, life(a.Done), 2*24*time.Hour, "Postgres may be unavailable over a weekend")
	require.LessOrEqual(t, life(a.Done), 3*24*time.Hour)
	require.LessOrEqual(t, life(a.Once), time.Minute, "the mark is for servers of earlier versions")
	require.NoError(t, client.Del(t.Context(), a.Once).Err())
	require.NoError(t, client.PExpire(t.Context(), a.Done, time.Hour).Err())
	for _, number := range []int64{8, 7} {
		again := amendment(number)
		require.NoError(t, eng.Amend(t.Context(), again))
		require.True(t, again.Before)
		require.Zero(t, client.Exists(t.Context(), again.Once).Val())
	}
	require.Greater(t, life(a.Done), 2*24*time.Hour, "it is still repeated")
	c.Numbers = to
	peek := &engine.Call{Counters: []engine.Counter{c}}
	eng.Evaluate(t.Context(), peek)
	require.NoError(t, peek.Err)
	require.EqualValues(t, 6, peek.Outcome.Verdicts[0].Remaining, "once")
}
