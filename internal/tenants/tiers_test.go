package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A new installation proposes tiers that limit no tenant. What the operator deletes stays deleted,
// and an existing configuration is not changed.
func TestProposeTiers(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s := d.Store
	platform, err := s.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	require.NoError(t, s.ProposeTiers(t.Context(), platform))
	policy := policyOf(t, s, platform.ID)
	require.Len(t, policy.Rules, 3)
	open := map[string]bool{}
	for _, plan := range policy.Plans {
		open[plan.Slug] = plan.FailOpen
		if plan.Default {
			require.Equal(t, "custom", plan.Slug)
			for _, rule := range policy.Rules {
				require.True(t, plan.Limits[rule.Slug].Unlimited, "the default tier has no limits")
			}
		}
	}
	require.Equal(t, map[string]bool{"custom": false, "free": false, "pro": false, "scale": true}, open)
	for _, rule := range policy.Rules {
		require.Empty(t, rule.Validate())
		numbers := rule.Numbers()
		require.True(t, numbers.Leasable(), "a quota must not cost a round trip for each check")
	}

	require.NoError(t, s.DeletePlan(t.Context(), operator, "pro", tenants.Match{}))
	require.NoError(t, s.ProposeTiers(t.Context(), platform))
	require.Len(t, policyOf(t, s, platform.ID).Plans, 3)

	begun := tenantstest.New(t)
	platform, err = begun.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	mustRule(t, begun.Store, tenants.AsSystem(platform.ID, "test"), rule("mine"))
	require.NoError(t, begun.Store.ProposeTiers(t.Context(), platform))
	require.Empty(t, policyOf(t, begun.Store, platform.ID).Plans)
}

// There is one notice for each share and window, however often and by however many servers it is
// recorded, and only the tenant can read it.
func TestQuotaNotices(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	end := time.Now().Add(time.Hour).Truncate(time.Hour)
	note := func(used int64, end time.Time) (percents []int) {
		fresh, err := s.RecordQuota(t.Context(), a.TenantID(), "checks", end, used, 1000)
		require.NoError(t, err)
		for _, n := range fresh {
			percents = append(percents, n.Percent)
		}
		return percents
	}
	require.Empty(t, note(799, end))
	require.Equal(t, []int{80}, note(800, end))
	require.Empty(t, note(949, end))
	require.Equal(t, []int{95, 100}, note(1000, end))
	require.Empty(t, note(1200, end))
	require.Equal(t, []int{80}, note(900, end.Add(time.Hour)), "the next window has its own notice")
	_, err := s.RecordQuota(t.Context(), a.TenantID(), "old", time.Now().Add(-time.Hour), 5, 5)
	require.NoError(t, err)
	list, err := s.QuotaNotices(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, list, 4, "notices of ended windows are omitted")
	require.EqualValues(t, 1000, list[0].Quota)
	list, err = s.QuotaNotices(t.Context(), b)
	require.NoError(t, err)
	require.Empty(t, list)
	fresh, err := s.RecordQuota(t.Context(), a.TenantID(), "none", end, 5, 0)
	require.NoError(t, err)
	require.Empty(t, fresh)
}

// Tenants with a tier are listed page by page. A subject that is not a tenant is omitted.
func TestTenantsInTiers(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	platform, err := s.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.ProposeTiers(t.Context(), platform))
	operator := tenants.AsSystem(platform.ID, "test")
	for _, slug := range []string{"tenant-b", "tenant-a", "platform", "nobody"} {
		mustSubject(t, s, operator, tenants.Subject{Subject: slug, Plan: "free"})
	}
	list, err := s.TenantsInTiers(t.Context(), platform.ID, "", 1)
	require.NoError(t, err)
	require.Equal(t, []tenants.TenantInTier{{ID: a.TenantID(), Slug: "tenant-a"}}, list)
	list, err = s.TenantsInTiers(t.Context(), platform.ID, "tenant-a", 10)
	require.NoError(t, err)
	require.Equal(t, []tenants.TenantInTier{{ID: b.TenantID(), Slug: "tenant-b"}}, list)
}

// The behavior of a tier over the quota can be changed, and is part of documents.
func TestPlanFail(t *testing.T) {
	t.Parallel()
	d, _, b := two(t)
	s := d.Store
	platform, err := s.EnsurePlatform(t.Context())
	require.NoError(t, err)
	a := tenants.AsSystem(platform.ID, "test")
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("r"))
	}
	made, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "scale", Fail: tenants.FailOpen, Limits: map[string]limit.Limit{"r": {Limit: 5}}})
	require.NoError(t, err)
	require.Equal(t, tenants.FailOpen, made.Fail)
	require.True(t, policyOf(t, s, a.TenantID()).Plans[0].FailOpen)
	doc, _, err := s.Document(t.Context(), a, false)
	require.NoError(t, err)
	_, err = s.ApplyDocument(t.Context(), b, doc, tenants.Apply{})
	requireInvalid(t, err, "plans.0.fail")
	_, err = s.EditPlan(t.Context(), a, "scale", tenants.Match{}, func(p *tenants.Plan) error {
		p.Fail = tenants.FailClosed
		return nil
	})
	require.NoError(t, err)
	_, err = s.ApplyDocument(t.Context(), a, doc, tenants.Apply{})
	require.NoError(t, err)
	require.True(t, policyOf(t, s, a.TenantID()).Plans[0].FailOpen)
	changed, err := s.EditPlan(t.Context(), a, "scale", tenants.Match{}, func(p *tenants.Plan) error {
		p.Fail = tenants.FailClosed
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, tenants.FailClosed, changed.Fail)
	_, err = s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "x", Fail: "half"})
	requireInvalid(t, err, "fail")
}
