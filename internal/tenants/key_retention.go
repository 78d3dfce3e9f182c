package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

const (
	// KeyRetention is how long a key stays in the list after it was revoked or has expired.
	KeyRetention = 90 * 24 * time.Hour
	// maxEndedKept is how many of these keys a tenant has. PurgeKeys deletes the oldest.
	maxEndedKept = 5000
)

// PurgeKeys deletes keys that ended longer than KeyRetention ago, and of tenants with very many
// such keys those that ended first. The audit trail keeps what happened to them. What cannot be
// deleted does not keep the rest (purgeRound). Several servers may call it concurrently. Errors:
// ErrUnavailable, and that of the first tenant that failed.
func (s *Store) PurgeKeys(ctx context.Context) (removed int64, err error) {
	now := s.instant()
	ended := func(err error) error {
		if err != nil {
			err = fmt.Errorf("delete keys that have ended: %w", err)
		}
		return err
	}
	removed, err = s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
		return q.PurgeKeys(ctx, db.PurgeKeysParams{Before: now.Add(-KeyRetention), Most: purgeRows})
	})
	if ctx.Err() != nil {
		return removed, ended(err)
	}
	itself := func(tenant uuid.UUID) uuid.UUID { return tenant }
	failed := purgeRound[uuid.UUID]{at: &s.turns.keys, most: maxTenantsRead, tenant: itself, behind: itself,
		read: func(after uuid.UUID) (many []uuid.UUID, err error) {
			err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
				many, err = q.TenantsWithEndedKeys(ctx, db.TenantsWithEndedKeysParams{After: after, Now: now, Kept: maxEndedKept, Most: maxTenantsRead})
				return err
			})
			return many, err
		},
		do: func(tenant uuid.UUID) error {
			n, err := s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
				return q.PurgeKeysOf(ctx, db.PurgeKeysOfParams{TenantID: tenant, Now: now, Kept: maxEndedKept, Most: purgeRows})
			})
			removed += n
			return err
		},
	}.run(ctx)
	return removed, errors.Join(ended(err), ended(failed))
}
