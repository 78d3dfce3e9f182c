package tenants_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// withOverridesAndCredits gives a subject overrides for so many new rules, and three grants for
// each. One of the three has expired.
func withOverridesAndCredits(t *testing.T, d *tenantstest.Database, a tenants.Actor, subject string, rules int) {
	t.Helper()
	mustSubject(t, d.Store, a, tenants.Subject{Subject: subject})
	const each = "FROM rules, generate_series(1, 3) g WHERE tenant_id = $1 AND slug LIKE $2 || '-%'"
	d.Exec(`INSERT INTO rules (tenant_id, id, slug, resource, algorithm, limit_units, window_text, window_ms, by_values, mode, on_unavailable, version)
		SELECT $1, gen_random_uuid(), $2 || '-' || n, '*', 'fixed_window', 10, '1m', 60000, '{subject}', 'enforce', 'local', 1
		FROM generate_series(1, $3::int) n`, a.TenantID(), subject, rules)
	d.Exec("INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, version) SELECT $1, $2, id, g, 1 "+each+" AND g = 1", a.TenantID(), subject)
	d.Exec(`INSERT INTO credit_grants (tenant_id, id, subject, rule_id, units, expires_at, created_at)
		SELECT $1, gen_random_uuid(), $2, id, g, now() + (g - 1) * interval '1 hour', now() `+each, a.TenantID(), subject)
	d.Exec("UPDATE subjects SET has_credits = true WHERE tenant_id = $1 AND subject = $2", a.TenantID(), subject)
}

// A page of subjects, and their changes, read the credits of a subject once, however many overrides
// it has. They were read once for each override: 5000 grants and 1000 overrides of one subject took
// more time than a page may take, and no instance could load the tenant.
func TestSubjectsReadTheirCreditsOnce(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	withOverridesAndCredits(t, d, a, "ada", 50)
	mustSubject(t, d.Store, a, tenants.Subject{Subject: "bob"})
	withOverridesAndCredits(t, d, a, "eve", 20)
	d.Exec("DELETE FROM overrides WHERE subject = 'eve'")
	requireLoaded := func(read func(each func(check.SubjectData)) error) {
		t.Helper()
		var names []string
		require.NoError(t, read(func(s check.SubjectData) {
			names = append(names, s.Subject)
			rules := map[string]int64{}
			for _, g := range s.Grants {
				rules[g.Rule] += g.Units
			}
			switch s.Subject {
			case "ada":
				require.Len(t, s.Overrides, 50)
				require.Len(t, rules, 50)
			case "bob":
				require.Empty(t, s.Overrides)
				require.Empty(t, s.Grants)
			case "eve":
				require.Empty(t, s.Overrides)
				require.Len(t, rules, 20)
			}
			for rule, units := range rules {
				require.EqualValues(t, 2+3, units, rule)
				require.Contains(t, rule, s.Subject)
			}
		}))
		require.Equal(t, []string{"ada", "bob", "eve"}, names)
	}
	requireLoaded(func(each func(check.SubjectData)) error {
		_, _, err := d.Store.ListSubjects(t.Context(), a.TenantID(), "", each)
		return err
	})
	requireLoaded(func(each func(check.SubjectData)) error {
		_, err := d.Store.LoadSubjects(t.Context(), a.TenantID(), 0, each)
		return err
	})
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		require.EqualValues(t, 2, creditReads(t, d, mode, tenants.SubjectPageSQL, a.TenantID(), "", "z", 10_000), "of ada and eve, %s", mode)
		require.EqualValues(t, 2, creditReads(t, d, mode, tenants.NamedSubjectsSQL, a.TenantID(), []string{"ada", "bob", "eve"}), "of ada and eve, %s", mode)
	}
}

// creditReads returns how often a query looks for credits.
func creditReads(t *testing.T, d *tenantstest.Database, mode, sql string, args ...any) (loops float64) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "SET plan_cache_mode = "+mode)
		require.NoError(t, err)
		var raw []byte
		require.NoError(t, conn.QueryRow(ctx, "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&raw))
		var plans []struct{ Plan map[string]any }
		require.NoError(t, json.Unmarshal(raw, &plans))
		eachNode(plans[0].Plan, func(node map[string]any) {
			if node["Relation Name"] == "credit_grants" {
				n, _ := node["Actual Loops"].(float64)
				loops += n
			}
		})
	})
	return loops
}
