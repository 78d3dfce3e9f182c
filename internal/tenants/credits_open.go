package tenants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

// mostBehind bounds the tenants of CreditsSweep.behind.
const mostBehind = 10_000

// openNewCredits tells the counters of new grants of the tenants after one, unless another server
// does. Each tenant has a small part of a round, in a transaction of its own, so neither many
// grants of one nor its errors are in the way of others. It changes at to where the next round
// begins.
func (s *Store) openNewCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, at *CreditsSweep) (opened int, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	var of []uuid.UUID
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		of, err = q.TenantsWithNewCredits(ctx, db.TenantsWithNewCreditsParams{After: at.Opened, Most: openedTenants})
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("open credits: %w", err)
	}
	if len(at.behind) > mostBehind {
		at.behind = nil
	} else {
		at.behind = maps.Clone(at.behind)
	}
	counters = onceEach(counters)
	var failed []uuid.UUID
	for _, tenant := range of {
		n, full, wrong := s.openNewOf(ctx, keys, counters, tenant, at)
		opened, more, at.Opened = opened+n, more || full, tenant
		if wrong != nil && !errors.Is(wrong, ErrNotFound) { // it was deleted, and its grants are soon
			failed, err = append(failed, tenant), wrong
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(of) < openedTenants && ctx.Err() == nil {
		at.Opened = uuid.Nil // the next round begins with the first tenant
	}
	if n := len(failed); n > 0 {
		err = fmt.Errorf("open credits of %d tenants, the last one %s: %w", n, failed[n-1], err)
	}
	return opened, more || len(of) == openedTenants, err
}

// openNewOf tells the counters of new grants of a tenant. full means that there may be more. A
// grant of which nothing is left is never told, and counts as opened. With an error of the
// counters, others may have been opened.
func (s *Store) openNewOf(
	ctx context.Context, keys check.Keys, counters engine.CreditStore, tenant uuid.UUID, at *CreditsSweep,
) (opened int, full bool, err error) {
	var away error
	var last uuid.UUID // if there may be more behind
	mine := false
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		opened, full, away, last = 0, false, nil, uuid.Nil
		var err error
		if mine, err = q.TryLock(ctx, creditsLock); err != nil || !mine {
			return err
		}
		rows, err := q.NewCredits(ctx, db.NewCreditsParams{TenantID: tenant, After: at.behind[tenant], Most: openedAtOnce})
		if err != nil || len(rows) == 0 {
			return err
		}
		if len(rows) == openedAtOnce {
			last = rows[len(rows)-1].ID
		}
		var ids []uuid.UUID
		if ids, away, err = openRows(ctx, q, keys, counters, tenant, rows); err != nil || len(ids) == 0 {
			return err
		}
		marked, err := q.MarkOpenedCredits(ctx, db.MarkOpenedCreditsParams{TenantID: tenant, Ids: ids})
		// If others have locked all of them, the next round does not follow at once.
		opened, full = int(marked), marked > 0 && len(ids) == openedAtOnce
		return err
	})
	if err != nil || !mine {
		return 0, false, err
	}
	at.setBehind(tenant, last, away != nil)
	return opened, full, away
}

// setBehind notes behind which new grant of a tenant the next round begins: once some could not be
// opened, behind the last one of the round, so that they are not in the way of more, and after the
// end again with the first one.
func (c *CreditsSweep) setBehind(tenant, last uuid.UUID, failed bool) {
	if last == uuid.Nil || !failed && c.behind[tenant] == uuid.Nil {
		delete(c.behind, tenant)
		return
	}
	if c.behind == nil {
		c.behind = map[uuid.UUID]uuid.UUID{}
	}
	c.behind[tenant] = last
}

// openRows opens grants of a tenant, and returns those that are open now or need not be. Those that
// the counters could not open keep no others: away is the error of some of them.
func openRows(
	ctx context.Context, q *db.Queries, keys check.Keys, counters engine.CreditStore, tenant uuid.UUID, rows []db.NewCreditsRow,
) (ids []uuid.UUID, away, err error) {
	at := &creditPlaces{keys: keys, tenant: tenant}
	var of []CreditsOf
	isOpen := map[CreditsOf]bool{}
	for _, row := range rows {
		name := CreditsOf{row.Subject, row.Rule}
		if _, known := isOpen[name]; row.Spendable && !known {
			of, isOpen[name] = append(of, name), true
		}
	}
	if len(of) > 0 {
		// Each statement of the transaction sees what was committed before.
		list, _, err := openCredits(ctx, counters, func(ctx context.Context) ([]*creditsOpening, error) {
			return readOpenings(ctx, q, at, of...)
		})
		switch {
		case errors.Is(err, check.ErrCountersUnavailable):
			away = err
		case err != nil && !errors.Is(err, engine.ErrOpenedSince):
			return nil, nil, err
		}
		for i, o := range list { // none: nothing is left of them
			isOpen[of[i]] = o.Err == nil
		}
	}
	for _, row := range rows {
		if !row.Spendable || isOpen[CreditsOf{row.Subject, row.Rule}] {
			ids = append(ids, row.ID)
		}
	}
	return ids, away, nil
}

// CreditsOf names the grants of a subject of a tenant for a rule.
type CreditsOf struct{ Subject, Rule string }

// creditsOpening is an opening of grants, and the key from which they could be spent before or
// after a change of the tenant's partitions.
type creditsOpening struct {
	engine.Opening
	other string // "": none
}

// readOpenings reads what the counters must know of some subjects' grants, in one query. The names
// must be different.
func readOpenings(ctx context.Context, q *db.Queries, places *creditPlaces, of ...CreditsOf) ([]*creditsOpening, error) {
	p := db.SpendableCreditsParams{TenantID: places.tenant, Most: limit.MostKeptGrants, Finished: limit.MaxGrants}
	for _, name := range of {
		p.Subjects, p.Rules = append(p.Subjects, name.Subject), append(p.Rules, name.Rule)
	}
	rows, err := q.SpendableCredits(ctx, p)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	openings, at, left := make([]*creditsOpening, len(of)), make(map[CreditsOf]int, len(of)), make([]int, len(of))
	for i, name := range of {
		openings[i], at[name] = &creditsOpening{}, i
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
	return openings, places.place(ctx, q, of, openings, rows[0].AskedUs/1000)
}

// creditPlaces says where the credits of a tenant are. It reads the number of partitions and the
// rules at most once, and the rules only for subjects that a change of partitions moves: it is for
// one opening, or for those of one transaction. A change that is committed in between is as one
// that this server does not know of yet, which openCredits allows.
type creditPlaces struct {
	keys    check.Keys
	tenant  uuid.UUID
	change  *check.PartitionChange
	numbers map[string]limit.Numbers // of the rules
}

// place fills in the keys of openings at an instant.
func (p *creditPlaces) place(ctx context.Context, q *db.Queries, of []CreditsOf, openings []*creditsOpening, nowMS int64) error {
	if err := p.readChange(ctx, q); err != nil {
		return err
	}
	outbox := p.keys.CreditsOutboxes(p.tenant, 1)[0]
	for i, name := range of {
		o := openings[i]
		o.Key, o.other = p.keys.CreditsKeys(p.tenant, p.change, name.Subject, name.Rule, &limit.Numbers{}, nowMS)
		if o.other != "" { // there are two places, whatever the numbers are, which say which one decides
			if err := p.readNumbers(ctx, q); err != nil {
				return err
			}
			n := p.numbers[name.Rule]
			o.Key, o.other = p.keys.CreditsKeys(p.tenant, p.change, name.Subject, name.Rule, &n, nowMS)
		}
		o.Outbox = engine.Retag(outbox, o.Key)
	}
	return nil
}

func (p *creditPlaces) readChange(ctx context.Context, q *db.Queries) error {
	if p.change != nil {
		return nil
	}
	head, err := q.PolicyVersion(ctx, p.tenant)
	if err != nil {
		return err
	}
	p.change = &check.PartitionChange{Partitions: int(head.Partitions)}
	if head.PartitionsChangedAt != nil && head.PartitionsBefore > 0 {
		p.change.Before, p.change.Changed = int(head.PartitionsBefore), *head.PartitionsChangedAt
	}
	return nil
}

func (p *creditPlaces) readNumbers(ctx context.Context, q *db.Queries) error {
	if p.numbers != nil {
		return nil
	}
	rules, err := q.PolicyRules(ctx, p.tenant)
	if err != nil {
		return err
	}
	numbers := make(map[string]limit.Numbers, len(rules))
	for _, row := range rules {
		r, err := ruleOf(row)
		if err != nil {
			return err
		}
		numbers[r.Rule.Slug] = r.Rule.Numbers()
	}
	p.numbers = numbers
	return nil
}

// openCredits opens grants. read must read them again each time, as they are then.
//
// Grants that may have been open at another place are closed there first, and then read again, so
// that what was spent there counts. Two servers that open the same grants at different places do
// not both succeed: each has closed the place of the other, so to open it, the other must have
// asked for the grants after the first one had read them, and the reverse as well. So no unit is
// spent twice, whatever servers believe to be the place, and whatever their clocks say.
//
// It returns the openings in the order in which they were read. Those that could not be opened have
// an Err.
func openCredits(
	ctx context.Context, counters engine.CreditStore, read func(context.Context) ([]*creditsOpening, error),
) (list []*creditsOpening, opened int, err error) {
	if list, err = read(ctx); err != nil {
		return nil, 0, err
	}
	var elsewhere []*engine.Opening
	of := make([]*creditsOpening, 0, len(list)) // of each that is elsewhere
	for _, o := range list {
		if o.other != "" && len(o.Grants) > 0 {
			closing := o.Opening
			closing.Key, closing.Outbox = o.other, engine.Retag(o.Outbox, o.other)
			elsewhere, of = append(elsewhere, &closing), append(of, o)
		}
	}
	var failed error
	if len(elsewhere) > 0 {
		errs := counters.CloseCredits(ctx, elsewhere...)
		for i := range errs {
			errs[i] = ofCounters(ctx, errs[i])
		}
		again, err := read(ctx)
		if err != nil {
			return nil, 0, err
		}
		failed = joinOpenings(list, again, of, elsewhere, errs)
	}
	var openings []*engine.Opening
	for _, o := range list {
		if len(o.Grants) > 0 {
			openings = append(openings, &o.Opening)
		}
	}
	opened, err = counters.OpenCredits(ctx, openings...)
	err = ofCounters(ctx, err)
	return list, opened, cmp.Or(notSince(failed), notSince(err), failed, err)
}

// notSince returns an error unless it is engine.ErrOpenedSince.
func notSince(err error) error {
	if errors.Is(err, engine.ErrOpenedSince) {
		return nil
	}
	return err
}

// joinOpenings gives the openings of a list whose grants were closed elsewhere what was read again,
// with what was spent elsewhere. An opening that could not be closed elsewhere loses its grants, so
// that nothing is opened.
func joinOpenings(list, again, of []*creditsOpening, elsewhere []*engine.Opening, errs []error) (failed error) {
	for n, o := range of {
		if errs[n] != nil {
			failed = cmp.Or(notSince(failed), errs[n], failed)
			o.Grants, o.Err = nil, errs[n]
			continue
		}
		spent := make(map[limit.GrantID]int64, len(o.Grants))
		for _, g := range elsewhere[n].Grants {
			spent[g.ID] = g.Units
		}
		var now engine.Opening
		if i := slices.Index(list, o); i < len(again) {
			now = again[i].Opening
		}
		// A grant that is new since was not closed.
		o.Grants = slices.DeleteFunc(now.Grants, func(g limit.Spent) bool {
			_, closed := spent[g.ID]
			return !closed
		})
		o.Whole = now.Whole && len(o.Grants) == len(now.Grants)
		for i := range o.Grants {
			g := &o.Grants[i]
			g.Units = max(g.Units, spent[g.ID])
		}
		o.ReadUS = now.ReadUS // and AskedUS stays that of the closing
	}
	return failed
}

// OpenCredits tells the counters what was spent of grants of a tenant, after they have lost it: it
// reads them in one transaction, and tells them in one pipeline; of a tenant whose partitions have
// changed, in two. The names must be different. It returns how many grants they did not know.
func (s *Store) OpenCredits(ctx context.Context, keys check.Keys, counters engine.CreditStore, tenant uuid.UUID, of ...CreditsOf) (opened int, err error) {
	at := &creditPlaces{keys: keys, tenant: tenant}
	_, opened, err = openCredits(ctx, counters, func(ctx context.Context) (openings []*creditsOpening, err error) {
		err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			openings, err = readOpenings(ctx, q, at, of...)
			return err
		})
		return openings, err
	})
	if errors.Is(err, engine.ErrOpenedSince) {
		return opened, nil // a check that still misses a grant reports it again
	}
	return opened, err
}
