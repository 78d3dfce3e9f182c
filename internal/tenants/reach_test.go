package tenants_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// Before a limit is changed or a rule is deleted, the affected subjects are shown.
func TestReach(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s := d.Store
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("r"))
		for _, plan := range []string{"free", "pro"} {
			_, err := s.CreatePlan(t.Context(), actor, tenants.Plan{Slug: plan, Limits: map[string]limit.Limit{"r": {Limit: 5}}})
			require.NoError(t, err)
		}
	}
	mustRule(t, s, a, rule("bare"))
	in := func(hours int) *time.Time { return ptr(now.now().Add(time.Duration(hours) * time.Hour)) }
	put := func(actor tenants.Actor, subject, plan string, starts, ends *time.Time, overridden bool) {
		t.Helper()
		_, _, err := s.PutSubject(t.Context(), actor, tenants.Subject{Subject: subject, Plan: plan}, tenants.Match{})
		require.NoError(t, err)
		if overridden {
			_, _, err = s.PutOverride(t.Context(), actor, subject, tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 9}, StartsAt: starts, ExpiresAt: ends}, tenants.Match{})
			require.NoError(t, err)
		}
	}
	put(a, "plain", "", nil, nil, false)
	put(a, "named", "free", nil, nil, false)
	put(a, "raised", "free", nil, nil, true)
	put(a, "soon", "", in(5), nil, true)
	put(a, "over", "", nil, in(1), true)
	put(a, "buyer", "pro", nil, nil, true)
	put(b, "other", "free", nil, nil, true)
	now.nowMS += 2 * 3600 * 1000

	reach := func(plan, rule string) tenants.PlanReach {
		t.Helper()
		r, err := s.PlanReach(t.Context(), a, plan, rule)
		require.NoError(t, err)
		return r
	}
	require.Equal(t, tenants.PlanReach{Subjects: 5, Overridden: 1}, reach("free", "r"), "subjects without a plan have the default plan")
	require.Equal(t, tenants.PlanReach{Subjects: 1, Overridden: 1}, reach("pro", "r"))
	require.Equal(t, tenants.PlanReach{Subjects: 1}, reach("pro", ""))
	require.Equal(t, tenants.PlanReach{Subjects: 5}, reach("free", "bare"))
	for _, names := range [][2]string{{"none", "r"}, {"free", "none"}} {
		_, err := s.PlanReach(t.Context(), a, names[0], names[1])
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}

	ruleReach, err := s.RuleReach(t.Context(), a, "r")
	require.NoError(t, err)
	require.Equal(t, tenants.RuleReach{Plans: []string{"free", "pro"}, Overrides: 4}, ruleReach)
	ruleReach, err = s.RuleReach(t.Context(), a, "bare")
	require.NoError(t, err)
	require.Equal(t, tenants.RuleReach{}, ruleReach)
	_, err = s.RuleReach(t.Context(), b, "bare")
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// A page of rules reads the usage of these rules only: a tenant may have a thousand.
func TestUsageOfSomeRules(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := usageStart()
	counts := usage.Counts{Allowed: 3, Denied: 1}
	require.NoError(t, d.Store.WriteUsage(t.Context(), usageBatch(uuid.New(), usageRow(a, start, "", "", "", counts),
		usageRow(a, start, "r", "", "", counts), usageRow(a, start, "q", "", "", counts), usageRow(a, start, "p", "", "", counts))))
	got := usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Hour, From: start, To: start.Add(time.Hour), ByRule: true, Rules: []string{"r", "p", "none"}})
	require.Len(t, got.Items, 2)
	require.Equal(t, "p", got.Items[0].Rule)
	require.Equal(t, "r", got.Items[1].Rule)
	got = usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Hour, From: start, To: start.Add(time.Hour), ByRule: true, Rules: []string{}})
	require.Empty(t, got.Items, "an empty list does not mean all rules")
}
