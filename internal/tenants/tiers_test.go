package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A fresh installation proposes tiers, and limits nobody by them; what the operator deletes stays
// deleted, and what the operator has begun is left alone.
func TestProposeTiers(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s := d.Store
	platform, err := s.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	require.NoError(t, s.ProposeTiers(t.Context(), platform))
	policy := policyOf(t, s, platform.ID)
	require.Len(t, policy.Rules, 2)
	open := map[string]bool{}
	for _, plan := range policy.Plans {
		open[plan.Slug] = plan.FailOpen
		if plan.Default {
			require.Equal(t, "custom", plan.Slug)
			for _, rule := range policy.Rules {
				require.True(t, plan.Limits[rule.Slug].Unlimited, "without a tier, nothing is limited")
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

// Each share of a quota is one notice in a window, however often and by however many servers it is
// noted, and only the tenant reads it.
func TestQuotaNotices(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	end := time.Now().Add(time.Hour).Truncate(time.Hour)
	note := func(used int64, end time.Time) (percents []int) {
		fresh, err := s.NoteQuota(t.Context(), a.TenantID(), "checks", end, used, 1000)
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
	require.Equal(t, []int{80}, note(900, end.Add(time.Hour)), "the next window has its own")
	_, err := s.NoteQuota(t.Context(), a.TenantID(), "old", time.Now().Add(-time.Hour), 5, 5)
	require.NoError(t, err)
	list, err := s.QuotaNotices(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, list, 4, "those of windows that have ended are not shown")
	require.EqualValues(t, 1000, list[0].Quota)
	list, err = s.QuotaNotices(t.Context(), b)
	require.NoError(t, err)
	require.Empty(t, list)
	fresh, err := s.NoteQuota(t.Context(), a.TenantID(), "none", end, 5, 0)
	require.NoError(t, err)
	require.Empty(t, fresh)
}

// Tenants that have a tier are found, page by page; a name that is no tenant is not one.
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

// What a tier does with checks over its quota can be changed, and is in documents.
func TestPlanFail(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
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
	require.NoError(t, err)
	require.True(t, policyOf(t, s, b.TenantID()).Plans[0].FailOpen)
	changed, err := s.EditPlan(t.Context(), a, "scale", tenants.Match{}, func(p *tenants.Plan) error {
		p.Fail = tenants.FailClosed
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, tenants.FailClosed, changed.Fail)
	_, err = s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "x", Fail: "half"})
	requireInvalid(t, err, "fail")
}
