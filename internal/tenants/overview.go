package tenants

import (
	"context"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// MostCountedSubjects is the number at which Configured stops counting subjects.
const MostCountedSubjects = 10_000

// Configured has the numbers of a tenant's objects.
type Configured struct {
	Rules, Plans int64
	Subjects     int64 // MostCountedSubjects + 1 means more than MostCountedSubjects
	Keys         int64 // that are valid now
}

// Configured counts what the tenant has set up.
func (s *Store) Configured(ctx context.Context, a Actor) (out Configured, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.CountConfigured(ctx, db.CountConfiguredParams{TenantID: a.tenant, Most: MostCountedSubjects + 1, Now: s.instant()})
		out = Configured(row)
		return err
	})
	return out, err
}
