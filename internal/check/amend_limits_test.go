package check

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A change of counters has the limits of the plans when it was made: what the policy of this
// instance knows of the plans does not matter. Without them, and with a plan or a version that the
// policy does not have, the usage stays, and is not scaled by another limit.
func TestAmendByLimitsOfTheChange(t *testing.T) {
	plans := []PlanData{{Slug: "pro", Version: 1, Default: true, Limits: map[string]limit.Limit{"api": {Limit: 100}}}}
	of := func(units int64) map[string]limit.Limit { return map[string]limit.Limit{"api": {Limit: units}} }
	for name, c := range map[string]struct {
		change CounterChange
		left   int64 // of 100, after 50 were used
		kept   int
	}{
		"a version that is not known yet": {change: CounterChange{From: "pro", FromVersion: 1, To: "pro", ToVersion: 2, FromLimits: of(100), ToLimits: of(200)}, left: 0},
		"a plan that is not known yet":    {change: CounterChange{From: "pro", FromVersion: 1, To: "max", ToVersion: 1, FromLimits: of(100), ToLimits: of(200)}, left: 0},
		"a plan that was deleted":         {change: CounterChange{From: "old", FromVersion: 1, To: "pro", ToVersion: 1, FromLimits: of(200), ToLimits: of(100)}, left: 75},
		"a plan that was edited":          {change: CounterChange{From: "pro", FromVersion: 1, To: "max", ToVersion: 1, FromLimits: of(500), ToLimits: of(100)}, left: 90},
		"multiplied":                      {change: CounterChange{From: "old", To: "pro", FromMultiplier: 2, ToMultiplier: 1, FromLimits: of(100), ToLimits: of(100)}, left: 75},
		"a plan without a limit":          {change: CounterChange{From: "old", To: "pro", FromMultiplier: 9, ToMultiplier: 1, FromLimits: map[string]limit.Limit{}, ToLimits: of(100)}, left: 90},
		"a limit that the rule no longer allows": {
			change: CounterChange{From: "old", To: "pro", FromLimits: map[string]limit.Limit{"api": {Limit: 5, Burst: 7}}, ToLimits: of(100)}, left: 50,
		},
		"the limit that the rule had": {
			change: CounterChange{From: "old", To: "pro", FromMultiplier: 9, ToMultiplier: 1, FromLimits: map[string]limit.Limit{}, ToLimits: of(100), OwnLimits: of(200)}, left: 75,
		},
		"one that the rule no longer allows": {
			change: CounterChange{From: "old", To: "pro", FromLimits: map[string]limit.Limit{}, ToLimits: of(100), OwnLimits: map[string]limit.Limit{"api": {Limit: 5, Burst: 7}}}, left: 50,
		},
		"one behind those of plans": {
			change: CounterChange{From: "old", To: "pro", FromLimits: of(200), ToLimits: of(100), OwnLimits: map[string]limit.Limit{"api": {Limit: 5, Burst: 7}}}, left: 75,
		},
		"an approval that has ended": {
			change: CounterChange{From: "old", To: "pro", FromMultiplier: 9, ToMultiplier: 1, FromLimits: of(50), ToLimits: of(100), Approved: of(200)}, left: 75,
		},
		"one of an unlimited plan": {
			change: CounterChange{From: "old", To: "pro", FromLimits: map[string]limit.Limit{"api": {Unlimited: true}}, ToLimits: of(100), Approved: of(200)}, left: 75,
		},
		"one that the rule does not allow any more": {
			change: CounterChange{From: "old", To: "pro", FromLimits: of(200), ToLimits: of(100), Approved: map[string]limit.Limit{"api": {Limit: 5, Burst: 7}}}, left: 50,
		},
		"a deleted plan, nothing kept":        {change: CounterChange{From: "old", FromVersion: 1, To: "pro", ToVersion: 1}, left: 50, kept: 1},
		"an unknown version, nothing kept":    {change: CounterChange{From: "pro", FromVersion: 1, To: "pro", ToVersion: 2}, left: 50, kept: 1},
		"an unknown plan, half of it is kept": {change: CounterChange{From: "pro", FromVersion: 1, To: "max", ToVersion: 1, FromLimits: of(1000)}, left: 50, kept: 1},
		"a reset needs no limits":             {change: CounterChange{Reset: true, From: "old", FromVersion: 1, To: "max", ToVersion: 1}, left: 100},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 500)}, Plans: plans}, SubjectData{Subject: "s"})
			require.True(t, r.check(Request{Subject: "s", Cost: 50}).Allowed)
			c.change.ID, c.change.Subject = 1, "s"
			require.NoError(t, r.checker.Amend(t.Context(), r.policy, c.change))
			require.Equal(t, c.left, r.check(Request{Subject: "s"}).Rules[0].Remaining)
			require.Equal(t, float64(c.kept), testutil.ToFloat64(r.checker.metrics.unscaled))
			require.Equal(t, c.kept > 0, r.policy.Unknown(&c.change) != "")
		})
	}
}

// An instance that still has the override of an approval changes the counter as one that has not:
// from the limit that the approval gave, or to zero.
func TestAmendBeforeTheEndOfAnApprovalIsLoaded(t *testing.T) {
	plans := []PlanData{
		{Slug: "free", Version: 1, Default: true, Limits: map[string]limit.Limit{"api": {Limit: 100}}},
		{Slug: "pro", Version: 1, Limits: map[string]limit.Limit{"api": {Limit: 1000}}},
	}
	raised := limit.Limit{Limit: 200}
	for _, reset := range []bool{false, true} {
		r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 500)}, Plans: plans},
			SubjectData{Subject: "s", Plan: "free", Overrides: []OverrideData{{Rule: "api", Limit: raised}}})
		require.True(t, r.check(Request{Subject: "s", Cost: 150}).Allowed)
		change := CounterChange{ID: 1, Subject: "s", Reset: reset, From: "free", To: "pro", Approved: map[string]limit.Limit{"api": raised}}
		require.NoError(t, r.checker.Amend(t.Context(), r.policy, change))
		r.policy.AddSubject(SubjectData{Subject: "s", Plan: "pro"})
		want := int64(250) // 150 of 200 are 750 of 1000
		if reset {
			want = 1000
		}
		require.Equal(t, want, r.check(Request{Subject: "s"}).Rules[0].Remaining)
	}
}
