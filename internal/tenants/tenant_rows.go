package tenants

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// deletedPage is how many rows of a deleted tenant one statement deletes. Each of them is looked up
// in several other tables, so it is less than purgeRows.
const deletedPage = 1000

// tenantTable is a table that may have very many rows of a tenant.
type tenantTable struct {
	role, name string
	key        string // the columns of the primary key behind tenant_id
}

// tenantTables are in the order in which a deleted tenant loses its rows: those that refer to
// others are deleted before them, so that none of these takes many others along. Usage is not among
// them, because its tables refer to nothing (KeepUsage). The role may delete all rows of the table.
var tenantTables = []tenantTable{
	// Loops read those of all tenants in order, and would read these again and again.
	{roleSystem, "credit_grants", "id"},
	{roleApp, "billing_events", "id"},
	{roleSystem, "notification_deliveries", "id"},
	{roleSystem, "counter_changes", "id"},
	{roleSystem, "counter_change_limits", "id"},
	{roleSystem, "counter_change_own_limits", "rule_id, until"},
	{roleSystem, "metered_push_problems", "push_id, subject"},
	{roleSystem, "metered_pushes", "id"},
	{roleApp, "billing_subscriptions", "endpoint_id, subscription"},
	{roleApp, "plan_migrations", "id"},

	{roleApp, "billing_customers", "endpoint_id, customer"},
	{roleApp, "billing_payments", "endpoint_id, payment"},
	{roleApp, "billing_prices", "price"},
	{roleSystem, "notifications", "id"},
	{roleSystem, "ended_meters", "rule, until"},
	{roleApp, "idempotency_keys", "key"},
	{roleSystem, "limit_requests", "id"},
	{roleApp, "portal_sessions", "id"},
	{roleApp, "portal_links", "id"},
	{roleSystem, "quota_notices", "rule, window_end, percent"},
	{roleSystem, "security_events", "id"},
	{roleSystem, "audit", "sequence"},
	{roleApp, "overrides", "subject, rule_id"},
	{roleApp, "subject_labels", "key, subject, plan_id, state"},
	{roleApp, "subjects", "subject"},
	{roleApp, "subject_tombstones", "subject"},
	{roleApp, "plan_version_limits", "plan_id, number, rule_id"},
	{roleApp, "plan_versions", "plan_id, number"},
	{roleApp, "plan_limits", "plan_id, rule_id"},
}

// pageSQL deletes up to $2 rows of the tenant $1.
func (t tenantTable) pageSQL() string {
	const sql = `DELETE FROM {table} WHERE (tenant_id, {key}) IN (SELECT o.tenant_id, {of} FROM {table} o WHERE o.tenant_id = $1 LIMIT $2)`
	return strings.NewReplacer("{table}", t.name, "{key}", t.key, "{of}", "o."+strings.ReplaceAll(t.key, ", ", ", o.")).Replace(sql)
}

// errDeletedElsewhere ends DeleteTenantRows while another server deletes.
var errDeletedElsewhere = errors.New("another server deletes rows of tenants")

// DeleteTenantRows deletes the rows of tenants that DeleteTenant has deleted, in pages, and at last
// the tenants' own rows. Call it about every minute: it continues what was not completed, by this
// server or another. While another server deletes, it does nothing. What cannot be deleted of one
// tenant does not keep the others. It returns the tenants of which nothing is left. Errors:
// ErrUnavailable, and those of what was not deleted.
func (s *Store) DeleteTenantRows(ctx context.Context) (done []uuid.UUID, err error) {
	var left []uuid.UUID
	err = s.seeingDeleted(ctx, func(ctx context.Context, q *db.Queries) (err error) {
		left, err = q.TenantsWithRowsLeft(ctx)
		return err
	})
	for _, tenant := range left {
		failed := s.deleteRowsOf(ctx, tenant)
		switch {
		case errors.Is(failed, errDeletedElsewhere):
			return done, err
		case failed != nil:
			err = errors.Join(err, fmt.Errorf("delete the rows of tenant %s: %w", tenant, failed))
		default:
			done = append(done, tenant)
		}
	}
	return done, err
}

// deleteRowsOf deletes the rows of one tenant, and at last its own.
func (s *Store) deleteRowsOf(ctx context.Context, tenant uuid.UUID) error {
	for _, table := range tenantTables {
		for n := s.deletedPage; n == s.deletedPage; {
			var err error
			if n, err = s.deletePage(ctx, table, tenant); err != nil {
				return err
			}
		}
	}
	return s.seeingDeleted(ctx, func(ctx context.Context, q *db.Queries) error {
		if err := deletesAlone(ctx, q); err != nil {
			return err
		}
		_, err := q.DeleteTenantRow(ctx, tenant)
		return err
	})
}

// deletePage deletes a page of a tenant's rows in a table, and returns how many they were.
func (s *Store) deletePage(ctx context.Context, table tenantTable, tenant uuid.UUID) (n int64, err error) {
	err = s.write(ctx, table.role, uuid.Nil, s.operation, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := deletesAlone(ctx, q); err != nil {
			return err
		}
		if err := q.SetTenant(ctx, tenant.String()); err != nil { // for weir_app
			return err
		}
		// The page is small, and the table may have the rows of all other tenants.
		if _, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, table.pageSQL(), tenant, s.deletedPage)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// deletesAlone takes the lock of the server that deletes, until the transaction ends. Servers that
// delete the same rows in different orders would deadlock.
func deletesAlone(ctx context.Context, q *db.Queries) error {
	mine, err := q.TryLock(ctx, deletedLock)
	if err == nil && !mine {
		err = errDeletedElsewhere
	}
	return err
}

// seeingDeleted runs fn in a transaction that sees tenants that were deleted.
func (s *Store) seeingDeleted(ctx context.Context, fn func(ctx context.Context, q *db.Queries) error) error {
	return s.asSystemWithin(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.SeeDeletedTenants(ctx, "on"); err != nil {
			return err
		}
		return fn(ctx, q)
	})
}
