package engine

import (
	"cmp"
	"context"
	"hash/maphash"

	"weir/internal/limit"
)

// openGrants is what was spent of the grants of a subject for a rule.
type openGrants struct {
	spent  map[limit.GrantID]int64
	lastUS int64 // Opening.ReadUS of the last opening or closing
	closed bool  // checks cannot spend them
}

// spentOf returns what was spent of the credits with a key. Their shard is locked.
func (e *Memory) spentOf(key string) map[limit.GrantID]int64 {
	if open := e.shardOf(key).credits[key]; open != nil && !open.closed {
		return open.spent
	}
	return nil
}

// purse reads the credits of a counter. Their shard is locked.
func (e *Memory) purse(c *Counter, now int64) *limit.Purse {
	spent := e.spentOf(c.Credits.Key)
	p := &limit.Purse{}
	p.Fill(c.Credits.Grants, now, func(id limit.GrantID) (units int64, open bool) {
		units, open = spent[id]
		return units, open
	})
	return p
}

// spend writes what an allowed call spends. The shard is locked.
func (e *Memory) spend(c *Credits, p *limit.Purse) {
	spent := e.spentOf(c.Key)
	e.creditMu.Lock()
	defer e.creditMu.Unlock()
	box := e.outboxes[c.Outbox]
	if box == nil {
		box = map[limit.GrantID]int64{}
		e.outboxes[c.Outbox] = box
	}
	p.Pay(func(id limit.GrantID, units int64) {
		spent[id] += units
		box[id] = spent[id]
	})
}

// OpenCredits implements CreditStore. The twin is open_credits.lua.
func (e *Memory) OpenCredits(_ context.Context, openings ...*Opening) (opened int, err error) {
	for _, o := range openings {
		var n int
		n, o.Err = e.openCredits(o)
		opened, err = opened+n, cmp.Or(err, o.Err)
	}
	return opened, err
}

func (e *Memory) openCredits(o *Opening) (opened int, err error) {
	e.changeGrants(o, func(g *openGrants, outbox map[limit.GrantID]int64) { opened, err = g.take(o, outbox) })
	return opened, err
}

// CloseCredits implements CreditStore. The twin is close_credits.lua.
func (e *Memory) CloseCredits(_ context.Context, openings ...*Opening) []error {
	errs := make([]error, len(openings))
	for i, o := range openings {
		e.changeGrants(o, func(g *openGrants, outbox map[limit.GrantID]int64) { errs[i] = g.close(o, outbox) })
	}
	return errs
}

// changeGrants calls change with the grants of an opening, and their outbox.
func (e *Memory) changeGrants(o *Opening, change func(g *openGrants, outbox map[limit.GrantID]int64)) {
	shard := &e.shards[maphash.String(e.seed, o.Key)%memoryShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.credits == nil {
		shard.credits = map[string]*openGrants{}
	}
	open := shard.credits[o.Key]
	if open == nil {
		open = &openGrants{spent: map[limit.GrantID]int64{}}
		shard.credits[o.Key] = open
	}
	e.creditMu.Lock()
	defer e.creditMu.Unlock()
	change(open, e.outboxes[o.Outbox])
}

// older reports whether what was read for an opening may be older than the last one.
func (g *openGrants) older(o *Opening) bool {
	return g.lastUS > 0 && o.AskedUS <= g.lastUS && g.lastUS < o.AskedUS+SteppedUS
}

// close closes all grants, and raises the totals of an opening.
func (g *openGrants) close(o *Opening, outbox map[limit.GrantID]int64) error {
	if g.older(o) {
		return ErrOpenedSince
	}
	g.lastUS, g.closed = o.ReadUS, true
	for i := range o.Grants {
		s := &o.Grants[i]
		s.Units = max(s.Units, g.spent[s.ID], outbox[s.ID])
	}
	return nil
}

// take opens grants. outbox has totals that Postgres does not have yet.
func (g *openGrants) take(o *Opening, outbox map[limit.GrantID]int64) (opened int, err error) {
	var closed []limit.Spent
	kept := make(map[limit.GrantID]int64, len(o.Grants))
	raised := 0
	for _, grant := range o.Grants {
		if units, known := g.spent[grant.ID]; known && !g.closed {
			if units < grant.Units {
				raised++
			}
			kept[grant.ID] = max(units, grant.Units)
			g.spent[grant.ID] = kept[grant.ID]
		} else {
			grant.Units = max(grant.Units, units)
			closed = append(closed, grant)
		}
	}
	long := g.closed || o.Whole && len(g.spent)+len(closed) > limit.MostKeptGrants
	if len(closed) == 0 && !long {
		return raised, nil
	}
	if g.older(o) {
		if len(closed) > 0 {
			return 0, ErrOpenedSince
		}
		return raised, nil
	}
	g.closed = false
	if g.lastUS = o.ReadUS; long {
		g.spent = kept
	}
	for _, grant := range closed {
		g.spent[grant.ID] = max(grant.Units, outbox[grant.ID])
	}
	return len(closed) + raised, nil
}

// SpentCredits implements CreditStore.
func (e *Memory) SpentCredits(_ context.Context, outboxes []string, most int) ([][]limit.Spent, []error) {
	e.creditMu.Lock()
	defer e.creditMu.Unlock()
	out := make([][]limit.Spent, len(outboxes))
	for i, box := range outboxes {
		for id, units := range e.outboxes[box] {
			if len(out[i]) < most {
				out[i] = append(out[i], limit.Spent{ID: id, Units: units})
			}
		}
	}
	return out, make([]error, len(outboxes))
}

// SettleCredits implements CreditStore. The twin is settle_credits.lua.
func (e *Memory) SettleCredits(_ context.Context, outbox string, totals []limit.Spent) error {
	e.creditMu.Lock()
	defer e.creditMu.Unlock()
	for _, t := range totals {
		if e.outboxes[outbox][t.ID] == t.Units {
			delete(e.outboxes[outbox], t.ID)
		}
	}
	return nil
}

var _ CreditStore = (*Memory)(nil)
