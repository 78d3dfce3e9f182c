package check

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A subject has the limits of its version of a plan; a check that names the plan, or a subject
// without one, has those of the newest.
func TestPlanVersions(t *testing.T) {
	data := inspected()
	data.Plans[0].Version = 3
	data.Plans[0].Older = []PlanVersionData{{Number: 1, Limits: map[string]limit.Limit{"everywhere": {Limit: 7}}}, {Number: 2}}
	r := newRig(t, data)
	for version := range 5 {
		r.policy.AddSubject(SubjectData{Subject: string(rune('0' + version)), Plan: "pro", PlanVersion: version})
	}
	for subject, want := range map[string]int64{"0": 50, "1": 7, "2": 5, "3": 50, "4": 50, "nobody": 50} {
		for named, want := range map[string]int64{"": want, "pro": 50} {
			d, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: subject, Plan: named, Resource: "x"}})
			require.NoError(t, err)
			require.Equal(t, "pro", d[0].Plan)
			for _, rule := range d[0].Rules {
				if rule.Rule.Slug == "everywhere" {
					require.Equal(t, want, rule.Limit, "version %s, named %q", subject, named)
				}
			}
		}
	}
	_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: "1", Plan: "pro 1", Resource: "x"}})
	require.Error(t, err, "a version has no name")
	known, _ := r.policy.Subject("2")
	require.Equal(t, SubjectData{Subject: "2", Plan: "pro", PlanVersion: 2}, known)

	data.Plans[0].Older[0].Limits["none"] = limit.Limit{Limit: 1}
	_, err = CompilePolicy(r.checker.keys, r.policy.tenant, data)
	require.ErrorContains(t, err, "none")
}

// Subjects that would be denied immediately are listed with their numbers, also those that are
// denied already. Nothing is consumed.
func TestForesee(t *testing.T) {
	onEachStore(t, func(t *testing.T, r *rig) {
		r.policy.AddSubject(SubjectData{Subject: "raised", Overrides: []OverrideData{{Rule: "everywhere", Limit: limit.Limit{Limit: 60}}}})
		r.policy.AddSubject(SubjectData{Subject: "blocked", State: Blocked})
		r.policy.AddSubject(SubjectData{Subject: "seats", Plan: "pro", Multiplier: 3})
		for subject, cost := range map[string]int64{"heavy": 50, "middle": 20, "light": 2, "raised": 8, "seats": 20} { // as much as tenant-wide allows
			_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: subject, Resource: "x", Cost: cost}})
			require.NoError(t, err)
		}
		all := []string{"heavy", "middle", "light", "raised", "blocked", "seats", "unseen"}
		to := func(n int64) PlanChange {
			return PlanChange{Limits: map[string]limit.Limit{"everywhere": {Limit: n}, "gone": {Limit: 1}}}
		}
		for range 2 {
			require.Equal(t, Foresight{Compared: 6, Over: []Over{
				{Subject: "heavy", Rule: "everywhere", Used: 50, Limit: 50, NewLimit: 20, Denied: true},
				{Subject: "middle", Rule: "everywhere", Used: 20, Limit: 50, NewLimit: 20},
			}}, r.checker.Foresee(t.Context(), r.policy, to(20), all))
		}
		require.Equal(t, []Over{{Subject: "seats", Rule: "everywhere", Used: 20, Limit: 150, NewLimit: 15}},
			r.checker.Foresee(t.Context(), r.policy, to(5), []string{"seats"}).Over)
		require.Empty(t, r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{"everywhere": {Unlimited: true}}}, all).Over)
		require.Empty(t, r.checker.Foresee(t.Context(), r.policy, PlanChange{Plan: "pro"}, all).Over, "nothing changes")
		require.Equal(t, int64(5), r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{}}, all).Over[0].NewLimit, "the rule's own")
		require.Zero(t, r.checker.Foresee(t.Context(), r.policy, PlanChange{Plan: "none"}, all))
	})
}

// Of a bucket the same is told, as far as it is known.
func TestForeseeBuckets(t *testing.T) {
	data := inspected()
	data.Rules[0].Algorithm, data.Rules[0].Window = limit.TokenBucket, limit.Window{Duration: limit.Duration{Text: "24h", MS: 86_400_000}}
	r := newRig(t, data)
	_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: "heavy", Resource: "x", Cost: 30}})
	require.NoError(t, err)
	over := r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{"everywhere": {Limit: 10}}}, []string{"heavy", "unseen"}).Over
	for _, o := range over {
		require.Equal(t, Over{Subject: "heavy", Rule: "everywhere", Used: 30, Limit: 50, NewLimit: 10}, o)
	}
}

// If Redis is unavailable, no subject is reported over a limit, because usage is unknown.
func TestForeseeDegraded(t *testing.T) {
	r := newRig(t, inspected())
	r.store.fail.Store(true)
	got := r.checker.Foresee(t.Context(), r.policy, PlanChange{Limits: map[string]limit.Limit{"everywhere": {Limit: 1}}}, []string{"heavy"})
	require.True(t, got.Degraded)
	require.Empty(t, got.Over)
}
