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

// auditPurgeRows is how many rows of a trail are removed at once, so that no statement takes long.
const auditPurgeRows = 5000

// PurgeAudit removes the rows of all trails that are from before a time, from the beginning of each
// on, and returns how many they were. What is left of a trail can be verified as before: the mark
// of the last row that was removed is kept. A trail is left alone from where rows of it are
// missing. Several servers may call it at once. Error: ErrUnavailable.
func (s *Store) PurgeAudit(ctx context.Context, before time.Time) (removed int64, err error) {
	const most = 1000
	var after uuid.UUID
	for {
		var old []uuid.UUID
		err := s.asSystem(ctx, operationTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			old, err = q.AuditsBefore(ctx, db.AuditsBeforeParams{After: after, Before: before, Most: most})
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("look for old rows of the audit trails: %w", err)
		}
		for _, tenant := range old {
			after = tenant
			for n := int64(auditPurgeRows); n == auditPurgeRows; removed += n {
				if n, err = s.purgeAuditOf(ctx, tenant, before); err != nil {
					return removed, fmt.Errorf("remove old rows of the audit trail of %s: %w", tenant, err)
				}
			}
		}
		if len(old) < most {
			return removed, nil
		}
	}
}

func (s *Store) purgeAuditOf(ctx context.Context, tenant uuid.UUID, before time.Time) (n int64, err error) {
	err = s.asSystem(ctx, operationTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		mark, err := q.LockAuditMark(ctx, tenant)
		if errors.Is(err, pgx.ErrNoRows) { // the tenant was deleted meanwhile
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
			if row.Sequence != mark+1 || !row.At.Before(before) { // beyond a missing row nothing goes, which would hide that
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
