package enginetest

import (
	"context"
	"crypto/rand"
	"embed"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

//go:embed testdata/conformance
var vectors embed.FS

// Vectors returns the test vectors of the project.
func Vectors() fs.FS {
	files, err := fs.Sub(vectors, "testdata/conformance")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}

// Prefix returns a new prefix of keys, all of them in one slot of a Cluster.
func Prefix() string { return "w{" + rand.Text() + "}" }

// Suite is the set of tests that every engine must pass. The engine may be shared, because all keys
// are new.
func Suite(t *testing.T, eng engine.Engine) {
	t.Run("Vectors", func(t *testing.T) { testVectors(t, eng) })
	t.Run("PatientClient", func(t *testing.T) { eachAlgorithm(t, eng, testPatientClient) })
	t.Run("Next", func(t *testing.T) { eachAlgorithm(t, eng, testNext) })
	t.Run("ConcurrentExactness", func(t *testing.T) { eachAlgorithm(t, eng, testConcurrent) })
	t.Run("Overage", func(t *testing.T) { eachAlgorithm(t, eng, testOverage) })
	t.Run("Credits", func(t *testing.T) { eachAlgorithm(t, eng, testCredits) })
	t.Run("CreditsExpire", func(t *testing.T) { eachAlgorithm(t, eng, testCreditsExpire) })
	t.Run("CreditsUnopened", func(t *testing.T) { testCreditsUnopened(t, eng) })
	t.Run("CreditsKept", func(t *testing.T) { testCreditsKept(t, eng) })
	t.Run("CreditsReopened", func(t *testing.T) { testCreditsReopened(t, eng) })
	t.Run("CreditsClosed", func(t *testing.T) { testCreditsClosed(t, eng) })
	t.Run("CreditsOpenedTogether", func(t *testing.T) { testCreditsOpenedTogether(t, eng) })
	t.Run("CreditsLarge", func(t *testing.T) { testCreditsLarge(t, eng) })
	t.Run("CreditsConcurrent", func(t *testing.T) { testCreditsConcurrent(t, eng) })
	t.Run("CreditsAndOverage", func(t *testing.T) { testCreditsAndOverage(t, eng) })
	t.Run("CreditsOfSeveralItems", func(t *testing.T) { testCreditsOfSeveralItems(t, eng) })
	t.Run("CreditsPatientItems", func(t *testing.T) { testCreditsPatientItems(t, eng) })
	t.Run("CreditSequences", func(t *testing.T) { testCreditSequences(t, eng) })
	t.Run("LeavesNoTrace", func(t *testing.T) { eachAlgorithm(t, eng, testNoTrace) })
	t.Run("Reset", func(t *testing.T) { eachAlgorithm(t, eng, testReset) })
	t.Run("OwnClock", func(t *testing.T) { eachAlgorithm(t, eng, testOwnClock) })
	t.Run("AllOrNothing", func(t *testing.T) { testAllOrNothing(t, eng) })
	t.Run("CostPerCounter", func(t *testing.T) { testCostPerCounter(t, eng) })
	t.Run("Order", func(t *testing.T) { testOrder(t, eng) })
	t.Run("Shadow", func(t *testing.T) { testShadow(t, eng) })
	t.Run("DryRun", func(t *testing.T) { testDryRun(t, eng) })
	t.Run("Penalty", func(t *testing.T) { testPenalty(t, eng) })
	t.Run("PenaltyOfSeveral", func(t *testing.T) { testPenaltyOfSeveral(t, eng) })
	t.Run("PenaltyAndClock", func(t *testing.T) { testPenaltyAndClock(t, eng) })
	t.Run("Refund", func(t *testing.T) { testRefund(t, eng) })
	t.Run("RefundAfterOthers", func(t *testing.T) { testRefundAfterOthers(t, eng) })
	t.Run("RefundRefused", func(t *testing.T) { testRefundRefused(t, eng) })
	t.Run("RefundOfAll", func(t *testing.T) { testRefundOfAll(t, eng) })
	t.Run("RefundLate", func(t *testing.T) { testRefundLate(t, eng) })
	t.Run("RefundSequences", func(t *testing.T) { testRefundSequences(t, eng) })
	t.Run("Refused", func(t *testing.T) { testRefused(t, eng) })
	t.Run("Amend", func(t *testing.T) { testAmend(t, eng) })
	t.Run("AmendBeyondTheLimit", func(t *testing.T) { testAmendBeyondTheLimit(t, eng) })
	t.Run("AmendKeepsShares", func(t *testing.T) { testAmendKeepsShares(t, eng) })
	t.Run("AmendScalesReturns", func(t *testing.T) { testAmendScalesReturns(t, eng) })
	t.Run("AmendSequences", func(t *testing.T) { testAmendSequences(t, eng) })
	t.Run("Schedule", func(t *testing.T) { testSchedule(t, eng) })
	t.Run("BoundsOff", func(t *testing.T) { testBoundsOff(t, eng) })
}

// start is the instant at which scenarios begin: Monday, 00:00 UTC, and the first instant of every
// window used.
const start int64 = 1_704_672_000_000

// five returns the numbers of five units a minute by an algorithm.
func five(a limit.Algorithm) limit.Numbers {
	n := limit.Numbers{Algorithm: a, Limit: 5, WindowMS: 60_000}
	switch {
	case a.Bucket():
		n.Burst = 5
	case a == limit.SlidingWindowBuckets:
		n.PrecisionMS = 10_000
	}
	return n
}

func counter(key string, n limit.Numbers) engine.Counter { return engine.Counter{Key: key, Numbers: n} }

// ask decides one call and returns it. It requires that the call was decided.
func ask(tb testing.TB, eng engine.Engine, now, cost int64, counters ...engine.Counter) *engine.Call {
	tb.Helper()
	call := &engine.Call{NowMS: now, Cost: cost, Counters: counters}
	eng.Evaluate(context.Background(), call)
	require.NoError(tb, call.Err)
	return call
}

func eachAlgorithm(t *testing.T, eng engine.Engine, test func(*testing.T, engine.Engine, limit.Algorithm)) {
	for _, a := range limit.Algorithms {
		t.Run(a.String(), func(t *testing.T) { test(t, eng, a) })
	}
}

func testVectors(t *testing.T, eng engine.Engine) {
	names, err := FileNames(Vectors())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(names), 8, "files of vectors")
	for _, name := range names {
		file, err := ReadFile(Vectors(), name)
		require.NoError(t, err)
		for _, c := range file.Cases {
			for _, failure := range RunCase(context.Background(), eng, Prefix(), c) {
				t.Error(name, failure)
			}
		}
	}
}

// A client that waits for the returned time is allowed, and one millisecond earlier it is denied.
func testPatientClient(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	c := counter(Prefix()+"k", five(a))
	now := start + 7_001
	for range 20 {
		cost := int64(1 + now%3)
		call := ask(t, eng, now, cost, c)
		v := call.Outcome.Verdicts[0]
		if v.Allowed {
			now += 17
			continue
		}
		require.Positive(t, v.RetryAfterMS)
		if v.RetryAfterMS > 1 {
			early := ask(t, eng, now+v.RetryAfterMS-1, cost, c)
			require.False(t, early.Outcome.Allowed, "a millisecond early")
			require.EqualValues(t, 1, early.Outcome.Verdicts[0].RetryAfterMS)
		}
		now += v.RetryAfterMS
		require.True(t, ask(t, eng, now, cost, c).Outcome.Allowed, "after the returned wait")
	}
}

// The time at which one more unit is available must be exact.
func testNext(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	c := counter(Prefix()+"k", five(a))
	require.Equal(t, start, ask(t, eng, start, 0, c).Outcome.Verdicts[0].NextMS, "whole")
	v := ask(t, eng, start, 3, c).Outcome.Verdicts[0]
	for v.NextMS > start {
		before := ask(t, eng, v.NextMS-1, 0, c).Outcome.Verdicts[0]
		require.Equal(t, v.Remaining, before.Remaining)
		at := ask(t, eng, v.NextMS, 0, c).Outcome.Verdicts[0]
		require.Greater(t, at.Remaining, v.Remaining)
		if at.Remaining == 5 {
			require.Equal(t, v.ResetMS, v.NextMS)
			return
		}
		v = at
	}
	t.Fatal("the full quota is never available again")
}

// With any number of concurrent clients, exactly the quota is allowed.
func testConcurrent(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	n := five(a)
	n.Limit = 500
	if a.Bucket() {
		n.Burst = 500
	}
	c := counter(Prefix()+"k", n)
	other := counter(c.Key+"other", n)
	other.Numbers.Limit, other.Numbers.Burst = 10*n.Limit, 10*n.Burst
	var admitted atomic.Int64
	var clients sync.WaitGroup
	for client := range 64 {
		clients.Go(func() {
			for i := range 20 {
				cost := int64(1 + (client+i)%3)
				counters := []engine.Counter{c, other}
				if client%2 == 0 {
					slices.Reverse(counters)
				}
				call := &engine.Call{NowMS: start, Cost: cost, Counters: counters}
				eng.Evaluate(context.Background(), call)
				if call.Err != nil {
					t.Error(call.Err)
				} else if call.Outcome.Allowed {
					admitted.Add(cost)
				}
			}
		})
	}
	clients.Wait()
	require.EqualValues(t, 500, admitted.Load())
	require.EqualValues(t, 4500, ask(t, eng, start, 0, other).Outcome.Verdicts[0].Remaining, "charged together with the first call, or not at all")
}

// A denied call, a read and a dry run change no later answer.
func testNoTrace(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	c := counter(Prefix()+"k", five(a))
	ask(t, eng, start, 3, c)
	want := ask(t, eng, start+2, 0, c).Outcome
	require.False(t, ask(t, eng, start+1, 4, c).Outcome.Allowed)
	require.True(t, ask(t, eng, start+1, 6, c).Outcome.Verdicts[0].CostExceeds)
	ask(t, eng, start+1, 0, c)
	dry := &engine.Call{NowMS: start + 1, Cost: 2, DryRun: true, Counters: []engine.Counter{c}}
	eng.Evaluate(context.Background(), dry)
	require.True(t, dry.Outcome.Allowed)
	require.Equal(t, want, ask(t, eng, start+2, 0, c).Outcome)

	unseen := counter(c.Key+"unseen", five(a))
	require.True(t, ask(t, eng, start, 0, unseen).Outcome.Allowed)
	late := ask(t, eng, start+30_000, 1, unseen).Outcome.Verdicts[0]
	fresh := ask(t, eng, start+30_000, 1, counter(c.Key+"fresh", five(a))).Outcome.Verdicts[0]
	require.Equal(t, fresh, late, "cost 0 opens no window")
}

func testReset(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	n := five(a)
	n.PenaltyMS = 5_000
	one, two := counter(Prefix()+"k", n), counter(Prefix()+"k", n)
	for _, c := range []engine.Counter{one, two} {
		ask(t, eng, start, 5, c)
		require.True(t, ask(t, eng, start, 1, c).Outcome.Verdicts[0].Penalized)
	}
	require.NoError(t, eng.Reset(context.Background(), one, engine.Counter{Key: Prefix() + "never used"}))
	v := ask(t, eng, start, 1, one).Outcome.Verdicts[0]
	require.True(t, v.Allowed, "usage and penalty are reset")
	require.EqualValues(t, 4, v.Remaining)
	require.False(t, ask(t, eng, start, 1, two).Outcome.Allowed)
	require.NoError(t, eng.Reset(context.Background()))
}

// Without an instant in the call, the engine uses its own clock.
func testOwnClock(t *testing.T, eng engine.Engine, a limit.Algorithm) {
	n := five(a)
	n.WindowMS, n.PenaltyMS = 3_600_000, 1_000
	if n.PrecisionMS > 0 {
		n.PrecisionMS = n.WindowMS
	}
	c := counter(Prefix()+"k", n)
	call := ask(t, eng, 0, 4, c)
	require.True(t, call.Outcome.Allowed)
	require.InDelta(t, time.Now().UnixMilli(), call.Outcome.NowMS, 60_000)
	v := call.Outcome.Verdicts[0]
	require.EqualValues(t, 1, v.Remaining)
	require.Greater(t, v.ResetMS, call.Outcome.NowMS)
	require.LessOrEqual(t, v.ResetMS, call.Outcome.NowMS+2*n.WindowMS)
	require.True(t, ask(t, eng, 0, 5, c).Outcome.Verdicts[0].Penalized)
}

// If one rule denies a check, the other rules count nothing.
func testAllOrNothing(t *testing.T, eng engine.Engine) {
	prefix := Prefix()
	var counters []engine.Counter
	for i, a := range limit.Algorithms {
		counters = append(counters, counter(prefix+a.String(), five(a)))
		counters[i].Numbers.Limit = 10
		if a.Bucket() {
			counters[i].Numbers.Burst = 10
		}
	}
	counters[3].Numbers.Limit = 2
	require.True(t, ask(t, eng, start, 2, counters...).Outcome.Allowed)
	call := ask(t, eng, start, 1, counters...)
	require.False(t, call.Outcome.Allowed)
	for i, v := range call.Outcome.Verdicts {
		require.Equal(t, i != 3, v.Allowed, "reports its own result")
		require.EqualValues(t, counters[i].Numbers.Limit-2, v.Remaining)
		require.Zero(t, v.DelayMS)
	}
	for i, c := range counters {
		require.EqualValues(t, c.Numbers.Limit-2, ask(t, eng, start, 0, c).Outcome.Verdicts[0].Remaining, i)
	}
}

// Checks that are decided together may have different costs. Each counter is charged its own cost,
// or none is charged.
func testCostPerCounter(t *testing.T, eng engine.Engine) {
	for _, a := range limit.Algorithms {
		prefix := Prefix()
		one, two := counter(prefix+"one", five(a)), counter(prefix+"two", five(limit.FixedWindow))
		peeked := counter(prefix+"peeked", five(limit.SlidingWindowCounter))
		one.Cost, two.Cost = 1, 2
		together := func() *engine.Call {
			call := &engine.Call{NowMS: start, Cost: 2, PerCounter: true, Counters: []engine.Counter{one, two, peeked}}
			eng.Evaluate(context.Background(), call)
			require.NoError(t, call.Err)
			return call
		}
		for i := range int64(2) {
			call := together()
			require.True(t, call.Outcome.Allowed, a)
			require.Equal(t, []int64{4 - i, 3 - 2*i, 5}, remainders(call), a)
		}
		call := together()
		require.False(t, call.Outcome.Allowed, a)
		require.True(t, call.Outcome.Verdicts[0].Allowed, a)
		require.False(t, call.Outcome.Verdicts[1].Allowed, a)
		require.True(t, call.Outcome.Verdicts[2].Allowed, a)
		require.Equal(t, []int64{3, 1, 5}, remainders(call), "%s: nothing was charged", a)
	}
}

func remainders(call *engine.Call) (all []int64) {
	for i := range call.Outcome.Verdicts {
		all = append(all, call.Outcome.Verdicts[i].Remaining)
	}
	return all
}

// Each check of a batch sees the usage of the earlier ones.
func testOrder(t *testing.T, eng engine.Engine) {
	c := counter(Prefix()+"k", five(limit.TokenBucket))
	calls := make([]*engine.Call, 300)
	for i := range calls {
		calls[i] = &engine.Call{NowMS: start, Cost: 1, Counters: []engine.Counter{c}}
	}
	calls[1].Counters[0].Numbers.Limit = 0 // invalid by itself
	eng.Evaluate(context.Background(), calls...)
	require.Error(t, calls[1].Err)
	allowed := 0
	for i, call := range calls {
		if i == 1 {
			continue
		}
		require.NoError(t, call.Err)
		require.Equal(t, allowed < 5, call.Outcome.Allowed)
		if call.Outcome.Allowed {
			allowed++
			require.EqualValues(t, 5-allowed, call.Outcome.Verdicts[0].Remaining)
		}
	}
	eng.Evaluate(context.Background())
}

// A rule in shadow mode reports its result and denies nothing. It counts only checks that were
// allowed.
func testShadow(t *testing.T, eng engine.Engine) {
	prefix := Prefix()
	shadow, enforced := counter(prefix+"s", five(limit.SlidingWindowLog)), counter(prefix+"e", five(limit.FixedWindow))
	shadow.Numbers.Limit, shadow.Shadow = 2, true
	for i := range 5 {
		call := ask(t, eng, start, 1, shadow, enforced)
		require.True(t, call.Outcome.Allowed)
		require.Equal(t, i < 2, call.Outcome.Verdicts[0].Allowed)
		require.EqualValues(t, max(0, 1-i), call.Outcome.Verdicts[0].Remaining)
		require.EqualValues(t, 4-i, call.Outcome.Verdicts[1].Remaining)
	}
	other := counter(prefix+"s2", shadow.Numbers)
	other.Shadow = true
	call := ask(t, eng, start, 1, other, enforced)
	require.False(t, call.Outcome.Allowed)
	require.True(t, call.Outcome.Verdicts[0].Allowed)
	require.EqualValues(t, 2, call.Outcome.Verdicts[0].Remaining, "the check was denied, so nothing is counted")

	call = ask(t, eng, start, 3, other)
	require.True(t, call.Outcome.Allowed)
	require.True(t, call.Outcome.Verdicts[0].CostExceeds)
	require.Equal(t, limit.NeverMS, call.Outcome.Verdicts[0].RetryAfterMS)
}

// A dry run has the answer of a real call.
func testDryRun(t *testing.T, eng engine.Engine) {
	for _, a := range limit.Algorithms {
		n := five(a)
		n.PenaltyMS = 700
		c := counter(Prefix()+"k", n)
		for i := range 12 {
			now, cost := start+int64(i)*3_000, int64(i%4)
			dry := &engine.Call{NowMS: now, Cost: cost, DryRun: true, Counters: []engine.Counter{c}}
			eng.Evaluate(context.Background(), dry)
			require.NoError(t, dry.Err)
			require.Equal(t, ask(t, eng, now, cost, c).Outcome, dry.Outcome, "%s, request %d", a, i)
		}
	}
}

// testRefused sends calls that no engine can decide. None of them may be counted.
func testRefused(t *testing.T, eng engine.Engine) {
	key := Prefix() + "k"
	good := counter(key, five(limit.TokenBucket))
	change := func(f func(*limit.Numbers)) []engine.Counter {
		c := counter(key+"2", five(limit.TokenBucket))
		f(&c.Numbers)
		return []engine.Counter{good, c}
	}
	calls := map[string]*engine.Call{
		"duplicate":                     {NowMS: start, Cost: 1, Counters: []engine.Counter{good, good}},
		"negative cost of a counter":    {NowMS: start, PerCounter: true, Counters: []engine.Counter{{Key: key, Numbers: good.Numbers, Cost: -1}}},
		"cost of a counter for nothing": {NowMS: start, Cost: 1, Counters: []engine.Counter{{Key: key, Numbers: good.Numbers, Cost: 1}}},
		"negative cost":                 {NowMS: start, Cost: -1, Counters: []engine.Counter{good}},
		"instant":                       {NowMS: limit.MaxInstantMS + 1, Cost: 1, Counters: []engine.Counter{good}},
		"limit":                         {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.Limit = 0 })},
		"burst":                         {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.Burst = 0 })},
		"refill":                        {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.Burst, n.WindowMS = limit.MaxLimit, limit.MaxWindowMS })},
		"window":                        {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.WindowMS = 0 })},
		"penalty":                       {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.PenaltyMS = -1 })},
		"algorithm":                     {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.Algorithm = 0 })},
		"precision":                     {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.Algorithm = limit.SlidingWindowBuckets })},
		"calendar":                      {NowMS: start, Cost: 1, Counters: change(func(n *limit.Numbers) { n.Calendar = limit.CalendarDay })},
	}
	for name, call := range calls {
		eng.Evaluate(context.Background(), call)
		require.Error(t, call.Err, name)
		require.NotContains(t, call.Err.Error(), "\n")
		require.False(t, strings.Contains(call.Err.Error(), key), "errors must not contain keys")
	}
	require.EqualValues(t, 5, ask(t, eng, start, 0, good).Outcome.Verdicts[0].Remaining)
	huge := ask(t, eng, start, 1<<62, good).Outcome.Verdicts[0]
	require.True(t, huge.CostExceeds)
}
