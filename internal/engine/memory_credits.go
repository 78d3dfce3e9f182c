package engine

import (
	"context"
	"hash/maphash"

	"weir/internal/limit"
)

// purse reads the credits of a counter. Their shard is locked.
func (e *Memory) purse(c *Counter, now int64) *limit.Purse {
	spent := e.shardOf(c.Credits.Key).credits[c.Credits.Key]
	p := &limit.Purse{}
	p.Fill(c.Credits.Grants, now, func(id limit.GrantID) (units int64, open bool) {
		units, open = spent[id]
		return units, open
	})
	return p
}

// spend writes what an allowed call spends. The shard is locked.
func (e *Memory) spend(c *Credits, p *limit.Purse) {
	spent := e.shardOf(c.Key).credits[c.Key]
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
func (e *Memory) OpenCredits(_ context.Context, key string, grants ...limit.Spent) (opened int, err error) {
	shard := &e.shards[maphash.String(e.seed, key)%memoryShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.credits == nil {
		shard.credits = map[string]map[limit.GrantID]int64{}
	}
	spent := shard.credits[key]
	if spent == nil {
		spent = map[limit.GrantID]int64{}
		shard.credits[key] = spent
	}
	for _, g := range grants {
		units, known := spent[g.ID]
		if !known {
			opened++
		}
		spent[g.ID] = max(units, g.Units)
	}
	return opened, nil
}

// SpentCredits implements CreditStore.
func (e *Memory) SpentCredits(_ context.Context, outboxes []string, most int) ([][]limit.Spent, error) {
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
	return out, nil
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
