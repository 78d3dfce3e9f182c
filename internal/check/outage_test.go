package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

// An outage begins with what was counted, not with what a dry run would have counted or what a
// preview of another limit has compared.
func TestOutageAfterCallsThatCountNothing(t *testing.T) {
	bucket := checktest.Minute("api", 1000)
	bucket.Algorithm = limit.TokenBucket
	const used = 600
	window := checktest.Minute("api", 1000)
	for name, rule := range map[string]limit.Rule{"window": window, "bucket": bucket} {
		pro := check.PlanData{Slug: "pro", Limits: map[string]limit.Limit{"api": {Limit: 100_000}}}
		for what, reads := range map[string]func(*testing.T, *checktest.Rig){
			"nothing": func(*testing.T, *checktest.Rig) {},
			"dry run": func(t *testing.T, r *checktest.Rig) {
				require.True(t, r.Check(check.Request{Subject: "s", Cost: 390, DryRun: true}).Allowed)
			},
			"preview": func(t *testing.T, r *checktest.Rig) {
				found := r.Checker.Foresee(t.Context(), r.Policy, check.PlanChange{Plan: "pro"}, []string{"s"})
				require.Equal(t, 1, found.Counters)
			},
			"comparison": func(t *testing.T, r *checktest.Rig) {
				found := r.Checker.Compare(t.Context(), r.Policy, "", "api", &limit.Limit{Limit: 500}, []string{"s"})
				require.Equal(t, 1, found.Asked)
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				rule.OnUnavailable = limit.Local
				r := checktest.NewRig(t, check.PolicyData{Rules: []limit.Rule{rule}, Plans: []check.PlanData{pro}}, nil, check.SubjectData{Subject: "s"})
				r.Check(check.Request{Subject: "s", Cost: used})
				r.Move(time.Millisecond)
				reads(t, r)
				r.Move(time.Millisecond)
				r.Store.Fail.Store(true)
				d := r.Check(check.Request{Subject: "s", Cost: 0})
				require.True(t, d.Degraded)
				require.EqualValues(t, 1000-used, d.Rules[0].Remaining)
			})
		}
	}
}
