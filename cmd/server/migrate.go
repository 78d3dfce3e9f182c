package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"weir/internal/snapshot"
	"weir/internal/tenants"
	"weir/migrations"
)

type migrateCommand struct {
	Up      migrateUpCommand      `cmd:"" help:"Apply all missing migrations."`
	Down    migrateDownCommand    `cmd:"" help:"Undo the newest migration."`
	Version migrateVersionCommand `cmd:"" help:"Print the schema's version."`
}

type (
	migrateUpCommand      struct{}
	migrateDownCommand    struct{}
	migrateVersionCommand struct{}
)

// Run applies all missing migrations.
func (migrateUpCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	if err := cfg.requireDatabase(); err != nil {
		return err
	}
	return migrateUp(ctx, cfg, log)
}

// migrateUp applies all missing migrations, and logs what they wait for.
func migrateUp(ctx context.Context, cfg *Config, log *slog.Logger) error {
	return migrations.UpNoting(ctx, cfg.migrateURL(), func(text string) {
		log.WarnContext(ctx, "the migration of the database waits", "why", text)
	})
}

// Run undoes the newest migration.
func (migrateDownCommand) Run(ctx context.Context, cfg *Config) error {
	if err := cfg.requireDatabase(); err != nil {
		return err
	}
	return migrations.Down(ctx, cfg.migrateURL())
}

// Run prints the schema's version and the newest that this program knows.
func (migrateVersionCommand) Run(ctx context.Context, cfg *Config) error {
	if err := cfg.requireDatabase(); err != nil {
		return err
	}
	version, dirty, err := migrations.Version(ctx, cfg.migrateURL())
	if err != nil {
		return err
	}
	latest, err := migrations.Latest()
	if err != nil {
		return err
	}
	state := "up to date"
	switch {
	case dirty:
		state = "dirty"
	case version != latest:
		state = fmt.Sprintf("this program knows %d", latest)
	}
	fmt.Printf("%d (%s)\n", version, state)
	return nil
}

// Waits between two attempts to reach the database at startup.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = time.Second
	logAgain     = 30 * time.Second
)

// prepareDatabase migrates the schema, or waits until another process has migrated it, and reads
// the values of the deployment. While Postgres is unavailable it retries, and front reports why the
// service is not ready. It fails if ctx ends, and on errors that a retry cannot fix.
func prepareDatabase(ctx context.Context, cfg *Config, store *tenants.Store, front *front, log *slog.Logger) (snapshot.Deployment, error) {
	retry, logged, loggedAt := firstRetry, "", time.Time{}
	for {
		d, err := prepareOnce(ctx, cfg, store, log)
		var dirty *migrations.DirtyError
		var failed *migrations.FailedError
		switch {
		case err == nil, ctx.Err() != nil, errors.As(err, &dirty), errors.As(err, &failed), errors.Is(err, errUnrestricted):
			return d, err
		}
		front.notReady("The configuration cannot be read from the database yet.")
		if text := err.Error(); text != logged || time.Since(loggedAt) > logAgain {
			log.Warn("the database is not ready; retrying", "error", err)
			logged, loggedAt = text, time.Now()
		}
		select {
		case <-ctx.Done():
			return d, ctx.Err()
		case <-time.After(retry/2 + rand.N(retry/2)):
		}
		retry = min(2*retry, longestRetry)
	}
}

func prepareOnce(ctx context.Context, cfg *Config, store *tenants.Store, log *slog.Logger) (d snapshot.Deployment, err error) {
	if cfg.Migrate {
		err = migrateUp(ctx, cfg, log)
	} else {
		err = checkSchema(ctx, cfg)
	}
	if err != nil {
		return d, err
	}
	if err := checkLogin(ctx, cfg, store); err != nil {
		return d, err
	}
	if d.Secrets, err = store.Secrets(ctx); err != nil {
		return d, err
	}
	platform, err := store.EnsurePlatform(ctx)
	if err != nil {
		return d, err
	}
	d.Platform = platform.ID
	return d, store.ProposeTiers(ctx, platform)
}

// errUnrestricted: the isolation of tenants in the database would not be enforced.
var errUnrestricted = errors.New("row-level security does not restrict it: use a login that owns nothing " +
	"(docs/operations.md, Postgres), or set WEIR_ALLOW_SUPERUSER=true to try Weir out")

// checkLogin refuses a login that could read the rows of all tenants.
func checkLogin(ctx context.Context, cfg *Config, store *tenants.Store) error {
	login, unrestricted, err := store.Unrestricted(ctx)
	if err == nil && unrestricted && !cfg.AllowSuperuser {
		err = fmt.Errorf("WEIR_DATABASE_URL: the login %q is a superuser or has BYPASSRLS, so %w", login, errUnrestricted)
	}
	return err
}

// checkSchema returns an error unless the migrations that this program needs are applied. A newer
// schema is fine, because migrations keep the previous version working.
func checkSchema(ctx context.Context, cfg *Config) error {
	version, dirty, err := migrations.Version(ctx, string(cfg.DatabaseURL))
	if err != nil {
		return err
	}
	latest, err := migrations.Latest()
	if err != nil {
		return err
	}
	if dirty || version < latest {
		return fmt.Errorf("the schema is at version %d, dirty %t, and must be at %d; WEIR_MIGRATE is off, so run: server migrate up", version, dirty, latest)
	}
	return nil
}
