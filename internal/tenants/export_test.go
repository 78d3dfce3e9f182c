package tenants

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// The queries of ListSubjects and ChangedSubjects.
const (
	SubjectPageSQL   = subjectPageSQL
	NamedSubjectsSQL = namedSubjectsSQL
)

// SetLoadedPages sets how many subjects and overrides instances read at once, and how many changed
// subjects are few.
func (s *Store) SetLoadedPages(subjects, overrides, few int) {
	s.pages = loadedPages{subjects, overrides, few}
}

// LoadSubjects calls each for all subjects that were changed or deleted after version since, or for
// all subjects if since is 0, and returns the version of the first page.
func (s *Store) LoadSubjects(ctx context.Context, tenant limit.TenantID, since int64, each func(check.SubjectData)) (upTo int64, err error) {
	after := ""
	for page, more := 0, true; more; page++ {
		var version int64
		if since == 0 {
			version, more, err = s.ListSubjects(ctx, tenant, after, func(d check.SubjectData) { after = d.Subject; each(d) })
		} else {
			version, after, err = s.ChangedSubjects(ctx, tenant, since, after, each)
			more = after != ""
		}
		if err != nil {
			return 0, err
		}
		if page == 0 {
			upTo = version
		}
	}
	return upTo, nil
}

// MeteringLock is the lock of writers of metered usage and of sealing.
const MeteringLock = meteringLock

// EndMeter is what NoteMeters does with a writer that has ended.
func (s *Store) EndMeter(ctx context.Context, writer uuid.UUID, acknowledged int64) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		return endMeters(ctx, q, db.EndMeteringWritersParams{Writers: []uuid.UUID{writer}, Acknowledged: []int64{acknowledged}})
	})
}

// SetLogoWait sets how long a logo waits for its turn.
func (s *Store) SetLogoWait(d time.Duration) { s.logoWait = d }

// SetLineWait sets how long lines of an import wait for their turn.
func (s *Store) SetLineWait(d time.Duration) { s.lineWait = d }

// SetListWait sets how long lists of subjects wait for their turn.
func (s *Store) SetListWait(d time.Duration) { s.listWait = d }

// SetTurnTime sets the time of a tenant in a step of a loop of plans.
func (s *Store) SetTurnTime(d time.Duration) { s.turnTime = d }

// TakeLogoTurn takes the turn of a tenant to decode a logo.
func (s *Store) TakeLogoTurn(ctx context.Context, tenant uuid.UUID) (leave func(), err error) {
	return s.long.Load().Take(ctx, tenant)
}

// KeyExpiresAt returns when the actor's key expires; the zero time means never.
func (a Actor) KeyExpiresAt() time.Time { return a.keyExpiresAt }

// ReadKey is the first half of a lookup: it reads.
func (a *Authenticator) ReadKey(ctx context.Context, key Key) (keep func(), err error) {
	history, upTo := a.store.history.Load(), a.upTo
	hash := key.Hash()
	var row db.LookUpKeyRow
	err = a.store.asSystemWithin(ctx, lookupTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		row, err = q.LookUpKey(ctx, hash[:])
		return err
	})
	return func() { _, _, _ = a.keep(hash, row, reading{history, row.KeysVersion}, upTo) }, err
}

// ReadTenantKeys is the first half of Changed: it reads.
func (a *Authenticator) ReadTenantKeys(ctx context.Context, tenant uuid.UUID) (replace func(), err error) {
	history := a.store.history.Load()
	rows, version, err := a.store.StoredKeys(ctx, tenant)
	return func() { a.replace(tenant, rows, reading{history, version}) }, err
}

// ReadAtMost sets the number of tenants whose keys Load reads.
func (a *Authenticator) ReadAtMost(tenants int) { a.most = tenants }

// OnListening sets the function that is called with the process id of the watcher's backend.
func (w *Watcher) OnListening(f func(pid uint32)) { w.listening = f }

// TimelineFrom sets the statement with which the watcher reads the timeline.
func (w *Watcher) TimelineFrom(sql string) { w.timelineSQL = sql }

// Timeline returns the timeline as the watcher reads it.
func (s *Store) Timeline(ctx context.Context) (timeline string, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		now, err := s.watcher.state(ctx, tx, q)
		timeline = now.timeline
		return err
	})
	return timeline, err
}

// HoldConnection reads for as long as fn runs.
func (s *Store) HoldConnection(ctx context.Context, a Actor, fn func()) error {
	return s.read(ctx, a, func(context.Context, pgx.Tx, *db.Queries) error { fn(); return nil })
}

// HoldLargePlans takes the place of those who read large plans, until next is called.
func HoldLargePlans(s *Store) (next func()) {
	s.largePlans <- struct{}{}
	return func() { <-s.largePlans }
}

// BoundMetered sets the number of rows of metered usage of a tenant and hour.
func (s *Store) BoundMetered(rows int64) { s.metered.most = rows }

// ExportPlacesOf returns the places of a store with so many connections.
func ExportPlacesOf(connections int, now func() time.Time) *ExportPlaces {
	return newExports(connections, now)
}

// CarryOutCounterChanges carries out one page of changes, and waits until it has ended. If tenants
// fail whose changes may hide those of others, it carries out another one. more reports whether
// more can be done immediately. Errors: ErrUnavailable, and the first error of carry.
func (s *Store) CarryOutCounterChanges(ctx context.Context, carry func(tenant uuid.UUID, c check.CounterChange) error) (done int, more bool, err error) {
	c := s.CounterChanges(carry)
	for failed := -1; failed < len(c.failed.tenants); {
		failed = len(c.failed.tenants)
		_, full, err := c.step(ctx)
		c.work.Wait()
		n, unsettled := c.settle(ctx)
		done += n
		if err = errors.Join(err, unsettled); err != nil {
			return done, false, errors.Join(c.failed.first, err)
		}
		if more = full && n > 0; !full {
			break
		}
	}
	return done, more, c.failed.first
}

// SetDeletedPage sets how many rows of a deleted tenant one statement deletes.
func (s *Store) SetDeletedPage(rows int64) { s.deletedPage = rows }

// LargeTables are the tables whose rows of a deleted tenant are deleted in pages.
func LargeTables() (names []string) {
	for _, table := range tenantTables {
		names = append(names, table.name)
	}
	return names
}

// DeletedLock is held by the server that deletes rows of deleted tenants.
const DeletedLock = deletedLock

// FollowsDatabase makes the store follow the clock of Postgres, as one without a clock for tests
// does.
func (s *Store) FollowsDatabase() { s.clock.follows = true }
