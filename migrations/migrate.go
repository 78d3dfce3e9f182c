package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	driver "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// lockTimeout is the maximum wait for another process that migrates the same database.
const lockTimeout = time.Minute

// unlockTimeout is the maximum time to release the lock at the end.
const unlockTimeout = 5 * time.Second

// DirtyError means that an earlier release was interrupted in a migration. This release leaves no
// such mark. Every file runs in one transaction, so the database is in the state before it or after
// it; the earlier release may have ended between the file and the removal of the mark.
type DirtyError struct{ Version int }

func (e *DirtyError) Error() string {
	return fmt.Sprintf("the schema is marked dirty at version %[1]d: an earlier release was interrupted in a migration. "+
		"If the changes of migrations/%06[1]d_*.up.sql are there: UPDATE schema_migrations SET dirty = false. "+
		"If they are not: UPDATE schema_migrations SET version = %[2]d, dirty = false", e.Version, e.Version-1)
}

// Up applies all missing migrations. databaseURL must log in as the owner of the tables or, for a
// new database, as a role that may create tables and roles. Concurrent callers wait for each other,
// up to a minute. A schema that is newer than the program stays as it is: migrations keep older
// servers working, and an instance of the older version must be able to start during an upgrade. Up
// returns *FailedError if the database refuses a migration, and *DirtyError if an earlier release
// was interrupted in one. After other errors it can be called again, and continues.
func Up(ctx context.Context, databaseURL string) error {
	return UpNoting(ctx, databaseURL, func(string) {})
}

// UpNoting is Up, and tells note what it waits for.
func UpNoting(ctx context.Context, databaseURL string, note func(string)) error {
	latest, err := Latest()
	if err != nil {
		return err
	}
	return run(ctx, databaseURL, note, func(m *migrate.Migrate) error {
		if version, dirty, err := m.Version(); err == nil && !dirty && int(version) > latest {
			return nil
		}
		return m.Up()
	})
}

// Down undoes the newest migration. It returns nil if there is none.
func Down(ctx context.Context, databaseURL string) error {
	version, _, err := Version(ctx, databaseURL)
	if err != nil || version == 0 {
		return err
	}
	return run(ctx, databaseURL, func(string) {}, func(m *migrate.Migrate) error { return m.Steps(-1) })
}

// Version returns the number of the newest applied migration, or 0, and whether it was interrupted.
// Any of the server's logins may call it.
func Version(ctx context.Context, databaseURL string) (version int, dirty bool, err error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return 0, false, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const query = "SELECT version, dirty FROM schema_migrations"
	err = conn.QueryRow(ctx, query).Scan(&version, &dirty)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" { // a login with NOINHERIT has its privileges after SET ROLE
		if _, err = conn.Exec(ctx, "SET ROLE weir_app"); err == nil {
			err = conn.QueryRow(ctx, query).Scan(&version, &dirty)
		}
	}
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, &pgErr) && pgErr.Code == "42P01" { // undefined_table
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, dirty, nil
}

// Latest returns the number of the newest migration that this program knows.
func Latest() (int, error) {
	files, err := iofs.New(FS, ".")
	if err != nil {
		return 0, fmt.Errorf("read embedded migrations: %w", err)
	}
	defer files.Close()
	version, err := files.First()
	for err == nil {
		var next uint
		if next, err = files.Next(version); err == nil {
			version = next
		}
	}
	return int(version), nil
}

func run(ctx context.Context, databaseURL string, note func(string), step func(*migrate.Migrate) error) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("read the database URL: %w", err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		// A migration says what it waits for. Other warnings are of Postgres.
		if n.SeverityUnlocalized == "WARNING" && strings.HasPrefix(n.Message, "migration ") {
			note(n.Message)
		}
	}
	files, err := iofs.New(FS, ".")
	if err != nil {
		return fmt.Errorf("read embedded migrations: %w", err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	t, err := open(ctx, db, note)
	if err != nil {
		return err
	}
	m, err := migrate.NewWithInstance("embedded", files, "postgres", t)
	if err != nil {
		return fmt.Errorf("prepare to migrate: %w", err)
	}
	defer m.Close()
	m.LockTimeout = lockTimeout
	// A signal stops between two files, never within a file.
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	defer stop()
	err = step(m)
	var dirty migrate.ErrDirty
	switch {
	case errors.Is(err, migrate.ErrNoChange):
		err = nil
	case errors.As(err, &dirty):
		return &DirtyError{Version: dirty.Version}
	case err != nil:
		return fmt.Errorf("migrate: %w", err)
	}
	return ctx.Err()
}

// open prepares a database for migrations, and takes their lock. golang-migrate takes it again,
// each time without a limit and ctx. It never waits for it then: a session may take its own lock
// again, and there is only one. The lock ends with the session.
func open(ctx context.Context, db *sql.DB, note func(string)) (*target, error) {
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	var name, schema string
	err = conn.QueryRowContext(ctx, "SELECT current_database(), coalesce(current_schema(), '')").Scan(&name, &schema)
	var id string
	if err == nil {
		id, err = database.GenerateAdvisoryLockId(name, schema, versionTable)
	}
	if err == nil {
		err = lock(ctx, conn, id, note)
	}
	var raw *pgx.Conn
	if err == nil {
		err = conn.Raw(func(c any) error {
			raw = c.(*stdlib.Conn).Conn()
			return nil
		})
	}
	_ = conn.Close() // it returns to db
	if err != nil {
		return nil, fmt.Errorf("prepare to migrate: %w", err)
	}
	d, err := driver.WithInstance(db, &driver.Config{DatabaseName: name, SchemaName: schema, MigrationsTable: versionTable})
	if err != nil {
		// The driver still has the connection, and db cannot close it.
		unlock(raw, id)
		_ = raw.Close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("prepare to migrate: %w", err)
	}
	return &target{Driver: d, table: pgx.Identifier{schema, versionTable}.Sanitize(), conn: raw, lock: id}, nil
}
