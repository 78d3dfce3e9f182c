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
	openedTenants = 100 // tenants whose new grants are opened in one round
	openedAtOnce  = 50  // new grants of one tenant in one round

	// openFor is how long new grants are opened in one round. What was spent is settled behind
	// that, and must have its turn.
	openFor = 3 * time.Second
)

// openNewCredits tells the counters of new grants of the tenants after one, unless another server
// does. Each tenant has a small part of a round, in a transaction of its own, so neither many
// grants of one nor its errors are in the way of others. It returns where the next round begins.
func (s *Store) openNewCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, after uuid.UUID) (opened int, more bool, last uuid.UUID, err error) {
	ctx, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	var of []uuid.UUID
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		of, err = q.TenantsWithNewCredits(ctx, db.TenantsWithNewCreditsParams{After: after, Most: openedTenants})
		return err
	})
	if err != nil {
		return 0, false, after, fmt.Errorf("open credits: %w", err)
	}
	var failed []uuid.UUID
	for _, tenant := range of {
		n, full, wrong := s.openNewOf(ctx, keys, counters, tenant)
		opened, more, last = opened+n, more || full, tenant
		if wrong != nil {
			failed, err = append(failed, tenant), wrong
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(of) < openedTenants && ctx.Err() == nil {
		last = uuid.Nil // the next round begins with the first tenant
	}
	if n := len(failed); n > 0 {
		err = fmt.Errorf("open credits of %d tenants, the last one %s: %w", n, failed[n-1], err)
	}
	return opened, more || len(of) == openedTenants, last, err
}

// openNewOf tells the counters of new grants of a tenant. full means that there may be more. A
// grant of which nothing is left is never told, and counts as opened.
func (s *Store) openNewOf(ctx context.Context, keys check.Keys, counters engine.CreditStore, tenant uuid.UUID) (opened int, full bool, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		opened, full = 0, false
		mine, err := q.TryLock(ctx, creditsLock)
		if err != nil || !mine {
			return err
		}
		rows, err := q.NewCredits(ctx, db.NewCreditsParams{TenantID: tenant, Most: openedAtOnce})
		if err != nil || len(rows) == 0 {
			return err
		}
		ids, err := openRows(ctx, q, keys, counters, tenant, rows)
		if err != nil {
			return err
		}
		marked, err := q.MarkOpenedCredits(ctx, db.MarkOpenedCreditsParams{TenantID: tenant, Ids: ids})
		// If others have locked all of them, the next round does not follow at once.
		opened, full = int(marked), marked > 0 && len(ids) == openedAtOnce
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return opened, full, nil
}

// openRows opens grants of a tenant, and returns those that are open now or need not be.
func openRows(ctx context.Context, q *db.Queries, keys check.Keys, counters engine.CreditStore, tenant uuid.UUID, rows []db.NewCreditsRow) (ids []uuid.UUID, err error) {
	isOpen := map[CreditsOf]bool{}
	for _, row := range rows {
		of := CreditsOf{row.Subject, row.Rule}
		if _, done := isOpen[of]; row.Spendable && !done {
			o, err := readOpenings(ctx, q, keys, tenant, of)
			if err != nil {
				return nil, err
			}
			_, err = counters.OpenCredits(ctx, o[0])
			if err != nil && !errors.Is(err, engine.ErrOpenedSince) {
				return nil, err
			}
			isOpen[of] = err == nil
		}
		if !row.Spendable || isOpen[of] {
			ids = append(ids, row.ID)
		}
	}
	return ids, nil
}

// CreditsOf names the grants of a subject of a tenant for a rule.
type CreditsOf struct{ Subject, Rule string }

// readOpenings reads what the counters must know of some subjects' grants, in one query. The names
// must be different.
func readOpenings(ctx context.Context, q *db.Queries, keys check.Keys, tenant uuid.UUID, of ...CreditsOf) ([]*engine.Opening, error) {
	present, _, err := partitionsOf(ctx, q, tenant)
	if err != nil {
		return nil, err
	}
	p := db.SpendableCreditsParams{TenantID: tenant, Most: limit.MostKeptGrants, Finished: limit.MaxGrants}
	for _, name := range of {
		p.Subjects, p.Rules = append(p.Subjects, name.Subject), append(p.Rules, name.Rule)
	}
	rows, err := q.SpendableCredits(ctx, p)
	if err != nil {
		return nil, err
	}
	openings, at, left := make([]*engine.Opening, len(of)), make(map[CreditsOf]int, len(of)), make([]int, len(of))
	for i, name := range of {
		key := keys.CreditsKey(tenant, present[tenant], name.Subject, name.Rule)
		openings[i] = &engine.Opening{Key: key, Outbox: engine.Retag(keys.CreditsOutboxes(tenant, 1)[0], key)}
		at[name] = i
	}
	for _, row := range rows {
		i := at[CreditsOf{row.Subject, row.Rule}]
		o := openings[i]
		o.Grants = append(o.Grants, limit.Spent{ID: limit.GrantID(row.ID), Units: row.Spent, ExpiresMS: unixMilli(row.ExpiresAt)})
		o.AskedUS, o.ReadUS = row.AskedUs, max(o.ReadUS, row.ReadUs)
		if row.LeftOver {
			left[i]++
		}
	}
	for i, o := range openings {
		o.Whole = left[i] < limit.MostKeptGrants
	}
	return openings, nil
}

// OpenCredits tells the counters what was spent of grants of a tenant, after they have lost it: it
// reads them in one transaction, and tells them in one pipeline. The names must be different. It
// returns how many grants they did not know.
func (s *Store) OpenCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, tenant uuid.UUID, of ...CreditsOf) (opened int, err error) {
	var openings []*engine.Opening
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		openings, err = readOpenings(ctx, q, keys, tenant, of...)
		return err
	})
	if err != nil {
		return 0, err
	}
	openings = slices.DeleteFunc(openings, func(o *engine.Opening) bool { return len(o.Grants) == 0 })
	opened, err = counters.OpenCredits(ctx, openings...)
	if errors.Is(err, engine.ErrOpenedSince) {
		return opened, nil // a check that still misses a grant reports it again
	}
	return opened, err
}
