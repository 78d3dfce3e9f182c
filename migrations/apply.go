package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// versionTable has the schema's version. It is that of golang-migrate, which earlier releases use.
const versionTable = "schema_migrations"

// target runs each file in one transaction with the change of the version. A migration that is
// interrupted thus leaves the version and the schema from before it, or both from after it: there
// is never a doubt, and the next start continues there. golang-migrate on its own marks the version
// dirty in a transaction of its own before the file, and clears the mark in a third one.
type target struct {
	database.Driver
	table string // quoted
	at    int    // the version
	next  int    // that after the file that runs
	ran   bool   // the file has set the version

	conn *pgx.Conn // that of Driver
	lock string    // the id of the lock that conn has
}

func (t *target) Version() (version int, dirty bool, err error) {
	version, dirty, err = t.Driver.Version()
	t.at = version
	return version, dirty, err
}

// SetVersion is called with dirty before a file, and without it afterwards.
func (t *target) SetVersion(version int, dirty bool) error {
	if dirty {
		t.next, t.ran = version, false
		return nil
	}
	t.at = version
	if t.ran {
		return nil // Driver would truncate the table, which waits for all of its readers, such as a backup
	}
	return t.Driver.SetVersion(version, false)
}

// Run runs a file. Postgres runs the statements of one message as one transaction.
func (t *target) Run(file io.Reader) error {
	set := "\n;\nDELETE FROM " + t.table + ";\n"
	if t.next != database.NilVersion {
		set += fmt.Sprintf("INSERT INTO %s (version, dirty) VALUES (%d, false);\n", t.table, t.next)
	}
	err := t.Driver.Run(io.MultiReader(file, strings.NewReader(set)))
	var failed database.Error
	if errors.As(err, &failed) {
		err = failed.OrigErr // its own text contains that of the file
	}
	if err != nil {
		return migrationFailed(max(t.at, t.next), err)
	}
	t.ran = true
	return nil
}

// Close ends the session and its lock.
func (t *target) Close() error {
	unlock(t.conn, t.lock)
	return t.Driver.Close()
}

// unlock releases the lock of open: a pooler may keep the session.
func unlock(conn *pgx.Conn, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock($1::text::bigint)", id) // the lock ends with the session otherwise
}

// FailedError means that the database refused a migration, for a reason that stays. Nothing of it
// was changed.
type FailedError struct {
	Version int // the number of the migration
	err     error
}

func (e *FailedError) Error() string { return fmt.Sprintf("migration %d failed: %v", e.Version, e.err) }

func (e *FailedError) Unwrap() error { return e.err }

// migrationFailed says which migration failed. A repetition may help if the connection was lost,
// the server ends, lacks resources or is read-only, or others had a lock.
func migrationFailed(number int, err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		switch {
		case strings.HasPrefix(refused.Code, "08"), strings.HasPrefix(refused.Code, "40"), strings.HasPrefix(refused.Code, "53"),
			strings.HasPrefix(refused.Code, "55P"), strings.HasPrefix(refused.Code, "57"),
			refused.Code == "25006", refused.Code == "58030": // read-only, as a standby; an error of the disk
		default:
			return &FailedError{Version: number, err: err}
		}
	}
	return fmt.Errorf("migration %d: %w", number, err)
}

// Waits between two attempts to get the lock of migrations.
const (
	firstLockRetry   = 5 * time.Millisecond
	longestLockRetry = 320 * time.Millisecond
)

// lock takes the lock of those that migrate this database, for the session of conn. It waits until
// ctx ends, at most lockTimeout. A server that was killed may have left a session that is still in
// a migration and has the lock: note and the error name its process.
func lock(ctx context.Context, conn *sql.Conn, id string, note func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	const holder = `SELECT coalesce((SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND classid = 0 AND objid = $1::bigint::oid AND objsubid = 1), 0)`
	pid, noted := 0, false
	for retry := firstLockRetry; ; retry = min(2*retry, longestLockRetry) {
		var got bool
		if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1::bigint)", id).Scan(&got); err != nil || got {
			return err
		}
		if err := conn.QueryRowContext(ctx, holder, id).Scan(&pid); err != nil {
			return err
		}
		if retry == longestLockRetry && pid != 0 && !noted {
			note(fmt.Sprintf("waiting for another session that migrates the database: process %d of Postgres", pid))
			noted = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another session migrates the database, process %d of Postgres: %w", pid, ctx.Err())
		case <-time.After(retry):
		}
	}
}
