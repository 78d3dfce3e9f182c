package tenants

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/internal/tenants/db"
)

// timelineSQL reads the timeline of the server: the first eight digits in the names of its WAL
// files. Each promotion of a replica begins another one. A server in recovery has none of its own.
// pg_control_checkpoint would tell it only after the next checkpoint.
const timelineSQL = "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END"

// databaseState says where in which history the configuration is.
//
// An operator sets another epoch after the restore of a backup. After a failover to a replica that
// lacks the last changes, nobody does, and their numbers are given to other changes. Then only the
// timeline tells that what was loaded under a number may be of a change that is lost.
type databaseState struct {
	epoch    uuid.UUID
	version  int64
	timeline string // "": it is not known
}

// follows reports whether s is the same state as before, or a later one in its history.
func (s databaseState) follows(before databaseState) bool {
	return s.epoch == before.epoch && s.version >= before.version && s.timeline == before.timeline
}

// state reads the state of the database. A timeline that cannot be read is taken for the last one.
func (w *Watcher) state(ctx context.Context, tx pgx.Tx, q *db.Queries) (s databaseState, err error) {
	if !w.blind {
		if err := tx.QueryRow(ctx, w.timelineSQL).Scan(&s.timeline); err != nil {
			return s, &timelineError{err}
		}
	}
	now, err := q.ConfigVersion(ctx)
	s.epoch, s.version = now.Epoch, now.Version
	s.timeline = cmp.Or(s.timeline, w.last.timeline)
	return s, err
}

// timelineError says that the timeline could not be read.
type timelineError struct{ err error }

func (e *timelineError) Error() string { return "read the timeline of Postgres: " + e.err.Error() }
func (e *timelineError) Unwrap() error { return e.err }

// goesBlind reports whether the comparison must be repeated without the timeline, because Postgres
// refuses to tell it: a managed service may not allow it.
func (w *Watcher) goesBlind(ctx context.Context, err error) bool {
	var timeline *timelineError
	var refusal *pgconn.PgError
	if !errors.As(err, &timeline) || !errors.As(err, &refusal) || errors.Is(err, ErrUnavailable) {
		return false
	}
	w.blind = true
	if !w.warned {
		w.warned = true
		w.store.log.WarnContext(ctx, "Postgres does not tell its timeline; after a failover that lost changes, "+
			"set another epoch in config_version", "error", refusal)
	}
	return true
}
