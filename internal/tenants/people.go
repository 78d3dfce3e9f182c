package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// PeopleRetention is how long a person without a tenant is kept, and how long an unaccepted
// invitation stays in the list of members after its link has expired.
const PeopleRetention = 30 * 24 * time.Hour

// PurgedPeople is what PurgePeople has deleted.
type PurgedPeople struct {
	Invitations int64 // withdrawn
	People      int64 // people who were deleted, with their logins
}

// peopleAtOnce is the maximum number of people or invitations in one transaction.
const peopleAtOnce = 1000

// PurgePeople withdraws invitations whose link expired PeopleRetention ago, each with a row in the
// tenant's trail, and deletes people who have been in no tenant for PeopleRetention. That time
// begins when a call first finds them. A tenant whose invitations cannot be withdrawn does not keep
// the rest. Several servers may call it concurrently. Errors: ErrUnavailable, and that of the first
// such tenant.
func (s *Store) PurgePeople(ctx context.Context) (purged PurgedPeople, err error) {
	before := s.instant().Add(-PeopleRetention)
	purged.Invitations, err = s.withdrawStale(ctx, before)
	if ctx.Err() != nil {
		return purged, err
	}
	if failed := s.markPeopleAlone(ctx); failed != nil {
		return purged, errors.Join(err, fmt.Errorf("find people without a tenant: %w", failed))
	}
	for n := int64(peopleAtOnce); n == peopleAtOnce; purged.People += n {
		var failed error
		if n, failed = s.forgetPeople(ctx, before); failed != nil {
			return purged, errors.Join(err, fmt.Errorf("delete people without a tenant: %w", failed))
		}
	}
	return purged, err
}

// withdrawStale tries no other invitation of a tenant that fails, which is probably locked: to wait
// for each of them would take very long.
func (s *Store) withdrawStale(ctx context.Context, before time.Time) (withdrawn int64, err error) {
	err = purgeRound[db.StaleInvitationsRow]{at: &s.turns.invitations, most: peopleAtOnce,
		tenant: func(row db.StaleInvitationsRow) uuid.UUID { return row.TenantID },
		behind: func(tenant uuid.UUID) db.StaleInvitationsRow {
			return db.StaleInvitationsRow{TenantID: tenant, ID: uuid.Max}
		},
		read: func(last db.StaleInvitationsRow) (stale []db.StaleInvitationsRow, err error) {
			err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
				stale, err = q.StaleInvitations(ctx, db.StaleInvitationsParams{Before: before, AfterTenant: last.TenantID, AfterMember: last.ID, Most: peopleAtOnce})
				return err
			})
			if err != nil {
				err = fmt.Errorf("look for expired invitations: %w", err)
			}
			return stale, err
		},
		do: func(row db.StaleInvitationsRow) error {
			done, err := s.withdrawIfStale(ctx, row.TenantID, row.ID, before)
			if err != nil {
				return fmt.Errorf("withdraw expired invitations of %s: %w", row.TenantID, err)
			}
			if done {
				withdrawn++
			}
			return nil
		},
	}.run(ctx)
	return withdrawn, err
}

// withdrawIfStale does not withdraw the invitation of a tenant's first owner, nor that of a person
// who joined or got a new link in the meantime.
func (s *Store) withdrawIfStale(ctx context.Context, tenant, id uuid.UUID, before time.Time) (done bool, err error) {
	ctx = WithReason(ctx, "the invitation was not followed")
	err = s.change(ctx, AsSystem(tenant, "purge"), MayManage, func(ctx context.Context, c *change) error {
		m, err := c.member(ctx, id, Match{})
		if err != nil {
			return err
		}
		ended, err := c.InvitationEnd(ctx, db.InvitationEndParams{TenantID: tenant, ID: id})
		if err != nil || m.State != MemberInvited || !ended.Before(before) {
			return err
		}
		if m.Role == Owner {
			joined, err := c.CountOtherOwners(ctx, db.CountOtherOwnersParams{TenantID: tenant, ID: id})
			if err != nil || joined == 0 {
				return err
			}
		}
		done = true
		return c.remove(ctx, m)
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return done, err
}

// markPeopleAlone records since when people are in no tenant. It skips people who are locked
// because they are becoming members.
func (s *Store) markPeopleAlone(ctx context.Context) error {
	now := s.instant()
	for _, mark := range []func(context.Context, *db.Queries) (int64, error){
		func(ctx context.Context, q *db.Queries) (int64, error) { return q.ClearPeopleAlone(ctx, peopleAtOnce) },
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.MarkPeopleAlone(ctx, db.MarkPeopleAloneParams{Now: &now, Most: peopleAtOnce})
		},
	} {
		for n := int64(peopleAtOnce); n == peopleAtOnce; {
			err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
				n, err = mark(ctx, q)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) forgetPeople(ctx context.Context, before time.Time) (n int64, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		ids, err := q.LockPeopleAlone(ctx, db.LockPeopleAloneParams{Before: &before, Most: peopleAtOnce})
		if err != nil || len(ids) == 0 {
			return err
		}
		n, err = q.DeletePeople(ctx, ids)
		return err
	})
	return n, err
}

// holdPerson returns the id of the person with this email, and creates the person with that login
// (nil: without one) if necessary. Until the transaction ends, the person cannot be deleted.
func holdPerson(ctx context.Context, q *db.Queries, email string, hash *string) (id uuid.UUID, created bool, err error) {
	const tries = 3 // a person can be deleted between the two statements, but only once
	for range tries {
		id = newID()
		n, err := q.InsertPerson(ctx, db.InsertPersonParams{ID: id, Email: email, PasswordHash: hash})
		if err != nil || n == 1 {
			return id, true, err
		}
		id, err = q.HoldPerson(ctx, email)
		if !errors.Is(err, pgx.ErrNoRows) {
			return id, false, err
		}
	}
	return uuid.Nil, false, fmt.Errorf("%w: the person was deleted repeatedly", ErrUnavailable)
}
