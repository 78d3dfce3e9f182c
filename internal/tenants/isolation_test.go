package tenants_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// Every table of tenants must have row-level security. A new one without it fails here.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		list := func(query string) []string {
			rows, err := conn.Query(ctx, query)
			require.NoError(t, err)
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			return names
		}
		// A table belongs to tenants if it has the column, or is the table of tenants.
		const fenced = `WITH fenced AS (
			SELECT c.oid, c.relname, c.relrowsecurity, c.relforcerowsecurity, a.attnotnull, a.attnum
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
				AND a.attname = CASE WHEN c.relname = 'tenants' THEN 'id' ELSE 'tenant_id' END
			WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')) `
		require.Subset(t, list(fenced+"SELECT relname FROM fenced"), []string{
			"tenants", "api_keys", "rules", "routes", "plans", "plan_limits", "subjects", "overrides", "subject_tombstones", "members", "idempotency_keys", "invitations",
			"plan_versions", "plan_version_limits", "plan_migrations", "quota_notices", "billing_endpoints", "billing_prices", "billing_customers", "billing_subscriptions", "billing_events", "billing_payments", "billing_notices", "billing_days",
			"security_events", "security_settings", "portals", "portal_links", "portal_sessions", "limit_requests", "credit_grants", "notification_endpoints", "notifications", "notification_deliveries",
			"metered_usage", "metered_totals", "metered_pushes", "metered_push_problems", "ended_meters",
		}, "tables that belong to tenants")
		require.Empty(t, list(fenced+`SELECT relname FROM fenced
			WHERE NOT (attnotnull AND relrowsecurity AND relforcerowsecurity)`), "not null, enabled and forced")
		require.Empty(t, list(fenced+`SELECT relname FROM fenced WHERE NOT EXISTS (
			SELECT FROM pg_policies p WHERE p.tablename = relname AND p.roles = '{weir_app}' AND p.cmd = 'ALL'
			AND p.qual LIKE '%NULLIF(current_setting(''weir.tenant_id''::text, true), ''''::text))::uuid%' AND p.with_check = p.qual)`),
			"a policy for the tenant, for reading and writing")
		require.Empty(t, list(fenced+`SELECT relname || ': ' || p.policyname FROM fenced JOIN pg_policies p ON p.tablename = relname
			WHERE p.roles NOT IN ('{weir_app}', '{weir_system}') OR p.permissive <> 'PERMISSIVE'`), "policies for other roles")
		require.Empty(t, list(fenced+`SELECT relname || ': ' || i.indexrelid::regclass::text FROM fenced f JOIN pg_index i ON i.indrelid = f.oid
			WHERE i.indisunique AND i.indkey[0] <> f.attnum AND i.indexrelid::regclass::text NOT IN ('api_keys_hash', 'tenants_slug_key')`),
			"unique values that do not begin with the tenant")
		require.Empty(t, list(fenced+`SELECT f.relname || ': ' || k.conname FROM fenced f JOIN pg_constraint k ON k.conrelid = f.oid
			JOIN fenced other ON other.oid = k.confrelid
			WHERE k.contype = 'f' AND NOT (k.conkey[1] = f.attnum AND k.confkey[1] = other.attnum)`),
			"references between tenants' rows that do not begin with the tenant")
		require.Empty(t, list(`SELECT relname FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE r.rolname IN ('weir_app', 'weir_system')`))
		require.Empty(t, list(`SELECT rolname FROM pg_roles WHERE rolname IN ('weir_app', 'weir_system')
			AND (rolcanlogin OR rolsuper OR rolbypassrls OR rolcreatedb OR rolcreaterole)`))
		require.Empty(t, list(`SELECT proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'public' AND prosecdef`))
		require.Empty(t, list(`SELECT table_name FROM information_schema.role_table_grants WHERE grantee = 'weir_app'
			AND table_name IN ('deployment_secrets', 'people', 'deleted_tenants')`))
	})
}

// asRole runs fn as one of the server's roles, in a transaction that is rolled back.
func asRole(t *testing.T, d *tenantstest.Database, role string, fn func(ctx context.Context, tx pgx.Tx)) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "SET LOCAL ROLE "+role)
		require.NoError(t, err)
		fn(ctx, tx)
		require.NoError(t, tx.Rollback(ctx))
	})
}

// If a query omitted the tenant, the database would return nothing and accept nothing.
func TestRowSecurity(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, s, actor, rule("r"))
		mustRoute(t, s, actor, byHeader("edge"))
		mustPlan(t, s, actor, "free")
		_, _, err := s.PutPlanLimit(t.Context(), actor, "free", "r", limit.Limit{Limit: 1}, tenants.Match{})
		require.NoError(t, err)
		_, _, err = s.PutOverride(t.Context(), actor, "alice", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 1}}, tenants.Match{})
		require.NoError(t, err)
		mustSubject(t, s, actor, tenants.Subject{Subject: "bob"})
		require.NoError(t, s.DeleteSubject(t.Context(), actor, "bob", tenants.Match{}))
		_, err = s.InviteMember(t.Context(), actor, "someone@example.com", tenants.Owner)
		require.NoError(t, err)
		_, err = s.Idempotent(t.Context(), actor, "key", [32]byte{1}, answers(200, nil))
		require.NoError(t, err)
	}
	tables := []string{"api_keys", "rules", "routes", "plans", "plan_limits", "subjects", "overrides", "subject_tombstones", "members", "idempotency_keys", "invitations"}
	count := func(ctx context.Context, tx pgx.Tx, table string) (n int) {
		require.NoError(t, tx.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n))
		return n
	}
	setTenant := func(ctx context.Context, tx pgx.Tx, tenant string) {
		_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", tenant)
		require.NoError(t, err)
	}
	asRole(t, d, "weir_app", func(ctx context.Context, tx pgx.Tx) {
		for _, table := range append(tables, "tenants") {
			require.Zero(t, count(ctx, tx, table), "%s without a tenant", table)
		}
		setTenant(ctx, tx, "")
		for _, table := range append(tables, "tenants") {
			require.Zero(t, count(ctx, tx, table), "%s with an empty tenant", table)
		}
		setTenant(ctx, tx, a.TenantID().String())
		for _, table := range append(tables, "tenants") {
			require.Equal(t, 1, count(ctx, tx, table), "%s of one tenant", table)
		}
		for _, table := range tables {
			tag, err := tx.Exec(ctx, "SELECT FROM "+table+" WHERE tenant_id = $1", b.TenantID())
			require.NoError(t, err)
			require.Zero(t, tag.RowsAffected(), table)
		}
		for _, table := range []string{"rules", "routes", "plans", "subjects", "overrides", "plan_limits", "members"} {
			tag, err := tx.Exec(ctx, "DELETE FROM "+table+" WHERE tenant_id = $1", b.TenantID())
			require.NoError(t, err)
			require.Zero(t, tag.RowsAffected(), "deleting another tenant's %s", table)
		}
	})
	refused := func(code, role, statement string, args ...any) {
		t.Helper()
		asRole(t, d, role, func(ctx context.Context, tx pgx.Tx) {
			setTenant(ctx, tx, a.TenantID().String())
			_, err := tx.Exec(ctx, statement, args...)
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr, statement)
			require.Equal(t, code, pgErr.Code, "%s: %v", statement, err)
		})
	}
	const denied = "42501" // by a grant or a policy
	refused(denied, "weir_app", "UPDATE rules SET tenant_id = $1", b.TenantID())
	refused(denied, "weir_app", "UPDATE tenants SET id = $1", b.TenantID())
	refused(denied, "weir_app", "INSERT INTO plans (tenant_id, id, slug, version) VALUES ($1, gen_random_uuid(), 'x', 1)", b.TenantID())
	// Another tenant's row, by its real id.
	refused("23503", "weir_app", "UPDATE subjects SET plan_id = $1", planID(t, d, b))
	refused(denied, "weir_app", "UPDATE tenants SET state = 'active'")
	refused(denied, "weir_app", "UPDATE tenants SET slug = 'platform'")
	refused(denied, "weir_app", "DELETE FROM api_keys")
	refused(denied, "weir_app", "SELECT * FROM deployment_secrets")
	refused(denied, "weir_app", "SELECT * FROM people")
	refused(denied, "weir_app", "SELECT id FROM sessions")
	refused(denied, "weir_system", "UPDATE sessions SET person_id = gen_random_uuid()")
	refused(denied, "weir_app", "CREATE TABLE mine (n int)")
	refused(denied, "weir_app", "ALTER TABLE rules DISABLE ROW LEVEL SECURITY")
	refused(denied, "weir_app", "TRUNCATE rules")
	refused(denied, "weir_system", "UPDATE rules SET limit_units = 1")
	refused(denied, "weir_system", "UPDATE routes SET fail = 'open'")
	refused(denied, "weir_system", "INSERT INTO api_keys (tenant_id) VALUES ($1)", b.TenantID())
	refused(denied, "weir_system", "UPDATE api_keys SET revoked_at = NULL")
	refused(denied, "weir_system", "SELECT labels FROM subjects")
	refused(denied, "weir_system", "SELECT body FROM idempotency_keys")
}

func planID(t *testing.T, d *tenantstest.Database, a tenants.Actor) (id string) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT id FROM plans WHERE tenant_id = $1", a.TenantID()).Scan(&id))
	})
	return id
}

// In production, a server logs in as a member of only the two roles.
func TestPlainLogin(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Open(tenants.Config{DatabaseURL: loginURL(t, d)})
	mustRule(t, s, a, rule("r"))
	require.Len(t, policyOf(t, s, a.TenantID()).Rules, 1)
	_, _, _, err := s.CreateTenant(t.Context(), operator, tenants.NewTenant{Slug: "another"})
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context()))
	_, err = s.Secrets(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
}

// The database enforces all ranges: each row here bypasses the validation of the store.
func TestDatabaseConstraints(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRule(t, d.Store, a, rule("r"))
	mustPlan(t, d.Store, a, "free")
	mustPlan(t, d.Store, a, "pro")
	mustSubject(t, d.Store, a, tenants.Subject{Subject: "alice"})
	_, _, err := d.Store.PutOverride(t.Context(), a, "alice", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 1}}, tenants.Match{})
	require.NoError(t, err)
	for _, statement := range []string{
		"UPDATE rules SET slug = 'A'", "UPDATE rules SET slug = E'a\\nb'", "UPDATE rules SET resource = 'a*b'", "UPDATE rules SET resource = ''",
		"UPDATE rules SET algorithm = 'guess'", "UPDATE rules SET limit_units = 0", "UPDATE rules SET limit_units = 1000000001",
		"UPDATE rules SET algorithm = 'sliding_window_log', limit_units = 10001", "UPDATE rules SET window_ms = 999",
		"UPDATE rules SET window_ms = 31622400001", "UPDATE rules SET window_ms = NULL, window_text = 'day'",
		"UPDATE rules SET window_text = 'day'", "UPDATE rules SET limit_units = 1, burst_units = 1000000000, window_ms = 31622400000",
		"UPDATE rules SET burst_units = 0", "UPDATE rules SET algorithm = 'fixed_window', burst_units = 5",
		"UPDATE rules SET precision_ms = 1000, precision_text = '1s'", "UPDATE rules SET algorithm = 'sliding_window_buckets'",
		"UPDATE rules SET algorithm = 'sliding_window_buckets', precision_ms = 7000, precision_text = '7s'",
		"UPDATE rules SET algorithm = 'sliding_window_buckets', precision_ms = 100, precision_text = '100ms'",
		"UPDATE rules SET by_values = '{tenant}'", "UPDATE rules SET by_values = '{\"subject,resource\",NULL}'", "UPDATE rules SET by_values = '{\"\"}'",
		"UPDATE rules SET mode = 'maybe'", "UPDATE rules SET on_unavailable = 'maybe'", "UPDATE rules SET penalty_ms = 2592000001, penalty_text = '31d'",
		"UPDATE rules SET penalty_ms = 5", "UPDATE rules SET consistency = 'loose'",
		"UPDATE rules SET consistency = 'leased', penalty_ms = 1000, penalty_text = '1s'", "UPDATE rules SET consistency = 'leased', algorithm = 'sliding_window_log', limit_units = 5",
		"UPDATE rules SET consistency = 'leased', algorithm = 'leaky_bucket_queue'",
		"UPDATE plans SET is_default = true", "UPDATE plans SET slug = 'same'",
		"UPDATE subjects SET state = 'odd'", "UPDATE subjects SET labels = '[]'", "UPDATE subjects SET subject = repeat('x', 257)",
		"UPDATE overrides SET unlimited = true", "UPDATE overrides SET limit_units = NULL", "UPDATE overrides SET limit_units = 0",
		"UPDATE overrides SET starts_at = now(), expires_at = now()", "UPDATE overrides SET expires_at = '10000-01-01 00:00:00+00'",
		"UPDATE overrides SET reason = repeat('x', 501)",
		"UPDATE tenants SET state = 'odd'", "UPDATE tenants SET slug = 'same'", "UPDATE tenants SET slug = 'a b'",
		"UPDATE api_keys SET scopes = '{}'", "UPDATE api_keys SET scopes = '{root}'", "UPDATE api_keys SET kind = 'root'",
		"INSERT INTO config_version DEFAULT VALUES", "INSERT INTO config_version (singleton) VALUES (false)",
	} {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, statement)
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr, statement)
			require.Equal(t, "23", pgErr.Code[:2], "%s: %v", statement, err)
		})
	}
}
