package tenants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// AuditReport says whether a trail is intact, as far as it was read.
type AuditReport struct {
	Valid    bool      // everything that was read is valid
	Complete bool      // the end of the trail or an error was reached; otherwise Head is the last row that was read
	Rows     int64     // number of rows that were read and are valid
	From     AuditMark // the row after which reading began
	Removed  AuditMark // the last row that was deleted because of its age; no row up to it is read
	Head     AuditMark // the last valid row: another call continues with it as After
	BrokenAt int64     // number of the first missing or invalid row; 0 if Valid
	Problem  string    // what is wrong with it; "" if Valid
}

// AuditVerification selects the part of a trail to verify. The zero value selects all of it.
type AuditVerification struct {
	// Remembered, an earlier mark, must be in the trail. The owner of the database could create a
	// shorter or different trail that is valid by itself. This detects it.
	Remembered *AuditMark
	// After is the Head of an earlier report. Rows up to it are not read again; it must still
	// exist.
	After *AuditMark
	// Rows and Within limit one call: it ends when it has read that many rows, or after the page of
	// rows during which the time ended. 0: no limit.
	Rows   int64
	Within time.Duration
}

// One transaction reads some rows only, because one over a long trail would prevent Postgres from
// cleaning up. A row can have megabytes, so the number follows from the size of the rows before,
// and one row is in memory at a time.
const (
	auditVerifyFirst = 20
	auditVerifyRows  = 200
	auditVerifyBytes = 2 << 20
)

// auditChainSQL are rows in the order of the chain.
const auditChainSQL = `SELECT tenant_id, sequence, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id, action, kind, target,
    before, after, reason, hash
FROM audit WHERE tenant_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3`

// VerifyAudit reads the trail of the actor's tenant, from the mark of the deleted rows on. It
// verifies that each row follows from the previous one and that none is missing at the end. Error:
// ErrUnavailable.
func (s *Store) VerifyAudit(ctx context.Context, a Actor, v AuditVerification) (AuditReport, error) {
	w := auditWalk{AuditVerification: v, tenant: a.tenant, rows: auditVerifyFirst}
	begun := s.now()
	for {
		err := s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error { return w.page(ctx, tx, q) })
		if err != nil {
			return AuditReport{}, fmt.Errorf("verify the audit trail after row %d: %w", w.Head.Sequence, err)
		}
		bounded := v.Rows > 0 && w.AuditReport.Rows >= v.Rows || v.Within > 0 && s.now().Sub(begun) >= v.Within
		if w.Complete || bounded {
			w.Valid = w.Problem == ""
			return w.AuditReport, nil
		}
	}
}

// auditWalk is a running verification.
type auditWalk struct {
	AuditVerification
	AuditReport
	tenant uuid.UUID
	begun  bool
	rows   int64 // of the next page
}

// page reads the next rows. In the meantime the trail may have grown at its end and lost old rows
// at its beginning, so both ends are read again, at the same instant as the rows.
func (w *auditWalk) page(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
	end, err := q.AuditHead(ctx, w.tenant)
	missing := errors.Is(err, pgx.ErrNoRows)
	if missing {
		end.Hash, end.RemovedHash = genesis[:], genesis[:]
	} else if err != nil {
		return err
	}
	w.Removed = AuditMark{Sequence: end.RemovedSequence, Hash: [32]byte(end.RemovedHash)}
	if !w.begun {
		if err := w.begin(ctx, q); err != nil || w.Complete {
			return err
		}
	}
	if w.Head.Sequence < w.Removed.Sequence {
		w.Head = w.Removed
	}
	most := w.rows
	if w.AuditVerification.Rows > 0 {
		most = min(most, w.AuditVerification.Rows-w.AuditReport.Rows)
	}
	read, size, err := w.chain(ctx, tx, most)
	if err != nil || w.Complete {
		return err
	}
	w.rows = min(max(auditVerifyBytes*read/size, 1), auditVerifyRows, 4*w.rows)
	if read < most {
		w.finish(end, missing)
	}
	return nil
}

// chain follows the next rows, at most most. It returns how many there were, and the bytes of their
// fields, at least one.
func (w *auditWalk) chain(ctx context.Context, tx pgx.Tx, most int64) (read, size int64, err error) {
	rows, err := tx.Query(ctx, auditChainSQL, w.tenant, w.Head.Sequence, most)
	if err != nil {
		return 0, 1, err
	}
	defer rows.Close()
	size = 1
	for rows.Next() {
		row, err := pgx.RowToStructByName[db.Audit](rows)
		if err != nil {
			return read, size, err
		}
		read++
		size += int64(len(row.Before) + len(row.After))
		if problem := w.follow(&row); problem != "" {
			w.broken(w.Head.Sequence+1, problem)
			return read, size, nil
		}
	}
	return read, size, rows.Err()
}

// begin finds where to begin, and looks up the marks that will not be compared with a row.
func (w *auditWalk) begin(ctx context.Context, q *db.Queries) error {
	w.begun = true
	w.From = w.Removed
	if w.After != nil && w.After.Sequence >= w.Removed.Sequence {
		w.From = *w.After
	}
	w.Head = w.From
	for _, c := range []struct {
		mark *AuditMark
		name string
	}{{w.After, "the row after which to continue"}, {w.Remembered, "the stored row"}} {
		if c.mark == nil || c.mark.Sequence > w.From.Sequence {
			continue // it will be read later
		}
		there, err := w.holds(ctx, q, *c.mark)
		if err != nil {
			return err
		}
		if !there {
			w.Head = w.Removed
			w.broken(c.mark.Sequence, c.name+" is missing or was changed")
			return nil
		}
	}
	return nil
}

// holds reports whether the trail has a row with the mark. Of the deleted rows, only the last one
// can be verified.
func (w *auditWalk) holds(ctx context.Context, q *db.Queries, mark AuditMark) (bool, error) {
	switch {
	case mark.Sequence == w.Removed.Sequence:
		return mark.Hash == w.Removed.Hash, nil
	case mark.Sequence < w.Removed.Sequence:
		return true, nil
	}
	hash, err := q.AuditHashAt(ctx, db.AuditHashAtParams{TenantID: w.tenant, Sequence: mark.Sequence})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return bytes.Equal(hash, mark.Hash[:]), err
}

// finish compares the last row with the end of the trail.
func (w *auditWalk) finish(end db.AuditHeadRow, missing bool) {
	switch {
	case missing && w.Head.Sequence > 0:
		w.broken(w.Head.Sequence+1, "the record of the trail's end is missing")
	case end.Sequence != w.Head.Sequence || !bytes.Equal(end.Hash, w.Head.Hash[:]):
		w.broken(w.Head.Sequence+1, fmt.Sprintf("the trail no longer ends with row %d", end.Sequence))
	case w.Remembered != nil && w.Remembered.Sequence > w.Head.Sequence:
		w.broken(w.Head.Sequence+1, fmt.Sprintf("row %d is missing", w.Remembered.Sequence))
	}
	w.Complete = true
}

func (w *auditWalk) broken(at int64, problem string) {
	w.Complete, w.BrokenAt, w.Problem = true, at, problem
}

// follow adds the next row, or returns what is wrong with it.
func (w *auditWalk) follow(row *db.Audit) string {
	if row.Sequence != w.Head.Sequence+1 {
		return "the row is missing"
	}
	hash := auditHash(w.Head.Hash, *row)
	if !bytes.Equal(hash[:], row.Hash) {
		return "the row was changed, or does not follow from the previous one"
	}
	if w.Remembered != nil && w.Remembered.Sequence == row.Sequence && w.Remembered.Hash != hash {
		return "the row differs from the stored one"
	}
	w.AuditReport.Rows++
	w.Head = AuditMark{Sequence: row.Sequence, Hash: hash}
	return ""
}

// AuditHead is the end of one tenant's trail.
type AuditHead struct {
	Tenant uuid.UUID
	Slug   string
	At     *time.Time // when its last row was written; nil if that row was removed
	AuditMark
}

// AuditHeads calls each with the end of every tenant's trail, by the tenant's id.
func (s *Store) AuditHeads(ctx context.Context, each func(AuditHead)) error {
	const most = 1000
	var after uuid.UUID
	for {
		var rows []db.AuditHeadsRow
		err := s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			rows, err = q.AuditHeads(ctx, db.AuditHeadsParams{After: after, Most: most})
			return err
		})
		if err != nil {
			return fmt.Errorf("read the ends of the audit trails: %w", err)
		}
		for _, row := range rows {
			each(AuditHead{Tenant: row.TenantID, Slug: row.Slug, At: row.At, AuditMark: AuditMark{Sequence: row.Sequence, Hash: [32]byte(row.Hash)}})
			after = row.TenantID
		}
		if len(rows) < most {
			return nil
		}
	}
}
