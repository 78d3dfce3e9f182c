package tenants

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// What is due, and what has expired, is decided by time, and much of it cannot be undone: a subject
// gets another plan, and rows are deleted. A server whose clock is hours ahead, as after a start
// with the time of a wrong zone, would do so for all tenants. So the store reads the clock of
// Postgres before such work, and follows it while the server's own differs much.

const (
	// clockEvery is how often the clock of Postgres is read.
	clockEvery = 10 * time.Second
	// clockTolerance is up to which difference a server uses its own clock, which is more precise.
	clockTolerance = 2 * time.Second
)

// databaseClock is what a store knows of the clock of Postgres.
type databaseClock struct {
	follows bool // false: the clock of the store is one for tests
	read    atomic.Pointer[clockReading]
}

// clockReading is an instant of Postgres, and when it was read by the monotonic clock, which no
// change of the time of day affects.
type clockReading struct{ database, at time.Time }

// now returns the time: own, or that of Postgres if they differ much.
func (c *databaseClock) now(own time.Time) time.Time {
	r := c.read.Load()
	if r == nil {
		return own
	}
	database := r.database.Add(time.Since(r.at))
	if own.Sub(database).Abs() < clockTolerance {
		return own
	}
	return database
}

// FollowClock reads the clock of Postgres if that is due. It errs with ErrUnavailable if the clock
// is not known: then nothing should be done that depends on the time.
func (s *Store) FollowClock(ctx context.Context) error {
	before := s.clock.read.Load()
	if !s.clock.follows || before != nil && time.Since(before.at) < clockEvery {
		return nil
	}
	began := time.Now()
	var database time.Time
	err := s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		database, err = q.DatabaseTime(ctx)
		return err
	})
	switch {
	case err != nil && before == nil:
		return err
	case err != nil || before != nil && time.Since(began) > clockTolerance/2:
		return nil // the one before is better
	}
	// Postgres read it before now, so the time is never ahead.
	s.clock.read.Store(&clockReading{database, time.Now()})
	if differs := s.now().Sub(database); differs.Abs() >= clockTolerance {
		s.log.Warn("the clock of this server differs from that of Postgres, which is used instead", slog.Duration("ahead", differs))
	}
	return nil
}
