package check

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
