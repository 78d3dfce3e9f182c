package engine

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"
)

// Spread decides calls whose counters have different hash tags (Call.Spread). No script can decide
// such a call at one instant, because the tags may be on different servers. Spread splits it into
// parts, one for each tag, and charges one part after the other. If a part denies, the parts before
// it are refunded, and the others are only read. So the call is charged in full or not at all, and
// the limits are never exceeded. The price:
//
//   - A call for k tags takes k runs, one after the other.
//   - Until the refund, the units of a denied call count. Another call may be denied because of
//     them.
//   - If a refund is not possible, the units count until their window is over. Parts with counters
//     that cannot be refunded (a log, a queue, a penalty, overage, credits) are therefore charged
//     last, when nothing can deny any more. If there are two such parts, or buckets that others
//     charge at the same time, the later parts are read before, so that only a race strands units.
//
// A store with one server decides the call at once, and Spread passes it on.
//
// A call that is too much work for one run of a script (MaxCallWork) is split, too, also for one
// server: into portions by their work instead of by tags. Otherwise the store would serve nothing
// else for tens of milliseconds. Only calls that decide several checks together are so large.
//
// A part that has just denied is read before anything is charged. While a limit is exhausted, its
// calls thus charge and refund nothing.
//
// Example: a check matches a rule by subject, at tag a, and a rule by nothing, at tag b. The part
// of a allows and is charged. The part of b denies: the unit at a is returned. For the next second,
// checks of other subjects first read b, and are denied without a charge.
type Spread struct {
	next    Engine
	one     bool // the store has one server
	metrics *Metrics
	seed    maphash.Seed
	denied  [spreadSlots]atomic.Int64 // by hash of the last key of a part: until when it is read first, Unix ms
}

const (
	spreadSlots = 1024
	readFirstMS = 1000 // after a denial
)

// NewSpread returns a layer in front of next. If the store has one server, only heavy calls are
// split.
func NewSpread(next Engine, one bool, metrics *Metrics) *Spread {
	return &Spread{next: next, one: one, metrics: metrics, seed: maphash.MakeSeed()}
}

// SeveralTags reports whether the counters have different hash tags.
func (c *Call) SeveralTags() bool {
	return slices.ContainsFunc(c.Counters, func(o Counter) bool { return HashTag(o.Key) != HashTag(c.Counters[0].Key) })
}

// Evaluate implements Engine. All calls take each step together, so many calls take as many round
// trips as one. They charge the tags in the same order, so each counter sees them in their order.
func (s *Spread) Evaluate(ctx context.Context, calls ...*Call) {
	for len(calls) > 0 {
		// A heavy call is decided by itself: its portions would not charge a counter in the order
		// of the calls.
		n := slices.IndexFunc(calls, (*Call).heavy)
		switch n {
		case -1:
			n = len(calls)
		case 0:
			n = 1
		}
		s.decide(ctx, calls[:n])
		calls = calls[n:]
	}
}

// decide decides calls of which none is heavy, or a single one.
func (s *Spread) decide(ctx context.Context, calls []*Call) {
	if !slices.ContainsFunc(calls, func(c *Call) bool { return c.Spread && !s.one || c.heavy() }) {
		s.next.Evaluate(ctx, calls...)
		return
	}
	undecided := splitCalls(calls)
	for len(undecided) > 0 {
		s.evaluate(ctx, undecided)
		undecided = again(undecided)
	}
}

// again returns the calls to decide once more: those that were denied while an earlier call of the
// same request had units that it has returned by now. Each round decides one call at least.
func again(calls []*splitCall) (undecided []*splitCall) {
	returned := false
	for _, c := range calls {
		if returned && c.denier >= 0 {
			undecided = append(undecided, newSplitCall(c.full))
		}
		returned = returned || c.denier >= 0 && c.charged > 0
	}
	if len(undecided) > 0 {
		order(undecided)
	}
	return undecided
}

// splitCall is a call with its parts.
type splitCall struct {
	full    *Call
	parts   []callPart // in the order in which they are charged
	charged int        // parts that are charged, the first ones
	denier  int        // the part that denied, or -1
}

// callPart is the part of a call for one tag, or a portion of it.
type callPart struct {
	tag    string
	number int  // of the portion, if the call is heavy
	rank   int  // see refundRank
	second bool // it has such counters
	turn   int  // of the tag and portion, among those of all calls
	call   Call
	places []int // of its counters in the full call
	known  bool  // its verdicts are final
	state  Call  // of a denied call: reads what this part would have allowed
}

func splitCalls(calls []*Call) (split []*splitCall) {
	for _, c := range calls {
		split = append(split, newSplitCall(c))
	}
	order(split)
	return split
}

func newSplitCall(c *Call) *splitCall {
	s := &splitCall{full: c, denier: -1}
	var portions []int
	if c.heavy() {
		portions = c.portions()
	}
	for i := range c.Counters {
		counter, number := &c.Counters[i], 0
		if portions != nil {
			number = portions[i]
		}
		tag := HashTag(counter.Key)
		at := slices.IndexFunc(s.parts, func(p callPart) bool { return p.tag == tag && p.number == number })
		if at < 0 {
			at = len(s.parts)
			s.parts = append(s.parts, callPart{tag: tag, number: number, call: Call{
				Tenant: c.Tenant, PerCounter: c.PerCounter, DryRun: c.DryRun, NowMS: c.NowMS, Started: c.Started, Fresh: c.Fresh, Leased: true, Space: c.Space,
			}})
		}
		p := &s.parts[at]
		p.call.Counters, p.places = append(p.call.Counters, *counter), append(p.places, i)
		p.call.Cost = max(p.call.Cost, c.CostOf(i))
		p.call.Leased = p.call.Leased && (counter.Leased || c.Leased)
		p.rank, p.second = max(p.rank, counter.refundRank()), p.second || counter.Second
	}
	return s
}

// refundRank is the order in which counters are charged: 0, a refund succeeds; 1, units may be
// prefetched; 2, a refund fails if others charge the counter in the meantime; 3, there is none.
func (c *Counter) refundRank() int {
	switch n := &c.Numbers; {
	case c.Credits != nil, !n.Leasable(), !n.Refundable():
		return 3
	case n.Algorithm.Bucket():
		return 2
	case c.Leased:
		return 1
	}
	return 0
}

// afterAllRanks is the rank of second counters, which are charged last.
const afterAllRanks = 4

// chargeRank is refundRank with second counters last.
func (c *Counter) chargeRank() int {
	if c.Second {
		return afterAllRanks
	}
	return c.refundRank()
}

// order orders the parts of all calls by their tags.
func order(calls []*splitCall) {
	type tagRank struct {
		tag    string
		number int
		rank   int
	}
	var tags []tagRank
	for _, c := range calls {
		for i := range c.parts {
			p := &c.parts[i]
			at := slices.IndexFunc(tags, func(t tagRank) bool { return t.tag == p.tag && t.number == p.number })
			if at < 0 {
				at = len(tags)
				tags = append(tags, tagRank{tag: p.tag, number: p.number})
			}
			tags[at].rank = max(tags[at].rank, p.rank)
			if p.second {
				tags[at].rank = afterAllRanks
			}
		}
	}
	slices.SortStableFunc(tags, func(a, b tagRank) int { return cmp.Compare(a.rank, b.rank) })
	for _, c := range calls {
		for i := range c.parts {
			p := &c.parts[i]
			p.turn = slices.IndexFunc(tags, func(t tagRank) bool { return t.tag == p.tag && t.number == p.number })
		}
		slices.SortFunc(c.parts, func(a, b callPart) int { return cmp.Compare(a.turn, b.turn) })
		for i := range c.parts[:max(0, len(c.parts)-1)] {
			c.parts[i].call.Leased = false // a unit that was granted from memory cannot be refunded
		}
	}
}

// charges reports whether the call changes anything if it is allowed.
func (c *splitCall) charges() bool { return !c.full.DryRun && c.full.Cost > 0 }

func (s *Spread) evaluate(ctx context.Context, calls []*splitCall) {
	s.readFirst(ctx, calls)
	turns := 0
	for _, c := range calls {
		for i := range c.parts {
			turns = max(turns, c.parts[i].turn+1)
		}
	}
	for turn := range turns {
		s.charge(ctx, calls, turn)
	}
	s.refund(ctx, calls)
	s.readRest(ctx, calls)
	for _, c := range calls {
		c.join()
	}
}

// charge evaluates the parts of one tag, of calls that no other part has denied.
func (s *Spread) charge(ctx context.Context, calls []*splitCall, turn int) {
	asked := s.step(ctx, calls, func(c *splitCall, p *callPart) bool {
		return p.turn == turn && !p.known && (c.denier < 0 || !c.charges())
	})
	for _, a := range asked {
		c, p := a.of, a.part
		p.known = true
		switch {
		case !p.call.Outcome.Allowed && c.denier < 0:
			c.deny(p)
			s.slot(p).Store(c.full.Started.UnixMilli() + readFirstMS)
		case c.charges():
			c.charged++
		}
	}
}

// deny notes that a part has denied the call.
func (c *splitCall) deny(p *callPart) {
	c.denier = slices.IndexFunc(c.parts, func(o callPart) bool { return o.turn == p.turn })
}

// asked is a part that was evaluated.
type asked struct {
	of   *splitCall
	part *callPart
}

// step evaluates the parts that are chosen, all in one call of the next engine.
func (s *Spread) step(ctx context.Context, calls []*splitCall, chosen func(*splitCall, *callPart) bool) (parts []asked) {
	var sent []*Call
	for _, c := range calls {
		for i := range c.parts {
			if p := &c.parts[i]; chosen(c, p) {
				parts = append(parts, asked{c, p})
				sent = append(sent, &p.call)
			}
		}
	}
	if len(sent) > 0 {
		s.next.Evaluate(ctx, sent...)
	}
	return parts
}

// readFirst reads the parts that have denied a moment ago, and those before which a part is charged
// whose refund can fail. If one of them denies, its call is decided.
func (s *Spread) readFirst(ctx context.Context, calls []*splitCall) {
	for _, c := range calls {
		for i := range c.parts {
			p := &c.parts[i]
			fails := i > 0 && c.parts[i-1].rank > 1
			recently := len(c.parts) > 1 && s.slot(p).Load() > c.full.Started.UnixMilli()
			p.call.DryRun = c.full.DryRun || c.charges() && (fails || recently)
		}
	}
	for _, a := range s.step(ctx, calls, func(c *splitCall, p *callPart) bool { return c.charges() && p.call.DryRun }) {
		c, p := a.of, a.part
		p.call.DryRun = false
		if !p.call.Outcome.Allowed && c.denier < 0 {
			c.deny(p)
			p.known = !p.penalizes()
			s.slot(p).Store(c.full.Started.UnixMilli() + readFirstMS)
		}
	}
}

// slot returns when a part is read first.
func (s *Spread) slot(p *callPart) *atomic.Int64 {
	last := &p.call.Counters[len(p.call.Counters)-1]
	return &s.denied[maphash.String(s.seed, last.Key)%spreadSlots]
}

// refund returns what was charged for calls that a later part has denied.
func (s *Spread) refund(ctx context.Context, calls []*splitCall) {
	var refunds []*Refund
	for _, c := range calls {
		if c.denier < 0 {
			continue
		}
		for i := range c.parts[:c.charged] {
			r, lost := c.parts[i].refund()
			s.metrics.spreadStranded.Add(float64(lost))
			if len(r.Parts) > 0 {
				refunds = append(refunds, r)
				s.metrics.spreadRefunds.Add(float64(len(r.Parts)))
			}
		}
	}
	if len(refunds) == 0 {
		return
	}
	s.next.Refund(ctx, refunds...)
	for _, r := range refunds {
		if r.Err != nil { // it may have been returned or not
			r.Refused = len(r.Parts)
		}
		s.metrics.spreadStranded.Add(float64(r.Refused))
	}
}

// refund returns the refund of a charged part, and the number of its counters that cannot be
// refunded.
func (p *callPart) refund() (r *Refund, lost int) {
	r = &Refund{}
	if p.call.Outcome.Degraded {
		return r, 0 // it was charged in memory, if at all
	}
	for i := range p.call.Counters {
		counter, v := &p.call.Counters[i], &p.call.Outcome.Verdicts[i]
		units := p.call.CostOf(i)
		switch {
		case !v.Allowed || units == 0: // a counter in shadow mode was not charged
		case counter.refundRank() == 3:
			lost++
		default:
			r.Parts = append(r.Parts, RefundPart{
				Key: counter.OwnKey(), ID: counter.ID, Numbers: counter.Numbers, Units: units,
				Ground: counter.Numbers.Ground(v, p.call.Outcome.NowMS), ChargedMS: p.call.Outcome.NowMS,
			})
		}
	}
	return r, lost
}

// readRest reads the parts of denied calls of which more must be known: whether they would have
// allowed the call, and their unchanged state. A rule with a penalty begins it also if another one
// denies, so such a part is called if it denies.
func (s *Spread) readRest(ctx context.Context, calls []*splitCall) {
	var rest []*callPart
	var sent []*Call
	for _, c := range calls {
		if c.denier < 0 {
			continue
		}
		for i := range c.parts {
			p := &c.parts[i]
			if p.known && !p.call.Outcome.Allowed {
				continue // it denied and has changed nothing
			}
			p.call.DryRun, p.call.Leased = true, false
			p.state = p.call
			p.state.Cost, p.state.PerCounter, p.state.Outcome = 0, false, Outcome{}
			if p.state.Counters = slices.Clone(p.call.Counters); p.call.PerCounter {
				for j := range p.state.Counters {
					p.state.Counters[j].Cost = 0
				}
			}
			rest, sent = append(rest, p), append(sent, &p.call, &p.state)
		}
	}
	if len(sent) == 0 {
		return
	}
	s.next.Evaluate(ctx, sent...)
	sent = sent[:0]
	for _, c := range calls {
		for i := range c.parts {
			if p := &c.parts[i]; c.charges() && slices.Contains(rest, p) && p.penalizes() && !p.call.Outcome.Allowed {
				p.call.DryRun = false
				sent = append(sent, &p.call)
			}
		}
	}
	if len(sent) > 0 {
		s.next.Evaluate(ctx, sent...)
	}
	for _, p := range rest {
		for i := range p.call.Outcome.Verdicts {
			if v := &p.call.Outcome.Verdicts[i]; v.Allowed && i < len(p.state.Outcome.Verdicts) {
				*v = p.state.Outcome.Verdicts[i]
				v.DelayMS = 0 // the read is an allowed call, and this one is not
			}
		}
	}
}

// penalizes reports whether a denial of the part may begin a penalty.
func (p *callPart) penalizes() bool {
	return slices.ContainsFunc(p.call.Counters, func(c Counter) bool { return c.Numbers.PenaltyMS > 0 })
}

// join fills in the outcome of the call from those of its parts. The instants of a part are those
// of its server's clock, and are moved to the clock of the first.
func (c *splitCall) join() {
	full := c.full
	full.clear()
	out := &full.Outcome
	verdicts := slices.Grow(out.Verdicts[:0], len(full.Counters))[:len(full.Counters)]
	*out = Outcome{Allowed: c.denier < 0, Verdicts: verdicts}
	for i := range c.parts {
		part := &c.parts[i].call
		if part.Err != nil {
			full.Err = part.Err
			return
		}
		if i == 0 {
			out.NowMS = part.Outcome.NowMS
		}
		out.Degraded = out.Degraded || part.Outcome.Degraded
		for n, place := range c.parts[i].places {
			v := part.Outcome.Verdicts[n]
			v.ResetMS += out.NowMS - part.Outcome.NowMS
			v.NextMS += out.NowMS - part.Outcome.NowMS
			verdicts[place] = v
		}
	}
}

// Reset implements Engine.
func (s *Spread) Reset(ctx context.Context, counters ...Counter) error {
	return s.next.Reset(ctx, counters...)
}

// Refund implements Engine.
func (s *Spread) Refund(ctx context.Context, refunds ...*Refund) { s.next.Refund(ctx, refunds...) }

// Amend implements Engine.
func (s *Spread) Amend(ctx context.Context, a *Amendment) error { return s.next.Amend(ctx, a) }
