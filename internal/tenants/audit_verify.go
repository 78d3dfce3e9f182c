package tenants

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// AuditReport says whether a trail is whole.
type AuditReport struct {
	Valid    bool
	Rows     int64     // that were read and are right
	Removed  AuditMark // the last row that was removed because of its age; the rows read follow it
	Head     AuditMark // the last of them
	BrokenAt int64     // number of the first row that is missing or wrong; 0 where Valid
	Problem  string    // what is wrong with it; "" where Valid
}

// auditVerifyRows is how many rows of a trail are read at once.
const auditVerifyRows = 1000

// VerifyAudit reads all that is left of the trail of the actor's tenant, from the mark of what was
// removed because of its age on, and tells whether each row follows from
// the one before and none is missing at the end. Somebody who can write to the database as its
// owner can make a shorter or different trail that is whole in itself; remembered, a mark from
// before (nil: none), must then be in it.
func (s *Store) VerifyAudit(ctx context.Context, a Actor, remembered *AuditMark) (report AuditReport, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = inTx(ctx, s.app, loadTimeout, options, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		report, err = verifyChain(ctx, q, a.tenant, remembered)
		return err
	})
	return report, err
}

func verifyChain(ctx context.Context, q *db.Queries, tenant uuid.UUID, remembered *AuditMark) (r AuditReport, err error) {
	end, err := q.AuditHead(ctx, tenant)
	missing := errors.Is(err, pgx.ErrNoRows)
	if missing {
		end.Hash, end.RemovedHash = genesis[:], genesis[:]
	} else if err != nil {
		return r, err
	}
	r.Removed = AuditMark{Sequence: end.RemovedSequence, Hash: [32]byte(end.RemovedHash)}
	r.Head = r.Removed
	for {
		rows, err := q.AuditChain(ctx, db.AuditChainParams{TenantID: tenant, After: r.Head.Sequence, Most: auditVerifyRows})
		if err != nil {
			return r, err
		}
		for i := range rows {
			if problem := r.follow(&rows[i], remembered); problem != "" {
				r.BrokenAt, r.Problem = r.Head.Sequence+1, problem
				return r, nil
			}
		}
		if len(rows) < auditVerifyRows {
			break
		}
	}
	switch {
	case missing && r.Rows > 0:
		r.Problem = "the record of the trail's end is missing"
	case end.Sequence != r.Head.Sequence || !bytes.Equal(end.Hash, r.Head.Hash[:]):
		r.Problem = fmt.Sprintf("the trail ended with row %d, and does not any more", end.Sequence)
	case remembered != nil && remembered.Sequence > r.Head.Sequence:
		r.Problem = fmt.Sprintf("there was a row %d, and is not any more", remembered.Sequence)
	case remembered != nil && remembered.Sequence == r.Removed.Sequence && remembered.Hash != r.Removed.Hash:
		r.Problem = "the last row that was removed is not the one that is remembered"
	}
	if r.Problem != "" {
		r.BrokenAt = r.Head.Sequence + 1
	}
	r.Valid = r.Problem == ""
	return r, nil
}

// follow takes the next row in, or says what is wrong with it.
func (r *AuditReport) follow(row *db.Audit, remembered *AuditMark) string {
	if row.Sequence != r.Head.Sequence+1 {
		return "the row is missing"
	}
	hash := auditHash(r.Head.Hash, *row)
	if !bytes.Equal(hash[:], row.Hash) {
		return "the row is not what was written, or not what was written after the row before"
	}
	if remembered != nil && remembered.Sequence == row.Sequence && remembered.Hash != hash {
		return "the row is not the one that is remembered"
	}
	r.Rows++
	r.Head = AuditMark{Sequence: row.Sequence, Hash: hash}
	return ""
}

// AuditHead is the end of one tenant's trail.
type AuditHead struct {
	Tenant uuid.UUID
	Slug   string
	AuditMark
}

// AuditHeads hands the end of every tenant's trail to each.
func (s *Store) AuditHeads(ctx context.Context, each func(AuditHead)) error {
	const most = 1000
	var after uuid.UUID
	for {
		var rows []db.AuditHeadsRow
		err := s.asSystem(ctx, operationTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			rows, err = q.AuditHeads(ctx, db.AuditHeadsParams{After: after, Most: most})
			return err
		})
		if err != nil {
			return fmt.Errorf("read the ends of the audit trails: %w", err)
		}
		for _, row := range rows {
			each(AuditHead{Tenant: row.TenantID, Slug: row.Slug, AuditMark: AuditMark{Sequence: row.Sequence, Hash: [32]byte(row.Hash)}})
			after = row.TenantID
		}
		if len(rows) < most {
			return nil
		}
	}
}
