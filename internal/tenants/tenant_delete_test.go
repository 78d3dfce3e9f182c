package tenants_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// referring lists the tables with a reference to a tenant, directly or through other tables.
const referring = `WITH RECURSIVE referring AS (
		SELECT 'tenants'::regclass::oid AS oid
		UNION SELECT k.conrelid FROM pg_constraint k JOIN referring r ON k.confrelid = r.oid
		WHERE k.contype = 'f' AND k.conrelid NOT IN ('people'::regclass, 'sessions'::regclass))
	SELECT oid::regclass::text FROM referring WHERE oid <> 'tenants'::regclass ORDER BY 1`

// everyRow inserts a row into each of those tables that fill does not. $1 is the tenant, $2 the id
// of its endpoint and of its other rows, $3 a plan and $4 a rule.
const everyRow = `
INSERT INTO billing_endpoints (tenant_id, id, provider, signing_secrets, signing_secret_hints, subject_from, grace_days, fallback_plan_id, created_at, updated_at, version)
	VALUES ($1, $2, 'stripe', '', '{}', 'customer', 7, $3, now(), now(), 1);
INSERT INTO billing_prices (tenant_id, price, id, endpoint_id, plan_id, multiply, priority, created_at, updated_at, version)
	VALUES ($1, 'price_plan', $2, $2, $3, false, 0, now(), now(), 1);
INSERT INTO billing_prices (tenant_id, price, id, endpoint_id, rule_id, units, multiply, priority, created_at, updated_at, version)
	VALUES ($1, 'price_credits', gen_random_uuid(), $2, $4, 1, false, 0, now(), now(), 1);
INSERT INTO billing_customers (tenant_id, endpoint_id, customer, facts) VALUES ($1, $2, 'cus_1', '{}');
INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, state, updated_at) VALUES ($1, $2, 'sub_1', '{}', now());
INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body) VALUES ($1, $2, $2, 'evt_1', 'x', now(), now(), '');
INSERT INTO billing_payments (tenant_id, endpoint_id, payment) VALUES ($1, $2, 'pi_1');
INSERT INTO billing_notices (tenant_id, endpoint_id, sent_at) VALUES ($1, $2, now());
INSERT INTO billing_days (tenant_id, day, events, bytes) VALUES ($1, '2026-01-01', 1, 1);
INSERT INTO counter_changes (tenant_id, subject, action, from_plan, to_plan) VALUES ($1, 'alice', 'reset', 'free', 'pro');
INSERT INTO counter_change_limits (tenant_id, plan_id, number, plan_version, rule_ids, limit_units, burst_units, overages) VALUES ($1, $3, 1, 1, '{}', '{}', '{}', '{}');
INSERT INTO counter_change_own_limits (tenant_id, rule_id, until, limit_units) VALUES ($1, $4, 1, 1);
INSERT INTO credit_grants (tenant_id, id, subject, rule_id, units, created_at) VALUES ($1, $2, 'alice', $4, 1, now());
INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
	VALUES ($1, 'key', sha256(''), 'in_progress', $2, now(), now());
INSERT INTO limit_requests (tenant_id, id, subject, rule_id, had, asked, note, state, created_at) VALUES ($1, $2, 'alice', $4, 1, 2, '', 'open', now());
UPDATE rules SET metering = 'units', meter_event = 'm' WHERE tenant_id = $1 AND id = $4;
INSERT INTO ended_meters (tenant_id, rule, until, meter_event, kind) VALUES ($1, 'r', now(), 'm', 'units');
INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind) VALUES ($1, $2, now(), 'r', 'm', 'units');
INSERT INTO metered_push_problems (tenant_id, push_id, subject, units, outcome, why) VALUES ($1, $2, 'alice', 1, 'parked', '');
INSERT INTO notification_endpoints (tenant_id, id, url, types, enabled, secrets, secret_hint, created_at, updated_at, version)
	VALUES ($1, $2, 'https://example.com', '{}', true, '', '', now(), now(), 1);
INSERT INTO notifications (tenant_id, id, type, body, created_at) VALUES ($1, $2, 'x', '{}', now());
INSERT INTO notification_deliveries (tenant_id, id, endpoint_id, notification_id, state, began_at, due_at, created_at) VALUES ($1, $2, $2, $2, 'pending', now(), now(), now());
INSERT INTO plan_migrations (tenant_id, id, plan_id, to_plan_id, starts_at, at_cycle_end, state, subjects, created_by) VALUES ($1, $2, $3, $3, now(), false, 'scheduled', 1, 'x');
INSERT INTO plan_versions (tenant_id, plan_id, number, published_at) VALUES ($1, $3, 7, now());
INSERT INTO plan_version_limits (tenant_id, plan_id, number, rule_id, limit_units) VALUES ($1, $3, 7, $4, 1);
INSERT INTO portals (tenant_id, brand, accent, frame_origins, offered_plans, requests, auto_percent, auto_for_text, auto_for_ms, auto_every_text, auto_every_ms, version)
	VALUES ($1, '', '', '{}', '{}', true, 0, '1d', 86400000, '30d', 2592000000, 1);
INSERT INTO portal_links (tenant_id, id, subject, token_hash, single_use, created_by, created_at, expires_at) VALUES ($1, $2, 'alice', sha256('a'), true, 'x', now(), now());
INSERT INTO portal_sessions (tenant_id, id, link_id, token_hash, created_at, expires_at) VALUES ($1, $2, $2, sha256('b'), now(), now());
INSERT INTO quota_notices (tenant_id, rule, window_end, percent, used, quota) VALUES ($1, 'r', now(), 80, 8, 10);
INSERT INTO security_events (tenant_id, id, at, kind, actor_kind, actor_name, address, user_agent, request_id, target) VALUES ($1, $2, now(), 'x', 'x', '', '', '', '', '');
INSERT INTO security_settings (tenant_id, session_idle_text, session_idle_ms, session_life_text, session_life_ms, max_sessions, confirm_after_text, confirm_after_ms, event_retention_text, event_retention_ms, version)
	VALUES ($1, '5m', 300000, '1h', 3600000, 1, '1m', 60000, '30d', 2592000000, 1);
INSERT INTO tier_notices (tenant_id, tier, created_at) VALUES ($1, 'free', now());`

// fill gives a tenant a row in every table that refers to it.
func fill(t *testing.T, d *tenantstest.Database, a tenants.Actor) {
	t.Helper()
	s, ctx := d.Store, t.Context()
	r := mustRule(t, s, a, rule("r"))
	plan := mustPlan(t, s, a, "free")
	_, err := s.CreatePlan(ctx, a, tenants.Plan{Slug: "pro", OnChange: "scale"})
	require.NoError(t, err)
	_, _, err = s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 1}, tenants.Match{})
	require.NoError(t, err)
	mustRoute(t, s, a, byHeader("edge"))
	mustSubject(t, s, a, tenants.Subject{
		Subject: "alice", Plan: "free", NextPlan: "pro", NextPlanAt: new(time.Now().Add(time.Hour)), Labels: map[string]string{"region": "eu"},
	})
	mustSubject(t, s, a, tenants.Subject{Subject: "bob"})
	require.NoError(t, s.DeleteSubject(ctx, a, "bob", tenants.Match{}))
	_, _, err = s.PutOverride(ctx, a, "alice", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 1}}, tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, second(s.InviteMember(ctx, a, "someone@example.com", tenants.Owner)))
	keys, _, err := s.Keys(ctx, a, tenants.Page{})
	require.NoError(t, err)
	_, _, err = s.RotateKey(ctx, a, keys[0].ID, time.Hour)
	require.NoError(t, err)
	d.Exec(strings.NewReplacer("$1", quoted(a.TenantID()), "$2", quoted(uuid.New()), "$3", quoted(plan.ID), "$4", quoted(r.ID)).Replace(everyRow))
}

func quoted(id uuid.UUID) string { return "'" + id.String() + "'" }

// A tenant can be deleted whatever it has: a row in every table, in either order of two tenants
// whose plans reset counters.
func TestDeleteTenantWithEverything(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	fill(t, d, a)
	fill(t, d, b)
	requireRows := func(of tenants.Actor, want bool) {
		t.Helper()
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			rows, err := conn.Query(ctx, referring)
			require.NoError(t, err)
			tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.Greater(t, len(tables), 30)
			for _, table := range tables {
				var has bool
				require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table+" WHERE tenant_id = $1)", of.TenantID()).Scan(&has))
				require.Equal(t, want, has, "the tenant has a row in %s: add one to fill", table)
			}
		})
	}
	requireRows(a, true)
	for _, one := range []tenants.Actor{a, b} {
		requireRows(one, true)
		require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, one.TenantID().String(), tenants.Match{}))
		require.NoError(t, second(d.Store.DeleteTenantRows(t.Context())))
		requireRows(one, false)
	}
}
