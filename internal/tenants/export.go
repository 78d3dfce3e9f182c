package tenants

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

const (
	// exportTimeout limits an export: while it runs, it uses a connection, and Postgres keeps
	// deleted rows.
	exportTimeout = 15 * time.Minute
	exportBatch   = 1000 // subjects per statement, which takes far less than statement_timeout
)

// export runs fn in a transaction that a client can keep open for exportTimeout.
func (s *Store) export(ctx context.Context, a Actor, fn txFunc) error {
	place, err := s.exports.Take(a.tenant)
	if err != nil {
		return err
	}
	defer place.Leave()
	if pace, ok := ctx.Value(exportPaceKey{}).(*ExportPace); ok {
		pace.place = place
	}
	return s.readWithin(ctx, a, exportTimeout, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := byIndex(ctx, tx); err != nil {
			return err
		}
		return fn(ctx, tx, q)
	})
}

// ExportSubjects calls each with the registered subjects that match the filter, sorted by bytes, up
// to 1000 at a time and all of one instant, and with their overrides that have not expired if
// overrides is set. A call of each may take up to a minute, for a client that reads slowly, and the
// whole export fifteen. An error of each ends the export and is returned. Errors: *InvalidError,
// ErrUnavailable, also after a part was passed to each, ErrTooManyExports.
func (s *Store) ExportSubjects(ctx context.Context, a Actor, f SubjectFilter, overrides bool, each func([]Subject) error) error {
	if err := f.validate(); err != nil {
		return err
	}
	now := s.instant()
	var failed error // of each, to distinguish it from errors of the database
	err := s.export(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		search := subjectSearch{SubjectFilter: f, byName: true}
		for {
			sql, args := search.build(a.tenant, exportBatch)
			found, err := searchSubjects(ctx, tx, sql, args)
			if err != nil || len(found) == 0 {
				return err
			}
			search.after = found[len(found)-1].Subject
			parts := inOnePart(found)
			if overrides {
				parts = inParts(ctx, q, a.tenant, found)
			}
			for subjects, err := range parts {
				if err != nil {
					return err
				}
				for i := range subjects {
					subjects[i].Overrides = present(subjects[i].Overrides, now)
				}
				if failed = each(subjects); failed != nil {
					return failed
				}
			}
			if len(found) < exportBatch {
				return nil
			}
		}
	})
	if failed != nil {
		return failed
	}
	return err
}
