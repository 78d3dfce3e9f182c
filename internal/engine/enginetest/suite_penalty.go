package enginetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// A penalty denies a client that continues to send requests, for its duration and no longer.
func testPenalty(t *testing.T, eng engine.Engine) {
	n := five(limit.FixedWindow)
	n.WindowMS, n.PenaltyMS = 1_000, 10_000
	c := counter(Prefix()+"k", n)
	verdict := func(now, cost int64) limit.Verdict {
		t.Helper()
		return ask(t, eng, now, cost, c).Outcome.Verdicts[0]
	}
	penalized := limit.Verdict{
		Penalized: true, RetryAfterMS: 10_000, ResetMS: start + 10_100, NextMS: start + 10_100,
	}
	require.True(t, verdict(start, 3).Allowed)
	require.Equal(t, limit.Verdict{
		CostExceeds: true, Remaining: 2, RetryAfterMS: limit.NeverMS, ResetMS: start + 1_000, NextMS: start + 1_000,
	}, verdict(start, 6), "a cost above the quota starts no penalty")
	require.False(t, verdict(start, 0).Penalized, "cost 0 starts no penalty")
	dry := &engine.Call{NowMS: start + 100, Cost: 3, DryRun: true, Counters: []engine.Counter{c}}
	eng.Evaluate(context.Background(), dry)
	require.Equal(t, []limit.Verdict{penalized}, dry.Outcome.Verdicts, "a dry run reports it")
	require.True(t, verdict(start+100, 1).Allowed, "and starts no penalty")

	require.Equal(t, penalized, verdict(start+100, 3), "the denial that starts the penalty")
	for _, now := range []int64{start + 200, start + 1_500, start + 10_099} {
		penalized.RetryAfterMS = start + 10_100 - now
		require.Equal(t, penalized, verdict(now, 1), "even if units remain; not extended")
	}
	peek := verdict(start+5_000, 0)
	require.True(t, peek.Allowed)
	require.True(t, peek.Penalized)
	require.Zero(t, peek.Remaining)
	require.Zero(t, peek.RetryAfterMS)
	require.Equal(t, start+10_100, peek.ResetMS)
	over := verdict(start+5_000, 6)
	require.True(t, over.CostExceeds)
	require.True(t, over.Penalized)
	require.Equal(t, limit.NeverMS, over.RetryAfterMS)
	after := verdict(start+10_100, 1)
	require.True(t, after.Allowed, "the penalty is over")
	require.EqualValues(t, 4, after.Remaining, "denials during the penalty counted nothing")

	n.Algorithm, n.WindowMS, n.Burst, n.PenaltyMS = limit.TokenBucket, 60_000, 5, 10
	c = counter(Prefix()+"k", n)
	require.True(t, verdict(start, 1).Allowed)
	v := verdict(start, 5)
	require.True(t, v.Penalized)
	require.Equal(t, start+10, v.NextMS, "the wait is the end of the penalty")
}

// Each rule has its own penalties, also if it denies together with another rule, and in shadow
// mode.
func testPenaltyOfSeveral(t *testing.T, eng engine.Engine) {
	prefix := Prefix()
	short, long := five(limit.TokenBucket), five(limit.SlidingWindowCounter)
	short.PenaltyMS, long.PenaltyMS = 1_000, 600_000
	a, b := counter(prefix+"a", short), counter(prefix+"b", long)
	ask(t, eng, start, 5, a, b)
	call := ask(t, eng, start, 1, a, b)
	require.True(t, call.Outcome.Verdicts[0].Penalized)
	require.EqualValues(t, 12_000, call.Outcome.Verdicts[0].RetryAfterMS, "the rule's own wait is longer")
	require.EqualValues(t, 600_000, call.Outcome.Verdicts[1].RetryAfterMS)
	call = ask(t, eng, start+100_000, 1, a, b)
	require.False(t, call.Outcome.Allowed)
	require.True(t, call.Outcome.Verdicts[0].Allowed)
	require.EqualValues(t, 5, call.Outcome.Verdicts[0].Remaining, "denied by the other rule: not charged")
	require.True(t, call.Outcome.Verdicts[1].Penalized)

	shadow := counter(prefix+"s", long)
	shadow.Shadow = true
	ask(t, eng, start, 5, shadow)
	for range 2 {
		call = ask(t, eng, start, 1, shadow)
		require.True(t, call.Outcome.Allowed)
		require.False(t, call.Outcome.Verdicts[0].Allowed)
		require.True(t, call.Outcome.Verdicts[0].Penalized)
	}
}

// If a clock was an hour ahead, or if a penalty was reduced from an hour to a minute, no client is
// denied for longer than the current penalty.
func testPenaltyAndClock(t *testing.T, eng engine.Engine) {
	const hour, minute = 3_600_000, 60_000
	n := five(limit.TokenBucket)
	n.PenaltyMS = hour
	c := counter(Prefix()+"k", n)
	ask(t, eng, start, 5, c)
	ask(t, eng, start, 1, c)
	c.Numbers.PenaltyMS = minute
	now := start + 2*minute
	peek := ask(t, eng, now, 0, c).Outcome.Verdicts[0]
	require.Equal(t, now+minute, peek.ResetMS)
	require.EqualValues(t, minute, ask(t, eng, now, 1, c).Outcome.Verdicts[0].RetryAfterMS)
	require.EqualValues(t, minute-1, ask(t, eng, now+1, 1, c).Outcome.Verdicts[0].RetryAfterMS, "shortened once, permanently")
	require.True(t, ask(t, eng, now+minute, 1, c).Outcome.Allowed)
}
