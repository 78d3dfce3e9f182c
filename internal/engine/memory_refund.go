package engine

import (
	"context"
	"hash/maphash"

	"weir/internal/limit"
)

// Refund returns units. Overflow counters are not changed, because it is not known which key their
// units belong to. The twin is refund.lua.
func (e *Memory) Refund(_ context.Context, refunds ...*Refund) {
	for _, r := range refunds {
		r.Refused = 0
		if r.Err = r.Validate(); r.Err != nil {
			continue
		}
		for i := range r.Parts {
			if !e.refund(&r.Parts[i], r.NowMS) {
				r.Refused++
			}
		}
	}
}

func (e *Memory) refund(part *RefundPart, now int64) bool {
	if now == 0 {
		now = e.clock()
	}
	shard := &e.shards[maphash.String(e.seed, part.Key)%memoryShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	kept := shard.counters[part.Key]
	if kept == nil {
		return false
	}
	if all, scaled := e.scalings.Load(part.Key); scaled {
		now := *part
		now.Units = limit.ScaledUnits(all.([]limit.Scaling), part.Units, part.ChargedMS)
		part = &now
	}
	s, ok := kept.state.(limit.Refundable)
	if !ok || part.Units == 0 || !s.Refund(&part.Numbers, part.Units, part.Ground) && !part.afterOthers(s, now) {
		return false
	}
	if s.Idle() && kept.mark == 0 {
		e.remove(shard, kept)
	}
	return true
}

// afterOthers returns units to a bucket that was charged again since.
func (p *RefundPart) afterOthers(s limit.Refundable, now int64) bool {
	b, ok := s.(limit.Bucket)
	return ok && now <= p.Until && b.RefundAfter(&p.Numbers, p.Units, now)
}
