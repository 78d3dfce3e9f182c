package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

const (
	creditsLock = 7_305_421 // of the server that sweeps, an advisory lock's number

	sweptAtOnce   = 500   // tenants of one round
	settledAtOnce = 2_000 // totals of one tenant in one round
)

// CreditsSettled says what a round has done.
type CreditsSettled struct {
	Opened  int  // grants
	Settled int  // totals
	More    bool // there may be more
}

// SettleCredits stores what was spent of the grants of some tenants. The totals are in an outbox of
// the counter store, which the check that spends writes in the same step, so nothing is lost with a
// server. A total never falls, so several servers may store it, also twice. Errors: ErrUnavailable,
// those of counters.
func (s *Store) SettleCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, of []uuid.UUID) (out CreditsSettled, err error) {
	err = s.settled(ctx, counters, &out, func(ctx context.Context, q *db.Queries) (map[string][]limit.Spent, error) {
		return storeTotals(ctx, q, keys, counters, of, s.instant())
	})
	return out, err
}

// CreditsSweep says behind which tenants the next round of a sweep begins; uuid.Nil: with the
// first.
type CreditsSweep struct{ Opened, Settled uuid.UUID }

// SweepCredits tells the counters of new grants, and settles the credits of some tenants, whichever
// server has spent them. It returns where the next round begins. One server at a time does it, for
// all of them; the others do nothing. What was spent is settled also if new grants cannot be
// opened. Errors: as for SettleCredits.
func (s *Store) SweepCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, at CreditsSweep) (out CreditsSettled, next CreditsSweep, err error) {
	// In transactions of their own: one that has locked new grants must not wait for other grants,
	// because a server that settles them may wait for the new ones.
	opened, more, last, unopened := s.openNewCredits(ctx, keys, counters, at.Opened)
	next = CreditsSweep{Opened: last, Settled: at.Settled}
	err = s.settled(ctx, counters, &out, func(ctx context.Context, q *db.Queries) (map[string][]limit.Spent, error) {
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

// settled runs store in a transaction, and then removes the totals that it has stored from their
// outboxes.
func (s *Store) settled(
	ctx context.Context, counters engine.CreditStore, out *CreditsSettled,
	store func(context.Context, *db.Queries) (outboxes map[string][]limit.Spent, err error),
) error {
	var outboxes map[string][]limit.Spent
	err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		outboxes, err = store(ctx, q)
		return err
	})
	if err != nil {
		return fmt.Errorf("settle credits: %w", err)
	}
	var failed error
	for outbox, totals := range outboxes {
		out.Settled += len(totals)
		out.More = out.More || len(totals) == settledAtOnce
		failed = errors.Join(failed, counters.SettleCredits(ctx, outbox, totals))
	}
	return failed
}

// storeTotals stores the totals of the outboxes of some tenants, and returns them by outbox.
func storeTotals(ctx context.Context, q *db.Queries, keys check.Keys, counters engine.CreditStore, tenants []uuid.UUID, now time.Time) (map[string][]limit.Spent, error) {
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
	found, err := counters.SpentCredits(ctx, names, settledAtOnce)
	if err != nil {
		return nil, err
	}
	outboxes := map[string][]limit.Spent{}
	p := db.SettleCreditsParams{Now: now}
	for i, totals := range found {
		for _, total := range totals {
			p.Tenants, p.Ids, p.Totals = append(p.Tenants, owners[i]), append(p.Ids, uuid.UUID(total.ID)), append(p.Totals, total.Units)
		}
		if len(totals) > 0 {
			outboxes[names[i]] = totals
		}
	}
	if len(p.Ids) == 0 {
		return nil, nil
	}
	return outboxes, q.SettleCredits(ctx, p)
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
