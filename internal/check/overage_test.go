package check

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// excessRule returns a rule of 10 a minute that allows overage.
func excessRule(algorithm limit.Algorithm) limit.Rule {
	rule := minute("api", 10)
	rule.Algorithm, rule.Overage = algorithm, limit.OverageAllow
	if algorithm == limit.SlidingWindowBuckets {
		rule.Precision = limit.Duration{Text: "10s", MS: 10_000}
	}
	return rule
}

var windows = []limit.Algorithm{limit.SlidingWindowCounter, limit.SlidingWindowBuckets, limit.FixedWindow, limit.FixedWindowFirstHit}

// A check beyond the limit is allowed. The excess is exact, and so is the part of each check.
func TestOverage(t *testing.T) {
	for _, algorithm := range windows {
		r := newRig(t, PolicyData{Rules: []limit.Rule{excessRule(algorithm)}})
		var sum int64
		for _, c := range []struct{ cost, remaining, overage, excess int64 }{
			{8, 2, 0, 0}, {2, 0, 0, 0}, {1, 0, 1, 1}, {0, 0, 1, 0}, {4, 0, 5, 4}, {100, 0, 105, 100},
		} {
			d := r.check(Request{Subject: "s", Cost: c.cost})
			v := &d.Rules[0]
			require.True(t, d.Allowed, algorithm)
			require.Equal(t, c.overage > 0, d.Overage, algorithm)
			require.Equal(t, []int64{c.remaining, c.overage, c.excess, 0}, []int64{v.Remaining, v.Overage, v.ExcessCost, v.RetryAfterMS}, "%s: %+v", algorithm, c)
			sum += v.ExcessCost
		}
		require.Equal(t, int64(105), sum)
		require.Equal(t, int64(6), r.check(Request{Subject: "t", Cost: 16, DryRun: true}).Rules[0].Overage)
		require.Equal(t, int64(10), r.check(Request{Subject: "t"}).Rules[0].Remaining, "a dry run counts nothing")
		require.Equal(t, int64(6), r.check(Request{Subject: "t", Cost: 16}).Rules[0].ExcessCost, "one check may pass the limit")

		live := r.checker.Inspect(context.Background(), r.policy, Request{Subject: "s"}).Rules[0]
		require.True(t, live.Allowed)
		require.Equal(t, int64(105), live.Overage)
	}
}

// The counter is exact up to the most that the algorithm can count, and then the check is denied.
func TestOverageCeiling(t *testing.T) {
	for _, algorithm := range windows {
		r, most := newRig(t, PolicyData{Rules: []limit.Rule{excessRule(algorithm)}}), algorithm.MaxLimit()
		d := r.check(Request{Subject: "s", Cost: most + 1})
		require.Equal(t, CostExceedsLimit, d.Code)
		require.Equal(t, most, d.Rules[0].MostCost())
		require.Equal(t, most-10, r.check(Request{Subject: "s", Cost: most}).Rules[0].Overage)
		d = r.check(Request{Subject: "s", Cost: 1})
		require.False(t, d.Allowed)
		require.Equal(t, []int64{0, most - 10, 0}, []int64{d.Rules[0].Remaining, d.Rules[0].Overage, d.Rules[0].ExcessCost})
		require.Positive(t, d.Rules[0].RetryAfterMS)
	}
}

// Over time, the excess of each check is its part of what the window then holds beyond the limit.
func TestOverageOverTime(t *testing.T) {
	for _, algorithm := range windows {
		random := rand.New(rand.NewPCG(3, uint64(algorithm)))
		plain := excessRule(algorithm) // the same counter with a limit that is never reached
		plain.Slug, plain.Limit, plain.Overage = "plain", limit.MaxLimit, limit.OverageUnset
		r := newRig(t, PolicyData{Rules: []limit.Rule{excessRule(algorithm), plain}})
		for range 300 {
			r.move(time.Duration(random.Int64N(15_000)) * time.Millisecond)
			cost := random.Int64N(6)
			d := r.check(Request{Subject: "s", Cost: cost})
			used := limit.MaxLimit - d.Rules[1].Remaining
			require.Equal(t, []int64{max(0, 10-used), max(0, used-10), min(cost, max(0, used-10))},
				[]int64{d.Rules[0].Remaining, d.Rules[0].Overage, d.Rules[0].ExcessCost}, "%s, %d used", algorithm, used)
			require.Equal(t, d.Rules[1].ResetAfterMS, d.Rules[0].ResetAfterMS)
		}
	}
}

// A check that another rule denies has no excess. In shadow mode, the rule reports its excess and
// the answer has none.
func TestOverageBesideOtherRules(t *testing.T) {
	strict, ghost := minute("strict", 12), excessRule(limit.FixedWindow)
	ghost.Slug, ghost.Mode = "ghost", limit.Shadow
	r := newRig(t, PolicyData{Rules: []limit.Rule{excessRule(limit.FixedWindow), ghost, strict}})
	d := r.check(Request{Subject: "s", Cost: 12})
	require.Equal(t, []int64{2, 2}, []int64{d.Rules[0].ExcessCost, d.Rules[1].ExcessCost})
	d = r.check(Request{Subject: "s", Cost: 1})
	require.False(t, d.Allowed)
	require.Equal(t, "strict", d.Rules[d.Deciding].Rule.Slug)
	require.Equal(t, []int64{2, 0}, []int64{d.Rules[0].Overage, d.Rules[0].ExcessCost})

	alone := newRig(t, PolicyData{Rules: []limit.Rule{ghost}})
	d = alone.check(Request{Subject: "s", Cost: 12})
	require.Equal(t, int64(2), d.Rules[0].Overage)
	require.False(t, d.Overage)
}

// Overage is that of the plan's limit, or else that of the rule. An override changes only the
// number.
func TestOverageThatApplies(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 10)}, Plans: []PlanData{
		{Slug: "free", Default: true},
		{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 20, Overage: limit.OverageAllow}}},
	}}, SubjectData{Subject: "raised", Plan: "pro", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 30}}}})
	require.False(t, r.check(Request{Subject: "a", Cost: 11}).Allowed)
	require.Equal(t, int64(5), r.check(Request{Subject: "a", Plan: "pro", Cost: 25}).Rules[0].Overage)
	d := r.check(Request{Subject: "a", Cost: 1})
	require.False(t, d.Allowed, "the usage stays after a downgrade")
	require.Zero(t, d.Rules[0].Overage)
	require.Equal(t, int64(5), r.check(Request{Subject: "raised", Cost: 35}).Rules[0].Overage)

	strict := newRig(t, PolicyData{Rules: []limit.Rule{excessRule(limit.FixedWindow)}, Plans: []PlanData{
		{Slug: "free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 10, Overage: limit.OverageDeny}}},
	}})
	require.False(t, strict.check(Request{Subject: "a", Cost: 11}).Allowed)
}

// Requests that are decided together and share a counter divide its excess, the later ones first.
func TestOverageTogether(t *testing.T) {
	shared := excessRule(limit.FixedWindow)
	shared.By = nil
	strict := minute("strict", 100)
	r := newRig(t, PolicyData{Rules: []limit.Rule{shared, strict}})
	together := func(costs ...int64) (excess []int64) {
		var reqs []Request
		for i, cost := range costs {
			reqs = append(reqs, Request{Subject: string(rune('a' + i)), Resource: "x", Cost: cost})
		}
		ds, err := r.checker.CheckTogetherInTurns(context.Background(), r.policy, reqs, new(Scratch), nil)
		require.NoError(t, err)
		for _, d := range ds {
			excess = append(excess, d.Rules[0].ExcessCost)
		}
		return excess
	}
	require.Equal(t, []int64{0, 0}, together(4, 4))
	require.Equal(t, []int64{0, 1, 4}, together(1, 2, 4))
	require.Equal(t, []int64{3, 2}, together(3, 2))
	require.Equal(t, []int64{0, 0}, together(1, 101), "one is denied, so nothing is charged")
	require.Equal(t, int64(10), r.check(Request{Subject: "a"}).Rules[0].Overage)
}

// Without Redis, an instance counts on from what it knows against the whole limit: it never reports
// an excess that the subject does not have.
func TestOverageDuringAnOutage(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{excessRule(limit.FixedWindow)}})
	r.check(Request{Subject: "s", Cost: 8})
	r.check(Request{Subject: "over", Cost: 13})
	r.store.fail.Store(true)
	for _, c := range []struct {
		subject       string
		cost, overage int64
	}{{"s", 2, 0}, {"s", 3, 3}, {"over", 2, 5}, {"new", 12, 2}} {
		d := r.check(Request{Subject: c.subject, Cost: c.cost})
		require.True(t, d.Allowed)
		require.True(t, d.Degraded)
		require.Equal(t, c.overage, d.Rules[0].Overage, "%+v", c)
	}
}

// A subject over a new limit that allows overage is not denied, so previews do not name it.
func TestOverageForeseen(t *testing.T) {
	limits := func(o limit.Overage) map[string]limit.Limit {
		return map[string]limit.Limit{"api": {Limit: 5, Overage: o}}
	}
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 10)}, Plans: []PlanData{
		{Slug: "free", Default: true}, {Slug: "strict", Limits: limits(limit.OverageDeny)}, {Slug: "paid", Limits: limits(limit.OverageAllow)},
	}})
	r.check(Request{Subject: "s", Cost: 8})
	for plan, over := range map[string]int{"strict": 1, "paid": 0} {
		require.Len(t, r.checker.Foresee(context.Background(), r.policy, PlanChange{Plan: plan}, []string{"s"}).Over, over, plan)
		to := limits(limit.OverageDeny)["api"]
		if plan == "paid" {
			to.Overage = limit.OverageAllow
		}
		require.Len(t, r.checker.Compare(context.Background(), r.policy, "free", "api", &to, []string{"s"}).Then, over, plan)
	}
	r.check(Request{Subject: "s", Plan: "paid", Cost: 1})
	f := r.checker.Foresee(context.Background(), r.policy, PlanChange{Plan: "strict"}, []string{"s"})
	require.Equal(t, int64(9), f.Over[0].Used)
	require.True(t, slices.ContainsFunc(f.Over, func(o Over) bool { return o.NewLimit == 5 }))
}
