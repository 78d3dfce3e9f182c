package tenants

import (
	"context"

	"github.com/google/uuid"

	"weir/internal/tenants/db"
)

// AuditListSQL is the statement of Store.Audit, from its start.
func AuditListSQL(tenant uuid.UUID, f AuditFilter) (sql string, args []any) {
	return auditListSQL(tenant, f, nil, 51)
}

// Checksummed appends the correct checksum to the text of a key.
func Checksummed(text string) string {
	sum := keyChecksum(text)
	return text + string(sum[:])
}

// ByIndexSQL is what goes before SubjectSearchSQL.
const ByIndexSQL = byIndexSQL

// SubjectSearchSQL is the statement of Store.Subjects, for the tests of how Postgres carries it
// out.
func SubjectSearchSQL(tenant uuid.UUID, f SubjectFilter, byName bool, after string, most int32) (sql string, args []any) {
	search := subjectSearch{SubjectFilter: f, byName: byName, after: after}
	return search.build(tenant, most)
}

func tenantsOf[T any](rows []T, err error, tenant func(T) uuid.UUID) (out []uuid.UUID, _ error) {
	for _, row := range rows {
		out = append(out, tenant(row))
	}
	return out, err
}

// DuePlanTenants returns the tenants of the plan changes of one step.
func DuePlanTenants(ctx context.Context, s *Store) ([]uuid.UUID, error) {
	rows, _, err := s.duePlans(ctx, nil)
	return tenantsOf(rows, err, func(r db.DuePlansRow) uuid.UUID { return r.TenantID })
}

// CounterChangeTenants returns the tenants of the changes of counters of one step.
func CounterChangeTenants(ctx context.Context, s *Store) ([]uuid.UUID, error) {
	rows, _, err := s.counterChanges(ctx, nil)
	return tenantsOf(rows, err, func(r db.CounterChangesRow) uuid.UUID { return r.TenantID })
}

// OpenMigrationTenants returns the tenants of the migrations of one step.
func OpenMigrationTenants(ctx context.Context, s *Store) ([]uuid.UUID, error) {
	rows, err := s.openPlanMigrations(ctx)
	return tenantsOf(rows, err, func(r db.OpenPlanMigrationsRow) uuid.UUID { return r.TenantID })
}
