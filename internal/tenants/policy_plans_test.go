package tenants_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// givePlans gives a tenant rules and plans, each plan with so many versions, which have a limit for
// each rule. A version differs from the one before in one limit.
func givePlans(t *testing.T, d *tenantstest.Database, a tenants.Actor, rules, plans, versions int) {
	t.Helper()
	for i := range rules {
		r := rule(fmt.Sprintf("rule-with-a-long-name-%d", i))
		r.Resource = fmt.Sprintf("resource-%d", i)
		mustRule(t, d.Store, a, r)
	}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for _, sql := range []string{
			`INSERT INTO plans (tenant_id, id, slug, name, description, is_default, version, newest_version)
				SELECT $1, gen_random_uuid(), 'p' || n, '', '', n = 1, 1, $3::int FROM generate_series(1, $2::int) AS n`,
			`INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, version)
				SELECT $1, p.id, r.id, 10, 1 FROM plans p, rules r WHERE p.tenant_id = $1 AND r.tenant_id = $1 AND $2::int + $3::int > 0`,
			`INSERT INTO plan_versions (tenant_id, plan_id, number, published_at)
				SELECT $1, p.id, n, now() FROM plans p, generate_series(1, $3::int - 1) AS n WHERE p.tenant_id = $1 AND $2::int > 0`,
			`INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units)
				SELECT $1, v.plan_id, v.number, r.id, CASE WHEN row_number() OVER (PARTITION BY v.plan_id, v.number ORDER BY r.id) = v.number THEN 7 ELSE 10 END
				FROM plan_versions v, rules r WHERE v.tenant_id = $1 AND r.tenant_id = $1 AND $2::int + $3::int > 0`,
		} {
			_, err := conn.Exec(ctx, sql, a.TenantID(), plans, versions)
			require.NoError(t, err)
		}
	})
}

// heap returns the size of all reachable objects, and how much was allocated since the start.
func heap() (live, allocated int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.TotalAlloc) // far below
}

// A policy is read with little more memory than the policy has: 100 000 limits of plans, which are
// the most that a tenant may have, took 94 MB, and 10 MB once they were compiled.
func TestMemoryOfManyPlans(t *testing.T) {
	const rules, plans, versions = 100, 100, 10
	d, a, _ := two(t)
	givePlans(t, d, a, rules, plans, versions)
	policyOf(t, d.Store, a.TenantID()) // connects
	live, allocated := heap()
	began := time.Now()
	data := policyOf(t, d.Store, a.TenantID())
	took := time.Since(began)
	kept, total := heap()
	policy, err := check.CompilePolicy(check.Keys{}, a.TenantID(), data)
	require.NoError(t, err)

	require.Len(t, data.Plans, plans)
	for _, plan := range data.Plans {
		require.Len(t, plan.Limits, rules)
		require.Len(t, plan.Older, versions-1)
		for i, older := range plan.Older {
			require.Equal(t, i+1, older.Number)
			require.Len(t, older.Limits, rules)
			require.Equal(t, limit.Limit{Limit: 7}, older.Limits[fmt.Sprintf("rule-with-a-long-name-%d", i)])
		}
	}
	data = check.PolicyData{}
	compiled, _ := heap()
	const limits = rules * plans * versions
	t.Logf("%v; bytes of a limit: %d allocated, %d kept, %d compiled", took, (total-allocated)/limits, (kept-live)/limits, (compiled-live)/limits)
	require.LessOrEqual(t, total-allocated, int64(150*limits))
	require.LessOrEqual(t, compiled-live, int64(40*limits))
	runtime.KeepAlive(policy)
}

// Policies with many limits are read one after the other. Others do not wait for them.
func TestLargePlansWait(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	givePlans(t, d, a, 3, 1000, 7)
	givePlans(t, d, b, 3, 10, 7)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	next := tenants.HoldLargePlans(d.Store)
	waits := make(chan error, 1)
	go func() {
		_, err := d.Store.LoadPolicy(ctx, a.TenantID())
		waits <- err
	}()
	_, err := d.Store.LoadPolicy(ctx, b.TenantID())
	require.NoError(t, err)
	soon, cancelSoon := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelSoon()
	_, err = d.Store.LoadPolicy(soon, a.TenantID())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, waits)
	next()
	require.NoError(t, <-waits)
}
