package check

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// When a customer gets a plan, the used share of each limit that the plan changes stays the same,
// or the counters are reset, exactly once. Limits with an override and counters that others share
// are not changed.
func TestAmend(t *testing.T) {
	month := minute("month", 5)
	month.Algorithm, month.Zone = limit.FixedWindow, "Europe/Berlin"
	month.Window = limit.Window{Calendar: limit.CalendarMonth, Duration: limit.Duration{Text: "month"}}
	special, shared := minute("special", 5), minute("shared", 5)
	shared.By = nil
	plans := []PlanData{
		{Slug: "free", Default: true},
		{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 50}, "month": {Limit: 50}, "special": {Limit: 50}, "shared": {Limit: 50}}},
		{Slug: "max", Limits: map[string]limit.Limit{"api": {Unlimited: true}}},
	}
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 5), month, special, shared}, Plans: plans}, SubjectData{
		Subject: "s", Plan: "pro", Overrides: []OverrideData{{Rule: "special", Limit: limit.Limit{Limit: 9}}},
	})
	require.True(t, r.check(Request{Subject: "s", Plan: "free", Cost: 3}).Allowed)
	left := func() (out []int64) {
		for _, rule := range r.check(Request{Subject: "s"}).Rules {
			out = append(out, rule.Remaining)
		}
		return out
	}
	require.Equal(t, []int64{47, 47, 47, 6}, left(), "api, month, shared, special")
	scale := CounterChange{ID: 1, Subject: "s", From: "free", To: "pro"}
	for range 2 {
		require.NoError(t, r.checker.Amend(t.Context(), r.policy, scale))
	}
	require.Equal(t, []int64{20, 20, 47, 6}, left())
	r.move(200 * time.Millisecond)
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, CounterChange{ID: 2, Subject: "s", From: "pro", To: "max"}))
	require.Equal(t, int64(20), left()[0], "unlimited has no share")
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, CounterChange{ID: 3, Subject: "s", Reset: true, From: "max", To: "pro"}))
	require.Equal(t, []int64{50, 50, 47, 6}, left())
	require.True(t, r.check(Request{Subject: "s", Cost: 5}).Allowed)
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, scale))
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, CounterChange{ID: 2, Subject: "s", Reset: true}))
	require.Equal(t, []int64{45, 45, 42, 1}, left(), "of a server that is behind: done before")
}

// The multiplier of a subject is part of the limits that are scaled: of both plans, up to the
// maximum of the algorithm, and not of the rule's own limit, which a plan without one leaves.
func TestAmendMultiplied(t *testing.T) {
	bucket, most := minute("bucket", 50), minute("most", 5)
	bucket.Algorithm, bucket.Burst, most.Algorithm = limit.TokenBucket, 50, limit.SlidingWindowCounter
	plans := []PlanData{
		{Slug: "free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 100}, "bucket": {Limit: 100}, "most": {Limit: 500_000_000}}},
		{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 200}, "bucket": {Limit: 200}, "most": {Limit: 1_000_000_000}, "own": {Limit: 4}}},
	}
	rules := []limit.Rule{minute("api", 5), bucket, most, minute("own", 2_000)}
	r := newRig(t, PolicyData{Rules: rules, Plans: plans}, SubjectData{Subject: "s", Plan: "pro", Multiplier: 10})
	require.True(t, r.check(Request{Subject: "s", Plan: "free", Cost: 800}).Allowed)
	left := func(plan string) map[string][2]int64 {
		out := map[string][2]int64{}
		for _, rule := range r.check(Request{Subject: "s", Plan: plan}).Rules {
			out[rule.Rule.Slug] = [2]int64{rule.Remaining, rule.Limit}
		}
		return out
	}
	require.Equal(t, map[string][2]int64{
		"api": {200, 1_000}, "bucket": {200, 1_000}, "most": {999_999_200, 1_000_000_000}, "own": {1_200, 2_000},
	}, left("free"))
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, CounterChange{ID: 1, Subject: "s", From: "free", To: "pro"}))
	require.Equal(t, map[string][2]int64{
		"api": {400, 2_000}, "bucket": {400, 2_000}, "most": {999_999_200, 1_000_000_000}, "own": {24, 40},
	}, left("pro"))
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, CounterChange{ID: 2, Subject: "s", From: "pro", To: "free"}))
	require.Equal(t, map[string][2]int64{
		"api": {200, 1_000}, "bucket": {200, 1_000}, "most": {999_999_200, 1_000_000_000}, "own": {1_200, 2_000},
	}, left("free"), "and back")
}

// A plan may change together with the multiplier. What counts is the limit that the subject had and
// the one that it gets, whatever this instance knows of the subject yet.
func TestAmendOtherMultiplier(t *testing.T) {
	plans := []PlanData{
		{Slug: "free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 100}}},
		{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 200}}},
	}
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 5)}, Plans: plans}, SubjectData{Subject: "s", Multiplier: 10})
	require.True(t, r.check(Request{Subject: "s", Cost: 800}).Allowed)
	left := func() [2]int64 {
		rule := r.check(Request{Subject: "s"}).Rules[0]
		return [2]int64{rule.Remaining, rule.Limit}
	}
	more := CounterChange{ID: 1, Subject: "s", From: "free", To: "pro", FromMultiplier: 10, ToMultiplier: 30}
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, more))
	r.policy.AddSubject(SubjectData{Subject: "s", Plan: "pro", Multiplier: 30})
	require.Equal(t, [2]int64{1_200, 6_000}, left(), "800 of 1000 were used")

	r.policy.AddSubject(SubjectData{Subject: "s", Plan: "pro", Multiplier: 10})
	require.Equal(t, [2]int64{0, 2_000}, left(), "fewer seats keep the usage of 4800")
	r.policy.AddSubject(SubjectData{Subject: "s", Plan: "pro", Multiplier: 30})
	require.Equal(t, [2]int64{1_200, 6_000}, left())

	r.policy.AddSubject(SubjectData{Subject: "s", Deleted: true})
	gone := CounterChange{ID: 2, Subject: "s", From: "pro", To: "free", FromMultiplier: 30, ToMultiplier: 1}
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, gone))
	require.Equal(t, [2]int64{20, 100}, left(), "4800 of 6000 were used")
}

// A check that was denied is allowed as soon as its counters have changed.
func TestAmendLiftsDenials(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 2)}, Plans: []PlanData{{Slug: "free", Default: true}}})
	require.True(t, r.check(Request{Subject: "s", Cost: 2}).Allowed)
	require.False(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
	require.NoError(t, r.checker.Amend(t.Context(), r.policy, CounterChange{ID: 1, Subject: "s", Reset: true, From: "free", To: "free"}))
	require.True(t, r.check(Request{Subject: "s", Cost: 1}).Allowed)
}

// amendStore is a counter store that has to work for a time for each step of an amendment.
type amendStore struct {
	engine.Engine
	work  time.Duration
	steps []*engine.Amendment
	fail  int   // this step, counted from 1
	err   error // nil: none; of every step
	panic bool
}

func (s *amendStore) Amend(_ context.Context, a *engine.Amendment) error {
	s.steps = append(s.steps, a)
	if s.err != nil {
		return s.err
	}
	if s.panic {
		panic("a fault of the store")
	}
	if len(s.steps) == s.fail {
		return errors.New("no answer")
	}
	time.Sleep(s.work)
	a.WorkUS = s.work.Microseconds()
	return nil
}

// amended returns a checker over the store, and a tenant's policy with logs, each of which is a
// step of its own.
func amended(t *testing.T, store *amendStore, logs int) (c *Checker, p *Policy) {
	t.Helper()
	data := PolicyData{Plans: []PlanData{{Slug: "free", Default: true}, {Slug: "pro", Limits: map[string]limit.Limit{}}}}
	for i := range logs {
		rule := minute(fmt.Sprintf("log-%d", i), limit.MaxLogLimit)
		rule.Algorithm = limit.SlidingWindowLog
		data.Rules = append(data.Rules, rule)
		data.Plans[1].Limits[rule.Slug] = limit.Limit{Limit: limit.MaxLogLimit - 1}
	}
	keys := NewKeys([16]byte{1})
	p, err := CompilePolicy(keys, limit.TenantID{1}, data)
	require.NoError(t, err)
	return NewChecker(CheckerOptions{Keys: keys, Engine: store, Metrics: NewMetrics(prometheus.NewRegistry())}), p
}

// While the counter store works for an amendment, it serves no check. So it rests for nine times as
// long before the next one, also of another subject. Short ones need no rest.
func TestAmendmentsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &amendStore{work: 4 * time.Millisecond}
		c, p := amended(t, store, 50)
		begun := time.Now()
		require.NoError(t, c.Amend(t.Context(), p, CounterChange{ID: 1, Subject: "s", From: "free", To: "pro"}))
		require.NoError(t, c.Amend(t.Context(), p, CounterChange{ID: 2, Subject: "other", From: "free", To: "pro"}))
		require.Len(t, store.steps, 100)
		require.True(t, store.steps[48].Follows)
		require.False(t, store.steps[49].Follows)
		require.InDelta(t, 100*40*time.Millisecond, time.Since(begun), float64(50*time.Millisecond))

		time.Sleep(time.Minute)
		store.work = 100 * time.Microsecond
		begun = time.Now()
		require.NoError(t, c.Amend(t.Context(), p, CounterChange{ID: 3, Subject: "s", Reset: true}))
		require.Equal(t, store.work, time.Since(begun))
	})
}

// An amendment stops between two steps when its context ends, and when the store fails.
func TestAmendmentsStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &amendStore{work: 4 * time.Millisecond, fail: 5}
		c, p := amended(t, store, 50)
		change := CounterChange{ID: 1, Subject: "s", From: "free", To: "pro"}
		require.ErrorIs(t, c.Amend(t.Context(), p, change), ErrCountersUnavailable)
		require.Len(t, store.steps, 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Amend(ctx, p, change), context.DeadlineExceeded)
		require.InDelta(t, 5+25, len(store.steps), 2)
	})
}

// After a step that was not sent, such as in an outage, the store has not worked: changes of other
// subjects and tenants are refused without a wait, and begin at once when the store is back.
func TestAmendmentsThatWereNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{engine.ErrBreakerOpen, fmt.Errorf("no connection: %w", engine.ErrNotReached)} {
			store := &amendStore{err: err}
			c, p := amended(t, store, 1)
			change := CounterChange{ID: 1, Subject: "s", From: "free", To: "pro"}
			begun := time.Now()
			for range 100 {
				require.ErrorIs(t, c.Amend(t.Context(), p, change), ErrCountersUnavailable)
			}
			require.Zero(t, time.Since(begun))

			store.err = errors.New("no answer")
			require.ErrorIs(t, c.Amend(t.Context(), p, change), ErrCountersUnavailable)
			require.Zero(t, time.Since(begun))
			store.err = nil
			require.NoError(t, c.Amend(t.Context(), p, change))
			require.Equal(t, (amendRest+1)*(amendLost-amendFree), time.Since(begun), "it may have worked")
		}
	})
}

// A panic of the store leaves the turn to others.
func TestAmendmentsAfterAPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &amendStore{panic: true}
		c, p := amended(t, store, 1)
		change := CounterChange{ID: 1, Subject: "s", From: "free", To: "pro"}
		require.Panics(t, func() { _ = c.Amend(t.Context(), p, change) })
		store.panic = false
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, c.Amend(ctx, p, change))
	})
}
