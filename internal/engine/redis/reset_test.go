package redis_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// sentBytes is a hook that adds up the lengths of the arguments of all commands.
type sentBytes struct{ n int }

func (h *sentBytes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *sentBytes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.add(cmd)
		return next(ctx, cmd)
	}
}

func (h *sentBytes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.add(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h *sentBytes) add(cmd redis.Cmder) {
	for _, arg := range cmd.Args() {
		h.n += len(fmt.Sprint(arg))
	}
}

// A reset names the script by its hash, and sends its text once if Redis does not know it. Before,
// each of 1000 counters sent 6 KB.
func TestResetSendsItsScriptOnce(t *testing.T) {
	client := clientOf(t, testenv.StartRedis(t).URL)
	eng := redisengine.New(client, redisOptions())
	sent := &sentBytes{}
	client.AddHook(sent)
	var counters []engine.Counter
	for i := range 100 {
		n := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 10, WindowMS: 60_000}
		counters = append(counters, engine.Counter{Key: fmt.Sprintf("%s%08d", enginetest.Prefix(), i), ID: fmt.Sprintf("i%08d", i), Numbers: n})
	}
	charge := func() {
		for i := range counters {
			call := &engine.Call{NowMS: 1_704_672_000_123, Cost: 4, Counters: counters[i : i+1]}
			eng.Evaluate(t.Context(), call)
			require.NoError(t, call.Err)
			require.EqualValues(t, 6, call.Outcome.Verdicts[0].Remaining, "it was reset")
		}
	}
	for range 2 { // the server does not know the script, and then it does
		charge()
		sent.n = 0
		require.NoError(t, eng.Reset(t.Context(), counters...))
		require.Less(t, sent.n, 50_000)
	}
	charge()
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	loads := eng.ScriptLoads()
	sent.n = 0
	require.NoError(t, eng.Reset(t.Context(), counters...))
	require.Less(t, sent.n, 50_000)
	require.Equal(t, loads+1, eng.ScriptLoads())
	charge()
}
