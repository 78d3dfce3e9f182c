package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weir/internal/snapshot"
	"weir/migrations"
)

// snapshotAfter is how long a start waits for Postgres until it uses the snapshot.
const snapshotAfter = time.Second

// schemaRetry is how often a server that started with the snapshot tries a migration again that the
// database has refused. Each attempt has the locks of the migration for a moment.
const schemaRetry = 30 * time.Second

// startup is where an instance has its configuration from when it starts.
type startup struct {
	snapshot.Deployment
	file     *snapshot.File // nil: Postgres
	prepared chan struct{}  // closed when Postgres can be used
}

// prepare waits for Postgres. If there is a snapshot, it waits only for snapshotAfter, and then
// returns what the snapshot has, while the wait continues in the background: a schema that
// cannot be migrated does not end it. It fails if ctx ends, and on errors that a retry cannot fix.
func (s *service) prepare(ctx, working context.Context) (*startup, error) {
	out := &startup{prepared: make(chan struct{})}
	if s.cfg.SnapshotFile == "" {
		var err error
		out.Deployment, err = prepareDatabase(ctx, s.cfg, s.store, s.front, s.log)
		close(out.prepared)
		return out, err
	}
	type result struct {
		deployment snapshot.Deployment
		err        error
	}
	results := make(chan result, 1)
	s.background.Go(func() {
		d, err := prepareDatabase(working, s.cfg, s.store, s.front, s.log)
		results <- result{d, err}
	})
	timer := time.NewTimer(snapshotAfter)
	defer timer.Stop()
	for {
		select {
		case r := <-results:
			out.Deployment = r.deployment
			close(out.prepared)
			return out, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
		}
		file, err := s.openSnapshot()
		if err != nil {
			s.log.Warn("WEIR_SNAPSHOT_FILE cannot be used; waiting for the database", "error", err)
			continue
		}
		s.log.Warn("the database does not answer: started with the configuration in WEIR_SNAPSHOT_FILE", "taken_at", file.TakenAt, "tenants", len(file.Tenants))
		out.file, out.Deployment = file, file.Deployment
		s.background.Go(func() {
			r := <-results
			again := time.NewTicker(schemaRetry)
			defer again.Stop()
			r.deployment, r.err = whileRefused(working, r.deployment, r.err, again.C, s.log, func() (snapshot.Deployment, error) {
				return prepareDatabase(working, s.cfg, s.store, s.front, s.log)
			})
			if r.err == nil && r.deployment != file.Deployment {
				r.err = errors.New("it has the configuration of another database than WEIR_DATABASE_URL: remove it, and start again")
			}
			if r.err != nil {
				s.front.failIf("WEIR_SNAPSHOT_FILE", r.err)
				return
			}
			close(out.prepared)
		})
		return out, nil
	}
}

// whileRefused repeats prepare at each tick, as long as err, of the attempt before, says that the
// schema cannot be migrated: an operator can change that, and checks are answered meanwhile.
func whileRefused(ctx context.Context, d snapshot.Deployment, err error, tick <-chan time.Time, log *slog.Logger,
	prepare func() (snapshot.Deployment, error),
) (snapshot.Deployment, error) {
	for {
		var dirty *migrations.DirtyError
		var failed *migrations.FailedError
		if !errors.As(err, &dirty) && !errors.As(err, &failed) {
			return d, err
		}
		log.Error("the database cannot be migrated; continuing with WEIR_SNAPSHOT_FILE, and trying again", "error", err)
		select {
		case <-ctx.Done():
			return d, ctx.Err()
		case <-tick:
		}
		d, err = prepare()
	}
}

func (s *service) openSnapshot() (*snapshot.File, error) {
	ring, err := s.cfg.ring()
	if err != nil {
		return nil, err
	}
	return snapshot.Open(s.cfg.SnapshotFile, ring, time.Now(), s.cfg.SnapshotMaxAge, int64(s.cfg.SnapshotSize))
}

// keepSnapshot keeps the snapshot up to date until ctx ends, if the operator wants one.
func (s *service) keepSnapshot(ctx context.Context, from *startup) error {
	if s.cfg.SnapshotFile == "" {
		return nil
	}
	ring, err := s.cfg.ring()
	if err != nil {
		return err
	}
	writer := snapshot.NewWriter(snapshot.WriterOptions{
		Path: s.cfg.SnapshotFile, MaxBytes: int64(s.cfg.SnapshotSize), MaxAge: s.cfg.SnapshotMaxAge,
		Deployment: from.Deployment, Store: s.store, Ring: ring,
		Clock: time.Now, Logger: s.log, Registerer: s.registry,
	})
	s.background.Go(func() {
		if from.isPrepared(ctx) {
			writer.Run(ctx)
		}
	})
	return nil
}

// configAge returns the age of the configuration in memory; -1 before it was read. One from a
// snapshot always counts as stale, because nothing has verified it.
func (s *service) configAge(from *startup) func() time.Duration {
	return func() time.Duration {
		age := s.store.Watcher().Age()
		if age < 0 && from.file != nil {
			return max(time.Since(from.file.TakenAt), configStale+1)
		}
		return age
	}
}

// isPrepared reports whether Postgres can be used, once it is or ctx ends.
func (s *startup) isPrepared(ctx context.Context) bool {
	select {
	case <-s.prepared:
		return true
	case <-ctx.Done():
		return false
	}
}
