package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// The proposed tiers limit only tenants that were given one. A tenant over its quota gets an error
// with a fix, and no decision. A tier that fails open allows its checks.
func TestTiers(t *testing.T) {
	s := newCheckStack(t)
	ctx, store := t.Context(), s.db.Store
	platform, err := store.EnsurePlatform(ctx)
	require.NoError(t, err)
	require.NoError(t, store.ProposeTiers(ctx, platform))
	operator := tenants.AsSystem(platform.ID, "test")
	_, _, err = store.PutPlanLimit(ctx, operator, "scale", tenants.ChecksPerMonth, limit.Limit{Limit: 10}, tenants.Match{})
	require.NoError(t, err)
	tier := func(slug, plan string, deps Deps) {
		_, _, err := store.PutSubject(ctx, operator, tenants.Subject{Subject: slug, Plan: plan}, tenants.Match{})
		require.NoError(t, err)
		change, err := store.Versions(ctx, platform.ID)
		require.NoError(t, err)
		deps.Policies.Changed(platform.ID, change.PolicyVersion, change.SubjectsVersion)
		require.NoError(t, deps.Policies.Settle(ctx, platform.ID))
	}
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Quota = check.NewQuota(deps.Checker, deps.Policies, platform.ID)
	s.serve(Config{}, deps)
	own, err := store.Tenant(ctx, s.actor)
	require.NoError(t, err)

	batch := func() answer { return s.post("/v1/check/batch", entries(20, `{"subject":"b"}`)) }
	batch().ok(200)
	tier(own.Slug, "scale", deps)
	batch().ok(200)

	_, err = store.EditPlan(ctx, operator, "scale", tenants.Match{}, func(p *tenants.Plan) error {
		p.Fail = tenants.FailClosed
		return nil
	})
	require.NoError(t, err)
	tier(own.Slug, "scale", deps)
	over := batch()
	p := over.problem(429, "TENANT_QUOTA_EXCEEDED")
	require.Equal(t, "none", over.header.Get("Weir-Decision"))
	require.Contains(t, p.Detail, "ask the operator")
}
