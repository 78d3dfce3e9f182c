package tenants

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/internal/tenants/db"
)

// change is one change of a tenant's configuration, all or nothing. Its tenant is locked against
// other changes, so what was read stays true until the end.
type change struct {
	*db.Queries
	tx     pgx.Tx
	actor  Actor
	tenant uuid.UUID
	now    time.Time
	trail  *trail
	tier   *Tier // of the tenant; nil: not read yet
	// auditDay is how many bytes the tenant's changes may add to its trail in a day.
	auditDay int64
	chain    bool   // its rows are added to the tenant's own trail at its end
	late     *parts // of a change that takes its number at its end; nil: it has one, or needs none
	// taken gets that number; nil: nobody needs it.
	taken *int64
	// numberLast means that each call of next is one of nextAtEnd.
	numberLast bool
}

func (s *Store) newChange(q *db.Queries, tx pgx.Tx, a Actor, tenant uuid.UUID, now time.Time) *change {
	return &change{Queries: q, tx: tx, actor: a, tenant: tenant, now: now, trail: newTrail(q, tenant), auditDay: s.auditDay}
}

// change runs fn with write access to the actor's tenant, if the actor has the right, also after it
// has waited for the tenant. fn uses the actor of its change, whose permissions are the present
// ones. Errors besides those of fn: ErrForbidden, those of Actor.again, ErrUnavailable.
func (s *Store) change(ctx context.Context, a Actor, right Right, fn func(ctx context.Context, c *change) error) error {
	return s.changeWithin(ctx, a, right, s.operation, fn)
}

func (s *Store) changeWithin(ctx context.Context, a Actor, right Right, timeout time.Duration, fn func(ctx context.Context, c *change) error) error {
	return s.changeLocked(ctx, a, right, a.tenant, timeout, lockTenant, fn)
}

// changeInTurn is change for a loop over tenants, which waits only so long for a tenant that is
// locked. Error besides those of change: errLocked. It takes its connection outside of the turns of
// the tenant, for which it could wait as well: a loop has one such change at a time.
func (s *Store) changeInTurn(ctx context.Context, a Actor, wait time.Duration, fn func(ctx context.Context, c *change) error) error {
	lock := func(ctx context.Context, tx pgx.Tx, q *db.Queries, tenant uuid.UUID) error {
		return lockTenantSoon(ctx, tx, q, tenant, wait)
	}
	return s.changeLocked(ctx, a, MayEdit, uuid.Nil, s.operation, lock, fn)
}

// changeLocked is change with the turn of a connection, and with the statement that locks the
// tenant.
func (s *Store) changeLocked(
	ctx context.Context, a Actor, right Right, turn uuid.UUID, timeout time.Duration,
	lock func(ctx context.Context, tx pgx.Tx, q *db.Queries, tenant uuid.UUID) error, fn func(ctx context.Context, c *change) error,
) error {
	if !a.May(right) {
		return ErrForbidden
	}
	return s.write(ctx, roleApp, turn, timeout, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		if right == MayManage && a.kind != SystemActor {
			if err := announceUrgent(ctx, tx, q, a.tenant); err != nil {
				return err
			}
		}
		if err := lock(ctx, tx, q, a.tenant); err != nil {
			return err
		}
		// What later statements wait for is no import.
		if right == MayManage && a.kind != SystemActor {
			if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout TO DEFAULT"); err != nil {
				return err
			}
		}
		now := s.instant()
		a, err := a.mayStill(ctx, q, right, now)
		if err != nil {
			return err
		}
		c := s.newChange(q, tx, a, a.tenant, now)
		c.chain = true
		if err := fn(ctx, c); err != nil {
			return err
		}
		rows, err := c.trail.rows(ctx)
		if err != nil {
			return err
		}
		if err := appendAudit(ctx, q, c.tenant, a, c.now, s.auditDay, rows); err != nil {
			return err
		}
		return c.takeNumber(ctx)
	})
}

// urgentWait is how long a change that must not wait for an import waits for the tenant: longer
// than a batch of one takes.
const urgentWait = 4 * time.Second

// announceUrgent lets imports of the tenant end, until the transaction ends, and lets it wait
// longer for the tenant.
func announceUrgent(ctx context.Context, tx pgx.Tx, q *db.Queries, tenant uuid.UUID) error {
	if err := q.AnnounceUrgent(ctx, tenant.String()); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", strconv.FormatInt(urgentWait.Milliseconds(), 10))
	return err
}

func lockTenant(ctx context.Context, _ pgx.Tx, q *db.Queries, tenant uuid.UUID) error {
	_, err := q.LockTenant(ctx, tenant)
	return err
}

// lockTenantSoon takes the two locks that only changes and resets of the tenant itself hold, and
// waits so long for each. Later statements wait as usual: what they wait for is not the tenant's
// fault.
func lockTenantSoon(ctx context.Context, tx pgx.Tx, q *db.Queries, tenant uuid.UUID, wait time.Duration) error {
	if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", strconv.FormatInt(wait.Milliseconds(), 10)); err != nil {
		return err
	}
	err := lockTenant(ctx, tx, q, tenant)
	if err == nil {
		_, err = q.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: tenant, Genesis: genesis[:]})
	}
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == lockNotAvailable {
		return errLocked
	}
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "SET LOCAL lock_timeout TO DEFAULT")
	return err
}

// parts are the parts of a tenant that instances load separately.
type parts struct{ policy, subjects, keys, itself bool }

// and returns the parts of both.
func (p parts) and(q parts) parts {
	return parts{p.policy || q.policy, p.subjects || q.subjects, p.keys || q.keys, p.itself || q.itself}
}

// next returns the number of this change, stores it in the tenant's parts, and notifies all
// instances at commit. From here on changes of all tenants wait, so everything must have been
// validated, and the end of the trail must be locked: a reset of the tenant's counters has it while
// Redis answers, and a removal of old rows while it deletes them.
func (c *change) next(ctx context.Context, p parts) (int64, error) {
	if c.numberLast {
		return c.nextAtEnd(ctx, p)
	}
	return c.nextNow(ctx, p)
}

func (c *change) nextNow(ctx context.Context, p parts) (int64, error) {
	if c.chain {
		if _, err := c.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: c.tenant, Genesis: genesis[:]}); err != nil {
			return 0, err
		}
	}
	return c.NextVersion(ctx, db.NextVersionParams{
		TenantID: c.tenant.String(), Policy: p.policy, Subjects: p.subjects, Keys: p.keys, Itself: p.itself,
	})
}

// nextAtEnd is next for a change with so many writes that those of other tenants should not wait
// for it: the change takes its number after all of them and after its trail. The result is a number
// for its rows, between those of the tenant's earlier changes and its own. Nobody else can change
// the tenant in the meantime, so no version of an object is used twice, and an instance that has
// read up to the former reads these rows next.
//
// It is not for keys: instances read those of all tenants up to one number.
func (c *change) nextAtEnd(ctx context.Context, p parts) (int64, error) {
	now, err := c.ConfigVersion(ctx)
	if err != nil {
		return 0, err
	}
	if c.late != nil {
		p = p.and(*c.late)
	}
	c.late, c.trail.numbered = &p, true
	return now.Version + 1, nil
}

// takeNumber ends a change that takes its number at its end.
func (c *change) takeNumber(ctx context.Context) error {
	if c.late == nil {
		return nil
	}
	number, err := c.nextNow(ctx, *c.late)
	if c.taken != nil {
		*c.taken = number
	}
	return err
}
