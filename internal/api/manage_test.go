package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// managedTables are what only a key with the scope manage may change: API keys, members and their
// invitations, billing, notification endpoints and the security settings.
var managedTables = []string{
	"api_keys", "members", "invitations", "billing_endpoints", "billing_prices", "billing_customers", "billing_subscriptions", "billing_events", "billing_payments", "billing_days",
	"notification_endpoints", "security_settings",
}

// otherTables are what a key with the scope write may change, directly or as a consequence.
var otherTables = []string{
	"rules", "plans", "plan_limits", "plan_versions", "plan_version_limits", "plan_migrations", "subjects", "subject_labels", "overrides", "subject_tombstones",
	"routes", "portals", "portal_links", "portal_sessions", "limit_requests", "credit_grants", "idempotency_keys", "audit", "audit_heads", "security_events",
	"notifications", "notification_deliveries", "counter_changes", "counter_change_limits", "counter_change_own_limits", "quota_notices", "tier_notices", "billing_notices",
	"usage_minutes", "usage_hours", "usage_days", "usage_subjects", "metered_usage", "metered_totals", "metered_pushes", "metered_push_problems", "ended_meters",
}

// managedRows returns the contents of managedTables, except for when a key was last used.
func (s *adminStack) managedRows() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for _, table := range managedTables {
			var rows string
			require.NoError(s.t, conn.QueryRow(ctx, `SELECT coalesce(string_agg(r::text, e'\n' ORDER BY r::text), '')
				FROM (SELECT to_jsonb(t) - 'last_used_at' AS r FROM `+pgx.Identifier{table}.Sanitize()+` t) rows`).Scan(&rows))
			out[table] = rows
		}
	})
	return out
}

// A key with all scopes but manage changes no API key, member, invitation, billing, notification
// endpoint or security setting, through any operation. Operations that refuse it need no scope but
// manage. A new operation has its case in adminCases, and a new table is in one of the two lists.
func TestManageIsNeeded(t *testing.T) {
	s := newAdminStack(t)
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition`)
		require.NoError(t, err)
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.ElementsMatch(t, slices.Concat(managedTables, otherTables), tables)
	})
	scopes := func(without tenants.Scope) []tenants.Scope {
		return slices.DeleteFunc(slices.Clone(tenants.AllScopes), func(scope tenants.Scope) bool { return scope == without })
	}
	rest := s.newKey(tenants.NewAPIKey{Name: "rest", Scopes: scopes(tenants.ScopeManage)})
	manager := s.newKey(tenants.NewAPIKey{Name: "manager", Scopes: scopes(tenants.ScopeWrite)})
	managed := 0
	for id, op := range s.operations() {
		c := adminCases[id]
		if op.method == http.MethodGet || c.pure || c.asks || strings.HasPrefix(op.path, "/v1/tenants") {
			continue
		}
		t.Run(id, func(t *testing.T) {
			s := s.in(t)
			path := s.prepare(id).Replace(c.path)
			call := func(key string) answer {
				if c.as != "" {
					return s.call(key, op.method, path, c.body, header{"Content-Type", c.as})
				}
				return s.call(key, op.method, path, c.body)
			}
			before := s.managedRows()
			got := call(rest)
			require.Equal(t, before, s.managedRows(), "changed without the scope manage")
			if got.status != http.StatusForbidden {
				got.ok(c.status)
				return
			}
			require.Contains(t, got.problem(http.StatusForbidden, codeInsufficientScope).Detail, `"manage"`)
			managed++
			if done := call(manager); done.status != http.StatusForbidden {
				done.ok(c.status)
			} else { // it would give more than it has
				done.problem(http.StatusForbidden, codeGrantExceeded)
			}
		})
	}
	require.Greater(t, managed, 15)
}

// A document needs the scope manage if it changes billing, and only then.
func TestDocumentNeedsManageForBilling(t *testing.T) {
	s := newAdminStack(t)
	fill := s.prepare("get-billing-endpoint")
	rest := s.newKey(tenants.NewAPIKey{Name: "rest", Scopes: []tenants.Scope{tenants.ScopeRead, tenants.ScopeWrite}})
	before := s.managedRows()
	for _, body := range []string{
		`{"billing_endpoints":[{"id":"{endpoint}","provider":"stripe","name":"Renamed"}]}`,
		`{"billing_prices":[{"id":"price_new","endpoint":"{endpoint}","plan":"{plan}"}]}`,
		`{"billing_prices":[{"id":"{price}","endpoint":"{endpoint}","plan":"{plan}","priority":7}]}`,
	} {
		for _, query := range []string{"", "?dry_run=true"} {
			s.call(rest, http.MethodPut, "/v1/config"+query, fill.Replace(body)).problem(http.StatusForbidden, codeInsufficientScope)
		}
	}
	s.call(rest, http.MethodPut, "/v1/config?prune=true", `{"billing_prices":[]}`).problem(http.StatusForbidden, codeInsufficientScope)
	require.Equal(t, before, s.managedRows())
	s.call(rest, http.MethodPut, "/v1/config", fill.Replace(`{"billing_prices":[{"id":"{price}","endpoint":"{endpoint}","plan":"{plan}"}],"tenant":{"name":"Same"}}`)).ok(200)
	require.Equal(t, before, s.managedRows())
}
