package check

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// share returns a share that the test knows to be valid.
func share(t *testing.T, value float64) limit.Portion {
	t.Helper()
	s, err := limit.PortionOf(value)
	require.NoError(t, err)
	return s
}

// Of 10 units, 0.75 is 7.5: the check that leaves 8 used is the first one with a warning, whatever
// the algorithm is. A peek, a dry run and a denial carry it too.
func TestWarningBoundary(t *testing.T) {
	for _, algorithm := range limit.Algorithms {
		for warnAt, first := range map[float64]int64{0: 1, 0.0999: 1, 0.1: 2, 0.75: 8, 0.8: 9, 0.9999: 10, 1: 11} {
			rule := minute("api", 10)
			rule.Algorithm, rule.WarnAt = algorithm, share(t, warnAt)
			if algorithm == limit.SlidingWindowBuckets {
				rule.Precision = limit.Duration{Text: "10s", MS: 10_000}
			}
			r := newRig(t, PolicyData{Rules: []limit.Rule{rule}})
			for used := int64(1); used <= 10; used++ {
				for _, d := range []Decision{
					r.check(Request{Subject: "s", Cost: 1, DryRun: true}), r.check(Request{Subject: "s", Cost: 1}), r.check(Request{Subject: "s"}),
				} {
					require.Equal(t, used >= first, d.Warning, "%s, %v, %d used", algorithm, warnAt, used)
					require.Equal(t, d.Warning, d.Rules[0].Warning)
				}
			}
			d := r.check(Request{Subject: "s", Cost: 1})
			require.False(t, d.Allowed)
			require.Equal(t, first <= 10, d.Warning, "%s, %v, denied", algorithm, warnAt)
		}
	}
}

// A rule in shadow mode reports its warning, and the answer has none.
func TestWarningInShadow(t *testing.T) {
	rule := minute("api", 10)
	rule.Mode, rule.WarnAt = limit.Shadow, share(t, 0.5)
	r := newRig(t, PolicyData{Rules: []limit.Rule{rule}})
	d := r.check(Request{Subject: "s", Cost: 6})
	require.True(t, d.Rules[0].Warning)
	require.False(t, d.Warning)
}

// The share is that of the plan's limit, or else that of the rule. An override changes only the
// number.
func TestWarningThatApplies(t *testing.T) {
	rule := minute("api", 10)
	rule.WarnAt = share(t, 0.5)
	r := newRig(t, PolicyData{Rules: []limit.Rule{rule}, Plans: []PlanData{
		{Slug: "free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 20}}},
		{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 100, WarnAt: share(t, 0.8)}}},
		{Slug: "all", Limits: map[string]limit.Limit{"api": {Unlimited: true}}},
		{Slug: "bare"},
	}},
		SubjectData{Subject: "raised", Plan: "pro", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 1000}}}},
		SubjectData{Subject: "lowered", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 4}}}},
		SubjectData{Subject: "capped", Plan: "all", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 4}}}},
		SubjectData{Subject: "triple", Plan: "pro", Multiplier: 3},
		SubjectData{Subject: "free", Plan: "all"},
	)
	for subject, last := range map[string]struct { // the greatest cost without a warning
		plan string
		cost int64
	}{
		"a": {"free", 10}, "b": {"pro", 80}, "c": {"bare", 5},
		"raised": {"", 800}, "lowered": {"", 2}, "capped": {"", 2}, "triple": {"", 240},
	} {
		require.False(t, r.check(Request{Subject: subject, Plan: last.plan, Cost: last.cost}).Warning, subject)
		require.True(t, r.check(Request{Subject: subject, Plan: last.plan, Cost: 1}).Warning, subject)
	}
	require.False(t, r.check(Request{Subject: "free", Cost: 1_000_000}).Warning)
}

// During an outage of Redis, the share is that of the part of the limit that this instance counts.
func TestWarningDuringAnOutage(t *testing.T) {
	call := engine.Call{Counters: []engine.Counter{{Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 100, WindowMS: 60_000}}}}
	r := RuleDecision{Rule: &limit.Rule{}, Quota: 100, WarnAt: share(t, 0.8)}
	for remaining, warns := range map[int64]bool{25: false, 5: false, 4: true, 0: true} {
		call.Outcome.Verdicts = []limit.Verdict{{Allowed: true, Degraded: true, PartQuota: 25, Remaining: remaining}}
		r.take(&call, 0, testStart)
		require.Equal(t, warns, r.Warning, "%d of 25", remaining)
	}
	call.Outcome.Verdicts = []limit.Verdict{{Allowed: true, Degraded: true, Uncounted: true}}
	r.take(&call, 0, testStart)
	require.False(t, r.Warning, "nothing is known")

	rule := minute("api", 10)
	rule.WarnAt = share(t, 0.5)
	rig := newRig(t, PolicyData{Rules: []limit.Rule{rule}})
	rig.store.fail.Store(true)
	require.False(t, rig.check(Request{Subject: "s", Cost: 5}).Warning)
	require.True(t, rig.check(Request{Subject: "s", Cost: 1}).Warning)
}
