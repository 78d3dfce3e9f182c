package tenants_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

const (
	pageRows = 10   // of a page in these tests
	manyRows = "25" // of each kind that a tenant has
)

// large insert $n rows for the tenant $1 with the rows of fill: into each table that may have very
// many. $2 is the id of its endpoint, $3 a plan and $4 a rule.
const large = `
INSERT INTO subjects (tenant_id, subject, id, plan_id, labels, version) SELECT $1, 's' || n, gen_random_uuid(), $3, '{"region": "eu"}', 1 FROM generate_series(1, $n) n;
INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, version) SELECT $1, 's' || n, $4, 1, 1 FROM generate_series(1, $n) n;
INSERT INTO subject_tombstones (tenant_id, subject, version) SELECT $1, 't' || n, 1 FROM generate_series(1, $n) n;
INSERT INTO credit_grants (tenant_id, id, subject, rule_id, units, created_at) SELECT $1, gen_random_uuid(), 's' || n, $4, 1, now() FROM generate_series(1, $n) n;
INSERT INTO counter_changes (tenant_id, subject, action, from_plan, to_plan) SELECT $1, 's' || n, 'reset', 'free', 'pro' FROM generate_series(1, $n) n;
INSERT INTO counter_change_limits (tenant_id, plan_id, number, plan_version, rule_ids, limit_units, burst_units, overages) SELECT $1, gen_random_uuid(), 1, 1, '{}', '{}', '{}', '{}' FROM generate_series(1, $n) n;
INSERT INTO counter_change_own_limits (tenant_id, rule_id, until, limit_units) SELECT $1, gen_random_uuid(), 1, 1 FROM generate_series(1, $n) n;
INSERT INTO limit_requests (tenant_id, id, subject, rule_id, had, asked, note, state, created_at)
	SELECT $1, gen_random_uuid(), 's' || n, $4, 1, 2, '', 'open', now() FROM generate_series(1, $n) n;
INSERT INTO portal_links (tenant_id, id, subject, token_hash, single_use, created_by, created_at, expires_at)
	SELECT $1, gen_random_uuid(), 's' || n, sha256(n::text::bytea), true, 'x', now(), now() FROM generate_series(1, $n) n;
INSERT INTO portal_sessions (tenant_id, id, link_id, token_hash, created_at, expires_at)
	SELECT $1, gen_random_uuid(), l.id, sha256(n::text::bytea), now(), now() FROM generate_series(1, $n) n, (SELECT id FROM portal_links WHERE tenant_id = $1 LIMIT 1) l;
INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, due_at)
	SELECT $1, gen_random_uuid(), $2, 'evt' || n, 'x', now(), now(), '', now() FROM generate_series(1, $n) n;
INSERT INTO billing_payments (tenant_id, endpoint_id, payment) SELECT $1, $2, 'pi' || n FROM generate_series(1, $n) n;
INSERT INTO billing_customers (tenant_id, endpoint_id, customer, facts) SELECT $1, $2, 'cus' || n, '{}' FROM generate_series(1, $n) n;
INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, state, updated_at, due_at)
	SELECT $1, $2, 'sub' || n, '{}', now(), now() FROM generate_series(1, $n) n;
INSERT INTO billing_prices (tenant_id, price, id, endpoint_id, plan_id, multiply, priority, created_at, updated_at, version)
	SELECT $1, 'price' || n, gen_random_uuid(), $2, $3, false, 0, now(), now(), 1 FROM generate_series(1, $n) n;
INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
	SELECT $1, 'key' || n, sha256(''), 'in_progress', $2, now(), now() FROM generate_series(1, $n) n;
INSERT INTO notifications (tenant_id, id, type, body, created_at) SELECT $1, gen_random_uuid(), 'x', '{}', now() FROM generate_series(1, $n) n;
INSERT INTO notification_deliveries (tenant_id, id, endpoint_id, notification_id, state, began_at, due_at, created_at)
	SELECT $1, gen_random_uuid(), $2, $2, 'pending', now(), now(), now() FROM generate_series(1, $n) n;
INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind, due_at)
	SELECT $1, gen_random_uuid(), now(), 'r' || n, 'm', 'units', now() FROM generate_series(1, $n) n;
INSERT INTO metered_push_problems (tenant_id, push_id, subject, units, outcome, why) SELECT $1, $2, 's' || n, 1, 'parked', '' FROM generate_series(1, $n) n;
INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind) SELECT $1, 'r' || n, '2020-01-01', 'm', 'units' FROM generate_series(1, $n) n;
INSERT INTO quota_notices (tenant_id, rule, window_end, percent, used, quota) SELECT $1, 'r' || n, now(), 80, 8, 10 FROM generate_series(1, $n) n;
INSERT INTO plan_migrations (tenant_id, id, plan_id, to_plan_id, starts_at, at_cycle_end, state, subjects, created_by, ended_at)
	SELECT $1, gen_random_uuid(), $3, $3, now(), false, 'done', 1, 'x', now() FROM generate_series(1, $n) n;
INSERT INTO plan_versions (tenant_id, plan_id, number, published_at) SELECT $1, $3, 100 + n, now() FROM generate_series(1, $n) n;
INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units) SELECT $1, $3, 100 + n, $4, 1 FROM generate_series(1, $n) n;
INSERT INTO security_events (tenant_id, id, at, kind, actor_kind, actor_name, address, user_agent, request_id, target)
	SELECT $1, gen_random_uuid(), now(), 'x', 'x', '', '', '', '', '' FROM generate_series(1, $n) n;
INSERT INTO audit (tenant_id, sequence, id, at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target, reason, hash)
	SELECT $1, 1000 + n, gen_random_uuid(), now(), 'x', '', '', '', '', 'x', 'x', '', '', sha256('') FROM generate_series(1, $n) n;
INSERT INTO usage_hours (tenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
	SELECT $1, date_trunc('hour', now()), 'r' || n, '', '', 1, 0, 0, 0, 1, 0 FROM generate_series(1, $n) n;`

// fillMany gives a tenant a row in each table, and many in those that may have very many.
func fillMany(t *testing.T, d *tenantstest.Database, a tenants.Actor) {
	t.Helper()
	fill(t, d, a)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var endpoint, plan, rule uuid.UUID
		require.NoError(t, conn.QueryRow(ctx, `SELECT e.id, p.id, r.id FROM billing_endpoints e, plans p, rules r
			WHERE e.tenant_id = $1 AND p.tenant_id = $1 AND p.slug = 'free' AND r.tenant_id = $1`, a.TenantID()).Scan(&endpoint, &plan, &rule))
		_, err := conn.Exec(ctx, strings.NewReplacer("$1", quoted(a.TenantID()), "$2", quoted(endpoint), "$3", quoted(plan), "$4", quoted(rule), "$n", manyRows).Replace(large))
		require.NoError(t, err)
	})
}

// boundDeletes lets no statement delete more rows of a table than a page has, nor a cascade.
func boundDeletes(t *testing.T, d *tenantstest.Database) {
	t.Helper()
	d.Exec(fmt.Sprintf(`CREATE FUNCTION bound_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN IF (SELECT count(*) FROM gone) > %d THEN RAISE EXCEPTION 'a statement deletes %% rows of %%', (SELECT count(*) FROM gone), TG_TABLE_NAME; END IF; RETURN NULL; END $$`, pageRows))
	for _, table := range referringTables(t, d) {
		d.Exec(fmt.Sprintf("CREATE TRIGGER bound_deleted AFTER DELETE ON %s REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION bound_deleted()", table))
	}
}

func referringTables(t *testing.T, d *tenantstest.Database) (tables []string) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, referring)
		require.NoError(t, err)
		tables, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Greater(t, len(tables), 30)
	})
	return tables
}

// rowsOf counts the rows of a tenant in each table that refers to tenants; those without are left
// out.
func rowsOf(t *testing.T, d *tenantstest.Database, tenant uuid.UUID) map[string]int {
	t.Helper()
	counts := map[string]int{}
	tables := referringTables(t, d)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for _, table := range tables {
			var n int
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM "+table+" WHERE tenant_id = $1", tenant).Scan(&n))
			if n > 0 {
				counts[table] = n
			}
		}
	})
	return counts
}

// The rows of a deleted tenant are deleted in pages: no statement deletes more of them, not by a
// cascade either. Those of others stay.
func TestDeleteLargeTenant(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	fillMany(t, d, a)
	fillMany(t, d, b)
	others := rowsOf(t, d, b.TenantID())
	boundDeletes(t, d)
	d.Store.SetDeletedPage(pageRows)
	require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
	done, err := d.Store.DeleteTenantRows(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{a.TenantID()}, done)
	require.Empty(t, rowsOf(t, d, a.TenantID()))
	require.Equal(t, others, rowsOf(t, d, b.TenantID()))
	done, err = d.Store.DeleteTenantRows(t.Context())
	require.NoError(t, err)
	require.Empty(t, done, "nothing is left")
}

// fewRows are the tables in which no tenant has many rows.
var fewRows = []string{
	"api_keys", "audit_heads", "billing_days", "billing_endpoints", "billing_notices", "invitations", "members", "notification_endpoints", "plans",
	"portals", "routes", "rules", "security_settings", "tier_notices",
}

// Each table with rows of tenants is deleted in pages, or has few of each.
func TestTablesOfADeletedTenant(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, referringTables(t, tenantstest.New(t)), append(tenants.LargeTables(), fewRows...))
}

// A deletion that ended in the middle is continued by another server, and what cannot be deleted of
// one tenant does not keep those of another.
func TestDeletionOfRowsIsContinued(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	fillMany(t, d, a)
	fillMany(t, d, b)
	d.Store.SetDeletedPage(pageRows)
	for _, slug := range []string{"tenant-a", "tenant-b"} {
		require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, slug, tenants.Match{}))
	}
	// The second page of the subjects of the first tenant fails.
	d.Exec("CREATE TABLE deletions ()")
	d.Exec(fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			IF EXISTS (SELECT FROM gone WHERE tenant_id = '%s') THEN
				IF EXISTS (SELECT FROM deletions) THEN RAISE EXCEPTION 'no more'; END IF;
				INSERT INTO deletions DEFAULT VALUES;
			END IF;
			RETURN NULL;
		END $$`, a.TenantID()))
	d.Exec("CREATE TRIGGER fail AFTER DELETE ON subjects REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION fail()")
	done, err := d.Store.DeleteTenantRows(t.Context())
	require.ErrorContains(t, err, a.TenantID().String())
	require.ErrorContains(t, err, "no more")
	require.Equal(t, []uuid.UUID{b.TenantID()}, done)
	left := rowsOf(t, d, a.TenantID())
	require.Equal(t, 16, left["subjects"], "one page was deleted")
	require.NotContains(t, left, "billing_events")
	require.Contains(t, left, "plan_limits")

	d.Exec("DROP TRIGGER fail ON subjects")
	done, err = d.Open(tenants.Config{}).DeleteTenantRows(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{a.TenantID()}, done)
	require.Empty(t, rowsOf(t, d, a.TenantID()))
}

// While one server deletes rows, others do not.
func TestRowsAreDeletedByOneServer(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	fillMany(t, d, a)
	require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
	before := rowsOf(t, d, a.TenantID())
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", tenants.DeletedLock)
		require.NoError(t, err)
		done, err := d.Store.DeleteTenantRows(t.Context())
		require.NoError(t, err)
		require.Empty(t, done)
	})
	require.Equal(t, before, rowsOf(t, d, a.TenantID()))
}

// Rows that a deleted tenant has still are nobody's: neither its keys, members and slug nor a loop
// over all tenants finds it.
func TestDeletedTenantDoesNotExist(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := tenantstest.New(t)
	s := d.Store
	a, key := d.Tenant("tenant-a")
	fillMany(t, d, a)
	var endpoint uuid.UUID
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT id FROM billing_endpoints").Scan(&endpoint))
	})
	require.NotErrorIs(t, second(s.Webhook(ctx, endpoint)), tenants.ErrNotFound)
	require.NoError(t, s.DeleteTenant(ctx, operator, "tenant-a", tenants.Match{}))
	left := rowsOf(t, d, a.TenantID())
	require.Greater(t, len(left), 30)
	require.NotContains(t, left, "members")
	require.NotContains(t, left, "invitations")

	require.ErrorIs(t, second(tenants.NewAuthenticator(s).Authenticate(ctx, key.Secret())), tenants.ErrUnknownKey)
	require.ErrorIs(t, second(s.Tenant(ctx, a)), tenants.ErrNotFound)
	require.ErrorIs(t, second(s.CreateRule(ctx, a, rule("new"))), tenants.ErrNotFound)
	require.ErrorIs(t, second(s.Webhook(ctx, endpoint)), tenants.ErrNotFound)
	deliveries, err := s.DueDeliveries(ctx, 100)
	require.NoError(t, err)
	require.Empty(t, deliveries)
	list, _, err := s.ListTenants(ctx, operator, tenants.TenantFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, list)
	for _, ref := range []string{"tenant-a", a.TenantID().String()} {
		require.ErrorIs(t, second(s.TenantBySlugOrID(ctx, operator, ref)), tenants.ErrNotFound)
		require.ErrorIs(t, s.DeleteTenant(ctx, operator, ref, tenants.Match{}), tenants.ErrNotFound)
	}
	again, _ := d.Tenant("tenant-a")
	require.NotEqual(t, a.TenantID(), again.TenantID(), "the slug is free")
}

// The loops over the tasks of all tenants pass over those of a deleted tenant, however many are
// left.
func TestTasksOfADeletedTenant(t *testing.T) {
	t.Parallel()
	for name, l := range loops {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, a, b := two(t)
			now := time.Now()
			l.tasks(d, []uuid.UUID{a.TenantID()}, l.most, now.Add(-2*time.Hour).Truncate(time.Hour))
			l.tasks(d, []uuid.UUID{b.TenantID()}, 1, now.Add(-time.Hour).Truncate(time.Hour))
			require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
			of, err := l.step(t.Context(), d.Store)
			require.NoError(t, err)
			require.Equal(t, []uuid.UUID{b.TenantID()}, of)
		})
	}
}
