package tenants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

const (
	sweptAtOnce    = 500   // tenants of one round
	settledAtOnce  = 2_000 // totals of one tenant in one round
	reopenedAtOnce = 20    // subjects and rules in one round whose totals are told again
)

// CreditsSettled says what a round has done.
type CreditsSettled struct {
	Opened   int  // grants
	Settled  int  // totals
	Reopened int  // grants of which the counters had less than Postgres
	More     bool // there may be more
}

// UnsettledError is the error of a round that has settled the credits of all other tenants.
type UnsettledError struct {
	Tenants []uuid.UUID
	Last    error // of the last one
	noted   map[uuid.UUID]bool
}

func (e *UnsettledError) Error() string {
	return fmt.Sprintf("credits of %d tenants, the last one %s: %v", len(e.Tenants), e.Tenants[len(e.Tenants)-1], e.Last)
}

func (e *UnsettledError) Unwrap() error { return e.Last }

// add notes an error of a tenant, if there is one.
func (e *UnsettledError) add(tenant uuid.UUID, err error) {
	if err == nil {
		return
	}
	if e.Last = err; !e.noted[tenant] {
		if e.noted == nil {
			e.noted = map[uuid.UUID]bool{}
		}
		e.noted[tenant] = true
		e.Tenants = append(e.Tenants, tenant)
	}
}

// SettleCredits stores what was spent of the grants of some tenants. The totals are in an outbox of
// the counter store, which the check that spends writes in the same step, so nothing is lost with a
// server. A total never falls, so several servers may store it, also twice. Errors: ErrUnavailable;
// *UnsettledError if other tenants are settled, with check.ErrCountersUnavailable.
func (s *Store) SettleCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, of []uuid.UUID) (out CreditsSettled, err error) {
	err = s.settled(ctx, keys, counters, &out, func(ctx context.Context, q *db.Queries) (*totals, error) {
		return storeTotals(ctx, q, keys, counters, of, s.instant())
	})
	return out, err
}

// CreditsSweep says behind which tenants the next round of a sweep begins; uuid.Nil: with the
// first.
type CreditsSweep struct {
	Opened, Settled uuid.UUID
	behind          map[uuid.UUID]uuid.UUID // grants of tenants behind which their new ones are opened
}

// SweepCredits tells the counters of new grants, and settles the credits of some tenants, whichever
// server has spent them. It returns where the next round begins. One server at a time does it, for
// all of them; the others do nothing. What was spent is settled also if new grants cannot be
// opened. Errors: as for SettleCredits.
func (s *Store) SweepCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, at CreditsSweep) (out CreditsSettled, next CreditsSweep, err error) {
	// In transactions of their own: one that has locked new grants must not wait for other grants,
	// because a server that settles them may wait for the new ones.
	next = at
	opened, more, unopened := s.openNewCredits(ctx, keys, counters, &next)
	err = s.settled(ctx, keys, counters, &out, func(ctx context.Context, q *db.Queries) (*totals, error) {
		mine, err := q.TryLock(ctx, creditsLock)
		if err != nil || !mine {
			return nil, err
		}
		of, err := q.TenantsWithCredits(ctx, db.TenantsWithCreditsParams{After: at.Settled, Most: sweptAtOnce})
		if err != nil {
			return nil, err
		}
		if next.Settled = uuid.Nil; len(of) == sweptAtOnce {
			next.Settled = of[len(of)-1]
		}
		return storeTotals(ctx, q, keys, counters, of, s.instant())
	})
	out.Opened = opened
	out.More = out.More || more
	return out, next, errors.Join(unopened, err)
}

// totals are what the counters have spent, as it was stored.
type totals struct {
	outboxes  map[string][]limit.Spent
	owners    map[string]uuid.UUID  // of the outboxes
	failed    UnsettledError        // of outboxes that could not be read
	behind    []db.CreditsBehindRow // grants of which more had been spent before
	unsettled []uuid.UUID           // grants whose totals were not stored, because others had locked them
}

// settled runs store in a transaction, and then removes the totals that it has stored from their
// outboxes.
//
// A total that is smaller than one that was stored before comes from counters that were restored
// from an older dump, if nobody has seen it otherwise, or was read before that of another server.
// The counters are told the greater one, which does nothing if they know it.
func (s *Store) settled(
	ctx context.Context, keys check.Keys, counters engine.CreditStore, out *CreditsSettled,
	store func(context.Context, *db.Queries) (*totals, error),
) error {
	var stored *totals
	err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		stored, err = store(ctx, q)
		return err
	})
	if err != nil {
		return fmt.Errorf("settle credits: %w", err)
	}
	if stored == nil {
		return nil
	}
	failed := &stored.failed
	later := s.reopen(ctx, keys, counters, stored.behind, out, failed)
	for _, id := range stored.unsettled {
		later[limit.GrantID(id)] = true
	}
	for outbox, totals := range stored.outboxes {
		full := len(totals) == settledAtOnce
		totals = slices.DeleteFunc(totals, func(t limit.Spent) bool { return later[t.ID] })
		if len(totals) == 0 {
			continue
		}
		out.More = out.More || full
		out.Settled += len(totals)
		failed.add(stored.owners[outbox], ofCounters(ctx, counters.SettleCredits(ctx, outbox, totals)))
	}
	if failed.Last == nil {
		return nil
	}
	return fmt.Errorf("settle credits: %w", failed)
}

// reopen tells the counters what was spent of grants of which they had less. It returns the grants
// that a later round must tell: their totals stay in the outbox, where it finds them. It follows at
// once if it has to tell some of a tenant for which nothing has failed here.
func (s *Store) reopen(
	ctx context.Context, keys check.Keys, counters engine.CreditStore, behind []db.CreditsBehindRow,
	out *CreditsSettled, failed *UnsettledError,
) (later map[limit.GrantID]bool) {
	later, counters = map[limit.GrantID]bool{}, onceEach(counters)
	type name struct {
		tenant        uuid.UUID
		subject, rule string
	}
	told := map[name]bool{} // false: not in this round
	var own UnsettledError
	for _, row := range behind {
		of := name{row.TenantID, row.Subject, row.Rule}
		now, seen := told[of]
		if !seen && len(told) < reopenedAtOnce {
			opened, err := s.OpenCredits(ctx, keys, counters, row.TenantID, CreditsOf{row.Subject, row.Rule})
			out.Reopened += opened
			now = err == nil
			told[of] = now
			own.add(row.TenantID, err)
			failed.add(row.TenantID, err)
		}
		if !now {
			later[limit.GrantID(row.ID)] = true
			out.More = out.More || !slices.Contains(own.Tenants, row.TenantID)
		}
	}
	return later
}

// storeTotals stores the totals of the outboxes of some tenants, and returns them.
func storeTotals(ctx context.Context, q *db.Queries, keys check.Keys, counters engine.CreditStore, tenants []uuid.UUID, now time.Time) (*totals, error) {
	if len(tenants) == 0 {
		return nil, nil
	}
	_, most, err := partitionsOf(ctx, q, tenants...)
	if err != nil {
		return nil, err
	}
	var names []string
	var owners []uuid.UUID // of the outboxes
	for _, tenant := range tenants {
		for _, outbox := range keys.CreditsOutboxes(tenant, most[tenant]) {
			names, owners = append(names, outbox), append(owners, tenant)
		}
	}
	found, errs := counters.SpentCredits(ctx, names, settledAtOnce)
	stored := &totals{outboxes: map[string][]limit.Spent{}, owners: map[string]uuid.UUID{}}
	p := db.SettleCreditsParams{Now: now}
	for i, totals := range found {
		stored.failed.add(owners[i], ofCounters(ctx, errs[i]))
		for _, total := range totals {
			p.Tenants, p.Ids, p.Totals = append(p.Tenants, owners[i]), append(p.Ids, uuid.UUID(total.ID)), append(p.Totals, total.Units)
		}
		if len(totals) > 0 {
			stored.outboxes[names[i]], stored.owners[names[i]] = totals, owners[i]
		}
	}
	if len(p.Ids) == 0 {
		return stored, nil
	}
	raised, err := q.SettleCredits(ctx, p)
	if err != nil || raised == int64(len(p.Ids)) {
		return stored, err
	}
	// Some were stored before, or are locked.
	if stored.behind, err = q.CreditsBehind(ctx, db.CreditsBehindParams{Tenants: p.Tenants, Ids: p.Ids, Totals: p.Totals}); err != nil {
		return nil, err
	}
	stored.unsettled, err = q.CreditsUnsettled(ctx, db.CreditsUnsettledParams{Tenants: p.Tenants, Ids: p.Ids, Totals: p.Totals})
	return stored, err
}

// unixMilli returns an instant in milliseconds since 1970, and 0 for never.
func unixMilli(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMilli()
}

// CreditsKeptFor is how long a grant is kept after it was revoked, spent or has expired: as long as
// metered usage, with which it is compared.
const CreditsKeptFor = MeteringRetention

// PurgeCredits deletes grants of which nothing has been left for longer than CreditsKeptFor, and
// returns their number. It also deletes payments that are as old and have no grants. One server at
// a time does it; the others do nothing. Error: ErrUnavailable.
func (s *Store) PurgeCredits(ctx context.Context) (removed int64, err error) {
	before := s.instant().Add(-CreditsKeptFor)
	removed, err = s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
		return q.PurgeCredits(ctx, db.PurgeCreditsParams{Before: before, Most: purgeRows})
	})
	if err != nil {
		return removed, err
	}
	_, err = s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
		return q.PurgeBillingPayments(ctx, db.PurgeBillingPaymentsParams{Before: before, Most: purgeRows})
	})
	return removed, err
}
