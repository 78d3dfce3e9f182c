package tenants_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// maxPlanRow is the maximum size of a row about a plan with usual slugs and numbers.
const maxPlanRow = 256 << 10

// largePlan creates a tenant whose plan pro has a thousand limits and 50 older versions with as
// many. It returns these limits.
func largePlan(t *testing.T) (d *tenantstest.Database, a tenants.Actor, limits map[string]limit.Limit) {
	t.Helper()
	d, a, _ = two(t)
	limits = map[string]limit.Limit{}
	for i := range limit.MaxRules {
		limits[fmt.Sprintf("requests-of-api-%03d", i)] = limit.Limit{Limit: 1_000_000, WarnAt: 8_001}
	}
	plan := mustPlan(t, d.Store, a, "pro")
	id := a.TenantID()
	d.Exec(`INSERT INTO rules (tenant_id, id, slug, resource, algorithm, limit_units, window_text, window_ms, by_values,
			mode, on_unavailable, version)
		SELECT $1, gen_random_uuid(), 'requests-of-api-' || lpad(n::text, 3, '0'), 'r' || n, 'token_bucket', 100, '1m', 60000,
			'{subject}', 'enforce', 'local', 1
		FROM generate_series(0, 999) AS n`, id)
	d.Exec(`INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, warn_at, version)
		SELECT $1, $2, r.id, 1000000, 0.8, 1 FROM rules r WHERE r.tenant_id = $1`, id, plan.ID)
	d.Exec("UPDATE plans SET newest_version = 51 WHERE tenant_id = $1 AND id = $2", id, plan.ID)
	d.Exec(`INSERT INTO plan_versions (tenant_id, plan_id, number, published_at)
		SELECT $1, $2, n, now() FROM generate_series(1, 50) AS n`, id, plan.ID)
	d.Exec(`INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units, warn_at)
		SELECT $1, $2, n, r.id, 1000000, 0.8 FROM generate_series(1, 50) AS n, rules r WHERE r.tenant_id = $1`, id, plan.ID)
	return d, a, limits
}

// digestOf is the SHA-256 of limits, as the documentation of the trail says how to compute it.
func digestOf(t *testing.T, limits map[string]any) string {
	t.Helper()
	text, err := json.Marshal(limits) // sorts the names
	require.NoError(t, err)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// The rows about a plan with as many limits and versions as possible are small.
func TestAuditOfALargePlan(t *testing.T) {
	t.Parallel()
	d, a, limits := largePlan(t)
	s, ctx := d.Store, t.Context()
	seen := trailIsIntact(t, s, a).Rows
	next := func(most int) (row tenants.AuditEntry) {
		t.Helper()
		rows := trailOf(t, s, a, seen)
		require.Len(t, rows, 1)
		seen++
		require.LessOrEqual(t, len(rows[0].Before)+len(rows[0].After), most)
		return rows[0]
	}

	_, _, err := s.PutPlanLimit(ctx, a, "pro", "requests-of-api-000", limit.Limit{Limit: 2}, tenants.Match{})
	require.NoError(t, err)
	row := next(200)
	require.JSONEq(t, `{"limits":{"requests-of-api-000":{"limit":2,"warn_at":null}}}`, string(row.After))

	doubled := map[string]limit.Limit{}
	for slug := range limits {
		doubled[slug] = limit.Limit{Limit: 2_000_000, WarnAt: 9_001}
	}
	_, _, err = s.PutPlan(ctx, a, tenants.Plan{Slug: "pro", Limits: doubled}, tenants.Match{})
	require.NoError(t, err)
	next(maxPlanRow)

	d.Exec(`DELETE FROM plan_version_limits WHERE tenant_id = $1 AND number = 50
		AND rule_id IN (SELECT id FROM rules WHERE tenant_id = $1 ORDER BY slug LIMIT 500)`, a.TenantID())
	require.NoError(t, s.DeletePlanVersion(ctx, a, "pro", 50, tenants.Match{}))
	row = next(maxPlanRow)
	var deleted struct {
		Older map[string]map[string]limitInTrail `json:"older_versions"`
	}
	require.NoError(t, json.Unmarshal(row.Before, &deleted))
	require.Len(t, deleted.Older["50"], 500, "few enough for one row")
	require.JSONEq(t, `{"older_versions":{"50":null}}`, string(row.After))

	_, err = s.PublishPlan(ctx, a, "pro", limits, tenants.Match{})
	require.NoError(t, err)
	row = next(maxPlanRow)
	require.Equal(t, "publish", row.Action)

	mustPlan(t, s, a, "free")
	seen++
	require.NoError(t, second(s.EditPlan(ctx, a, "free", tenants.Match{}, func(p *tenants.Plan) error { p.Default = true; return nil })))
	require.Len(t, trailOf(t, s, a, seen), 2)
	seen += 2

	require.NoError(t, s.DeletePlan(ctx, a, "pro", tenants.Match{}))
	row = next(maxPlanRow)
	require.Nil(t, row.After)
	var plan struct {
		Limits map[string]limitInTrail
		Older  map[string]struct {
			Limits int
			SHA256 string
		} `json:"older_versions"`
	}
	require.NoError(t, json.Unmarshal(row.Before, &plan))
	require.Len(t, plan.Limits, len(limits))
	require.Len(t, plan.Older, tenants.MaxOlderVersions)
	inVersion := map[string]any{}
	for slug := range limits {
		inVersion[slug] = limitInTrail{Limit: 1_000_000, WarnAt: 0.8}
	}
	for number := 1; number < 50; number++ {
		require.Equal(t, len(limits), plan.Older[strconv.Itoa(number)].Limits)
		require.Equal(t, digestOf(t, inVersion), plan.Older[strconv.Itoa(number)].SHA256)
	}
	require.True(t, trailIsIntact(t, s, a).Valid)
}

// limitInTrail has the fields of a limit in the trail, sorted by name.
type limitInTrail struct {
	Limit  int64   `json:"limit"`
	WarnAt float64 `json:"warn_at,omitempty"`
}

// The row of a rule that is deleted with the limits of many versions of plans is small.
func TestAuditOfAUsedRule(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustRule(t, s, a, rule("r"))
	id := a.TenantID()
	mustPlan(t, s, a, "plan-0")
	d.Exec(`INSERT INTO plans (tenant_id, id, slug, name, description, is_default, newest_version, version)
		SELECT $1, gen_random_uuid(), 'plan-' || n, '', '', false, 51, 1 FROM generate_series(1, 99) AS n`, id)
	d.Exec(`INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, version)
		SELECT $1, p.id, r.id, 5, 1 FROM plans p, rules r WHERE p.tenant_id = $1 AND r.tenant_id = $1`, id)
	d.Exec(`INSERT INTO plan_versions (tenant_id, plan_id, number, published_at)
		SELECT $1, p.id, n, now() FROM plans p, generate_series(1, 50) AS n WHERE p.tenant_id = $1 AND p.newest_version = 51`, id)
	d.Exec(`INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units)
		SELECT $1, v.plan_id, v.number, r.id, 5 FROM plan_versions v, rules r WHERE v.tenant_id = $1 AND r.tenant_id = $1`, id)
	seen := trailIsIntact(t, s, a).Rows
	require.NoError(t, s.DeleteRule(t.Context(), a, "r", tenants.Match{}))
	rows := trailOf(t, s, a, seen)
	require.Len(t, rows, 1)
	require.Less(t, len(rows[0].Before), 8<<10)
	var use struct {
		Plans map[string]limitInTrail `json:"plan_limits"`
		Older struct {
			Limits int
			SHA256 string
		} `json:"older_plan_limits"`
	}
	require.NoError(t, json.Unmarshal(rows[0].Before, &use))
	require.Len(t, use.Plans, 100)
	older := map[string]any{}
	for plan := 1; plan < 100; plan++ {
		for number := 1; number <= 50; number++ {
			older[fmt.Sprintf("plan-%d %d", plan, number)] = limitInTrail{Limit: 5}
		}
	}
	require.Equal(t, len(older), use.Older.Limits)
	require.Equal(t, digestOf(t, older), use.Older.SHA256)
	require.True(t, trailIsIntact(t, s, a).Valid)
}

// Both sides of a row have the same form of a version, also if only one of them is too long.
func TestAuditOfAGrownVersion(t *testing.T) {
	t.Parallel()
	d, a, limits := largePlan(t)
	s := d.Store
	older := []tenants.PlanVersion{{Number: 1, Limits: limitsIn(limits, 1)}, {Number: 2, Limits: limits}}
	doc := tenants.Document{Plans: []tenants.Plan{{Slug: "pro", NewestVersion: 51, Older: older}}}
	d.Exec("DELETE FROM plan_version_limits WHERE tenant_id = $1 AND number < 3", a.TenantID())
	seen := trailIsIntact(t, s, a).Rows
	mustApply(t, s, a, doc, tenants.Apply{})
	rows := trailOf(t, s, a, seen)
	require.Len(t, rows, 1)
	empty := digestOf(t, map[string]any{})
	require.JSONEq(t, `{"older_versions":{"1":{"limits":0,"sha256":"`+empty+`"},"2":{"limits":0,"sha256":"`+empty+`"}}}`, string(rows[0].Before))
	require.Less(t, len(rows[0].After), 400)
}

// limitsIn returns n of the limits.
func limitsIn(limits map[string]limit.Limit, n int) map[string]limit.Limit {
	out := map[string]limit.Limit{}
	for slug, lim := range limits {
		if len(out) < n {
			out[slug] = lim
		}
	}
	return out
}
