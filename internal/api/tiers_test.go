package api

import (
	"net/http"
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

// The operator sets what a tier includes, and a request beyond it gets a 422 that names the field,
// the bound and the present number. GET /v1/tenant shows both.
func TestTierBounds(t *testing.T) {
	s := newAdminStack(t)
	platform, err := s.db.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.db.Store.ProposeTiers(t.Context(), platform))
	tier := func(method string, bounds any) answer {
		return s.call(s.operator, method, "/v1/plans/tiny", obj{"bounds": bounds})
	}
	all := obj{"rules": 1, "matching_rules": 1, "longest_window": "1h", "members": 2, "counters": 1000, "record_bytes": 1 << 20, "retention_days": 30}
	require.Equal(t, all, plain(tier(http.MethodPut, all).ok(201).json()["bounds"]))
	require.ElementsMatch(t, []string{"/bounds/rules", "/bounds/longest_window"},
		tier(http.MethodPut, obj{"rules": 0, "longest_window": "soon"}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/bounds/counters"}, tier(http.MethodPatch, obj{"counters": 10}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/bounds/record_bytes"}, tier(http.MethodPatch, obj{"record_bytes": 1000}).pointers(422, codeInvalidRequest))
	require.Nil(t, tier(http.MethodPatch, obj{"members": nil}).ok(200).json()["bounds"].(obj)["members"])
	exported := s.call(s.operator, http.MethodGet, "/v1/config", nil).ok(200).json()
	s.call(s.operator, http.MethodPut, "/v1/subjects/tenant-a", obj{"plan": "tiny"}).ok(201)
	require.Empty(t, s.call(s.operator, http.MethodPut, "/v1/config?dry_run=true", exported).ok(200).json()["changes"])

	s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "one", "limit": 10, "window": "1m"}).ok(201)
	refused := s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "two", "limit": 10, "window": "1m"}).problem(422, codeTierExceeded)
	require.Equal(t, "/slug", refused.Errors[0].Pointer)
	require.Contains(t, refused.Errors[0].Message, `would give the tenant 2 rules; the tier "tiny" allows 1, and there are 1`)
	require.Contains(t, refused.Errors[0].Fix, "ask the operator")
	require.Equal(t, []string{"/window"},
		s.call(s.key, http.MethodPatch, "/v1/rules/one", obj{"window": "2h"}).pointers(422, codeTierExceeded))
	require.ElementsMatch(t, []string{"/rules", "/rules/0/window", "/rules/0/resource"}, s.call(s.key, http.MethodPut, "/v1/config",
		obj{"format": 1, "rules": []any{obj{"slug": "two", "limit": 10, "window": "2h"}}}).pointers(422, codeTierExceeded))
	tier(http.MethodPatch, obj{"members": 1}).ok(200)
	s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "ann@example.com", "role": "owner"}).ok(201)
	require.Equal(t, []string{"/email"},
		s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "ben@example.com", "role": "owner"}).pointers(422, codeTierExceeded))

	self := s.call(s.key, http.MethodGet, "/v1/tenant", nil).ok(200).json()["tier"].(obj)
	require.Equal(t, "tiny", self["plan"])
	require.EqualValues(t, 1, plain(self["bounds"]).(obj)["members"])
	use := plain(self["use"]).(obj)
	require.Nil(t, use["counters"], "nothing estimates them here")
	delete(use, "counters")
	require.Equal(t, obj{"rules": 1, "matching_rules": 1, "longest_window": "1m", "members": 1}, use)
}

// plain returns a JSON object with its whole numbers as int.
func plain(v any) any {
	out := obj{}
	for name, value := range v.(obj) {
		if n, ok := value.(float64); ok {
			value = int(n)
		}
		out[name] = value
	}
	return out
}
