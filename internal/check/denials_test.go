package check

import (
	"context"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// A subject with twenty thousand checks per second causes ten commands of each kind in Redis, by
// Redis's own statistics.
func TestDeniedChecksCostRedisLittle(t *testing.T) {
	server := testenv.StartRedis(t)
	client, err := redis.NewClient(server.URL, redis.WithTimeout(testenv.RedisTimeout))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	rule := minute("api", 2)
	rule.Window = limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	r := newRig(t, PolicyData{Rules: []limit.Rule{rule}})
	r.store.Engine = redis.New(client, redis.Options{Deadline: testenv.RedisTimeout})
	require.True(t, r.check(Request{Subject: "s", Cost: 2}).Allowed)
	commands := func(name string) int {
		info, err := client.Info(context.Background(), "commandstats").Result()
		require.NoError(t, err)
		match := regexp.MustCompile(`cmdstat_` + name + `:calls=(\d+)`).FindStringSubmatch(info)
		require.NotNil(t, match, name)
		n, err := strconv.Atoi(match[1])
		require.NoError(t, err)
		return n
	}
	gets, sets, runs := commands("mget"), commands("set"), r.store.calls.Load()
	for range 1000 {
		for range 20 {
			require.False(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
		}
		r.move(time.Millisecond)
	}
	require.LessOrEqual(t, commands("mget")-gets, 10)
	require.Equal(t, sets, commands("set"), "a denial writes nothing")
	require.LessOrEqual(t, r.store.calls.Load()-runs, int64(10))
}

// heldEngine holds calls until it is released.
type heldEngine struct {
	engine.Engine
	came, leave chan struct{}
}

func (h *heldEngine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	h.came <- struct{}{}
	<-h.leave
	h.Engine.Evaluate(ctx, calls...)
}

// When a denial must be verified, one check goes to the store, and no other check waits for it. If
// it does not return in time, another check goes.
func TestDenialIsVerifiedByOneCheck(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 2)}})
	require.True(t, r.check(Request{Subject: "s", Cost: 2}).Allowed)
	require.False(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
	held := &heldEngine{Engine: r.store.Engine, came: make(chan struct{}), leave: make(chan struct{})}
	r.store.Engine = held
	done := make(chan Decision)
	ask := func() { done <- r.check(Request{Subject: "s", Cost: 1}) }
	r.move(100 * time.Millisecond)
	go ask()
	<-held.came
	calls := r.store.calls.Load()
	for range 49 {
		r.move(time.Millisecond)
		d := r.check(Request{Subject: "s", Cost: 1})
		require.False(t, d.Allowed)
		require.Equal(t, testStart+60_000, r.now.Load()+d.Rules[0].RetryAfterMS)
	}
	require.Equal(t, calls, r.store.calls.Load())
	r.move(time.Millisecond)
	go ask()
	<-held.came
	close(held.leave)
	require.False(t, (<-done).Allowed)
	require.False(t, (<-done).Allowed)
}

// An admin raises a customer's limit while a check of the customer is in flight. That check is
// denied under the old limit. The next one must use the new limit, and not the denial.
func TestDenialDoesNotOutliveOverride(t *testing.T) {
	override := func(units int64) SubjectData {
		return SubjectData{Subject: "s", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: units}}}}
	}
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 10)}}, override(2))
	require.True(t, r.check(Request{Subject: "s", Cost: 2}).Allowed)
	held := &heldEngine{Engine: r.store.Engine, came: make(chan struct{}), leave: make(chan struct{})}
	r.store.Engine = held
	done := make(chan Decision)
	go func() { done <- r.check(Request{Subject: "s", Cost: 1}) }()
	<-held.came
	r.policy.AddSubject(override(5))
	close(held.leave)
	require.False(t, (<-done).Allowed, "the call was sent with the old limit")

	held.came = make(chan struct{}, 1)
	d := r.check(Request{Subject: "s", Cost: 1})
	require.True(t, d.Allowed)
	require.Equal(t, int64(5), d.Rules[0].Limit)
	require.Equal(t, int64(2), d.Rules[0].Remaining)
}

// The same for a reset: a denial from before the reset must not be remembered after it.
func TestDenialDoesNotOutliveReset(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 2)}})
	require.True(t, r.check(Request{Subject: "s", Cost: 2}).Allowed)
	held := &heldEngine{Engine: r.store.Engine, came: make(chan struct{}), leave: make(chan struct{})}
	r.store.Engine = held
	done := make(chan Decision)
	decided := &resetAfter{Engine: held, reset: func() {
		_, _, err := r.checker.Reset(context.Background(), r.policy, nil, Request{Subject: "s"})
		require.NoError(t, err)
	}}
	r.store.Engine = decided
	go func() { done <- r.check(Request{Subject: "s", Cost: 1}) }()
	<-held.came
	close(held.leave)
	require.False(t, (<-done).Allowed, "the call was decided before the reset")
	held.came = make(chan struct{}, 1)
	decided.reset = func() {}
	require.True(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
}

// resetAfter resets counters after calls were decided and before their caller gets the result.
type resetAfter struct {
	engine.Engine
	reset func()
}

func (e *resetAfter) Evaluate(ctx context.Context, calls ...*engine.Call) {
	e.Engine.Evaluate(ctx, calls...)
	e.reset()
}
