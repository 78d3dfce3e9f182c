package check

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// Before a limit is saved, it is known who would be denied by it, and reading this consumes
// nothing.
func TestCompare(t *testing.T) {
	onEachStore(t, func(t *testing.T, r *rig) {
		r.policy.AddSubject(SubjectData{Subject: "raised", Overrides: []OverrideData{{Rule: "everywhere", Limit: limit.Limit{Limit: 60}}}})
		r.policy.AddSubject(SubjectData{Subject: "blocked", State: Blocked})
		r.policy.AddSubject(SubjectData{Subject: "exempt", State: Exempt})
		r.policy.AddSubject(SubjectData{Subject: "registered", Plan: "pro"})
		used := map[string]int64{"heavy": 50, "registered": 20, "light": 2, "raised": 5, "exempt": 10}
		for subject, cost := range used {
			_, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: subject, Resource: "x", Cost: cost}})
			require.NoError(t, err)
		}
		everybody := []string{"heavy", "registered", "light", "raised", "blocked", "exempt", "unseen"}
		compare := func(plan, rule string, to *limit.Limit) Comparison {
			return r.checker.Compare(context.Background(), r.policy, plan, rule, to, everybody)
		}
		for range 2 {
			require.Equal(t, Comparison{Asked: 4, Now: []string{"heavy"}, Then: []string{"heavy", "registered"}}, compare("pro", "everywhere", &limit.Limit{Limit: 20}))
		}
		require.Equal(t, Comparison{Asked: 4, Now: []string{"heavy"}}, compare("pro", "everywhere", &limit.Limit{Unlimited: true}), "subjects that are denied now are allowed")
		require.Equal(t, []string{"heavy", "registered"}, compare("pro", "everywhere", nil).Then, "the rule's own number is 5")
		require.Zero(t, compare("", "everywhere", nil).Asked, "with a default plan, every subject has a plan")
		require.Zero(t, compare("pro", "none", nil).Asked)
		require.Equal(t, Comparison{Reason: NotBySubject}, compare("pro", "tenant-wide", nil))
		require.Equal(t, Comparison{Reason: MissingValues}, compare("pro", "address", nil))
		require.Equal(t, Comparison{Reason: ModeOff}, compare("pro", "off", nil))
		require.Equal(t, 5, compare("pro", "create", &limit.Limit{Limit: 1}).Asked, "a rule for one resource needs no resource")
	})
}

// If Redis is unavailable, no subject is reported over the limit, because usage is unknown.
func TestCompareDegraded(t *testing.T) {
	r := newRig(t, inspected())
	r.store.fail.Store(true)
	got := r.checker.Compare(context.Background(), r.policy, "pro", "everywhere", &limit.Limit{Limit: 1}, []string{"heavy"})
	require.True(t, got.Degraded)
	require.Empty(t, got.Then)
}

// Policy.Subject returns the data that was added.
func TestPolicySubject(t *testing.T) {
	r := newRig(t, inspected())
	want := SubjectData{Subject: "ada", Plan: "pro", State: Exempt, Overrides: []OverrideData{
		{Rule: "everywhere", Limit: limit.Limit{Limit: 7}, StartsAt: time.UnixMilli(1000), ExpiresAt: time.UnixMilli(2000)}, {Rule: "orders", Limit: limit.Limit{Unlimited: true}},
	}}
	r.policy.AddSubject(want)
	got, registered := r.policy.Subject("ada")
	require.True(t, registered)
	require.Equal(t, want, got)
	_, registered = r.policy.Subject("eve")
	require.False(t, registered)
}
