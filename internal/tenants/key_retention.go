package tenants

import (
	"context"
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
// such keys those that ended first. The audit trail keeps what happened to them. Several servers
// may call it concurrently. Error: ErrUnavailable.
func (s *Store) PurgeKeys(ctx context.Context) (removed int64, err error) {
	now := s.instant()
	removed, err = s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
		return q.PurgeKeys(ctx, db.PurgeKeysParams{Before: now.Add(-KeyRetention), Most: purgeRows})
	})
	if err != nil {
		return removed, fmt.Errorf("delete keys that have ended: %w", err)
	}
	var many []uuid.UUID
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		many, err = q.TenantsWithEndedKeys(ctx, db.TenantsWithEndedKeysParams{Now: now, Kept: maxEndedKept})
		return err
	})
	for _, tenant := range many {
		n, err := s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeKeysOf(ctx, db.PurgeKeysOfParams{TenantID: tenant, Now: now, Kept: maxEndedKept, Most: purgeRows})
		})
		removed += n
		if err != nil {
			return removed, fmt.Errorf("delete keys that have ended: %w", err)
		}
	}
	return removed, err
}
