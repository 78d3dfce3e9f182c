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

// auditPurgeRows is the maximum number of rows that one statement deletes, so that none takes long.
const auditPurgeRows = 5000

// PurgeAudit deletes the rows of all trails that are older than before, from the beginning of each
// trail, and returns their number. The rest of a trail can still be verified, because the mark of
// the last deleted row is stored. If a trail has a gap, the rows from the gap on are not deleted. A
// trail that fails does not keep the others (purgeRound). Several servers may call it concurrently.
// Errors: ErrUnavailable, and that of the first trail that failed.
func (s *Store) PurgeAudit(ctx context.Context, before time.Time) (removed int64, err error) {
	const most = 1000
	itself := func(tenant uuid.UUID) uuid.UUID { return tenant }
	err = purgeRound[uuid.UUID]{at: &s.turns.trails, most: most, tenant: itself, behind: itself,
		read: func(after uuid.UUID) (old []uuid.UUID, err error) {
			err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
				old, err = q.AuditsBefore(ctx, db.AuditsBeforeParams{After: after, Before: before, Most: most})
				return err
			})
			if err != nil {
				err = fmt.Errorf("look for old rows of the audit trails: %w", err)
			}
			return old, err
		},
		do: func(tenant uuid.UUID) error {
			n, err := s.purgeTrail(ctx, tenant, before)
			removed += n
			return err
		},
	}.run(ctx)
	return removed, err
}

// purgeTrail deletes the rows of one trail that are older than before.
func (s *Store) purgeTrail(ctx context.Context, tenant uuid.UUID, before time.Time) (removed int64, err error) {
	for n := int64(auditPurgeRows); n == auditPurgeRows; removed += n {
		if n, err = s.purgeAuditOf(ctx, tenant, before); err != nil {
			return removed, fmt.Errorf("remove old rows of the audit trail of %s: %w", tenant, err)
		}
	}
	return removed, nil
}

func (s *Store) purgeAuditOf(ctx context.Context, tenant uuid.UUID, before time.Time) (n int64, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		mark, err := q.LockAuditMark(ctx, tenant)
		if errors.Is(err, pgx.ErrNoRows) { // the tenant was deleted in the meantime
			return nil
		}
		if err != nil {
			return err
		}
		rows, err := q.AuditAges(ctx, db.AuditAgesParams{TenantID: tenant, After: mark, Most: auditPurgeRows})
		if err != nil {
			return err
		}
		var last db.AuditAgesRow
		for _, row := range rows {
			if row.Sequence != mark+1 || !row.At.Before(before) { // rows after a gap are not deleted, because that would hide the gap
				break
			}
			mark, last = row.Sequence, row
		}
		if last.Sequence == 0 { // another server was faster
			return nil
		}
		if n, err = q.RemoveAudit(ctx, db.RemoveAuditParams{TenantID: tenant, Sequence: last.Sequence}); err != nil {
			return err
		}
		return q.MoveAuditMark(ctx, db.MoveAuditMarkParams{TenantID: tenant, Sequence: last.Sequence, Hash: last.Hash})
	})
	return n, err
}
