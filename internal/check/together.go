package check

import (
	"context"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// together is the call of several requests that are decided as one.
type together struct {
	call   engine.Call
	places []int // for each counter of each evaluation, in order: its index in call.Counters
	later  []int64
	paid   []int64
}

// CheckTogetherInTurns decides the requests as one: if every decision allows, all of them are
// charged, and otherwise none. Each decision is the result of its own request, so an allowing
// decision has no effect if another one denies.
//
// All counters are evaluated at one instant. A counter that several requests share is charged the
// sum of their costs. If their limits differ, the smallest limit and the smallest burst apply, so
// the sum never exceeds any of them.
//
// Observers are notified of all requests if they were allowed, and otherwise only of those that
// were denied by themselves, because nothing was decided about the others.
//
// The decisions are in scratch, and valid until it is used again. It fails in the same way as
// CheckIn, and takes turns as CheckInTurns does.
func (c *Checker) CheckTogetherInTurns(_ context.Context, p *Policy, reqs []Request, scratch *Scratch, turn func() (end func())) (_ []Decision, err error) {
	t := &scratch.together
	var started time.Time
	var evaluations []evaluation
	inTurn(turn, func() {
		started = c.now()
		if evaluations, err = c.resolve(p, reqs, scratch, started); err == nil {
			t.join(evaluations, started)
		}
	})
	if err != nil {
		return nil, err
	}
	if len(t.call.Counters) > 0 {
		c.engine.Evaluate(context.Background(), &t.call)
	}
	inTurn(turn, func() { c.concludeTogether(p, reqs, scratch, evaluations, started) })
	return scratch.decisions, nil
}

// concludeTogether is conclude for requests that are decided as one.
func (c *Checker) concludeTogether(p *Policy, reqs []Request, scratch *Scratch, evaluations []evaluation, started time.Time) {
	allowed := scratch.together.conclude(evaluations)
	scratch.decisions = scratch.decisions[:0]
	for i := range evaluations {
		d := &evaluations[i].decision
		scratch.decisions = append(scratch.decisions, *d)
		if d.Allowed && !allowed {
			continue
		}
		c.metrics.decided(d)
		c.tellCredits(p.tenant, d)
		for _, o := range c.observers {
			o.Decided(p.tenant, &reqs[i], d, started)
		}
	}
	c.metrics.evaluation.Observe(c.now().Sub(started).Seconds())
}

// join creates one call for all evaluations. A blocked subject or a required attribute that is
// missing denies all of them, so nothing may be charged then.
func (t *together) join(evaluations []evaluation, started time.Time) {
	first := &evaluations[0]
	t.places = t.places[:0]
	t.call = engine.Call{
		Tenant: first.policy.tenant, Cost: first.req.Cost, Started: started,
		Counters: t.call.Counters[:0], Outcome: engine.Outcome{Verdicts: t.call.Outcome.Verdicts[:0]},
	}
	shared := false
	for i := range evaluations {
		e := &evaluations[i]
		t.call.DryRun = t.call.DryRun || e.req.DryRun || e.denied
		t.call.Fresh = t.call.Fresh || e.req.Explain
		t.call.PerCounter = t.call.PerCounter || e.req.Cost != first.req.Cost
		if e.decision.Code == SubjectBlocked {
			continue
		}
		for n := range e.call.Counters {
			place, twice := t.add(&e.call.Counters[n], e.req.Cost)
			shared = shared || twice
			t.places = append(t.places, place)
		}
	}
	t.call.PerCounter = t.call.PerCounter || shared
	t.call.Cost = 0
	t.call.Spread = first.policy.places.spread(&t.call)
	for i := range t.call.Counters {
		c := &t.call.Counters[i]
		t.call.Cost = max(t.call.Cost, c.Cost)
		if !t.call.PerCounter {
			c.Cost = 0
		}
	}
}

// add adds a counter of a request with this cost. It returns the counter's index, and whether an
// earlier request has it too.
func (t *together) add(c *engine.Counter, cost int64) (place int, shared bool) {
	for i := range t.call.Counters {
		other := &t.call.Counters[i]
		if !other.Same(c) {
			continue
		}
		other.Cost += cost
		other.Shadow = other.Shadow && c.Shadow // for an exempt subject it is in shadow mode
		lower(&other.Numbers, &c.Numbers)
		return i, true
	}
	t.call.Counters = append(t.call.Counters, *c)
	t.call.Counters[len(t.call.Counters)-1].Cost = cost
	return len(t.call.Counters) - 1, false
}

// lower lowers the numbers of one rule for a subject so that they do not exceed those for another
// one. A bucket may have the greater burst of one and the faster refill of the other, so each is
// lowered by itself. Numbers with overage are the greater ones.
func lower(n, other *limit.Numbers) {
	switch {
	case n.Overage && !other.Overage:
		*n = *other
	case n.Overage == other.Overage:
		n.Limit, n.Burst = min(n.Limit, other.Limit), min(n.Burst, other.Burst)
	}
}

// conclude copies the engine's verdicts into the decisions, and reports whether all of them allow.
func (t *together) conclude(evaluations []evaluation) (allowed bool) {
	out := &t.call.Outcome
	places := t.places
	allowed = true
	excess := false
	for i := range evaluations {
		e := &evaluations[i]
		d := &e.decision
		if d.Code != SubjectBlocked {
			if len(e.counted) > 0 {
				d.NowMS, d.Degraded = out.NowMS, out.Degraded
			}
			for n, rule := range e.counted {
				place := places[n]
				d.Rules[rule].take(&t.call, place, out.NowMS)
				d.Rules[rule].JointCost = t.call.Counters[place].Cost
				excess = excess || d.Rules[rule].Overage > 0 || d.Rules[rule].CreditsSpent > 0
			}
			for k, n := range e.nextOf {
				place := places[len(e.counted)+k]
				e.takeNext(&d.Rules[e.counted[n]], &t.call, place, out.NowMS)
			}
			places = places[len(e.call.Counters):]
			d.conclude()
		}
		allowed = allowed && d.Allowed
	}
	for i := range evaluations {
		d := &evaluations[i].decision
		if !allowed {
			d.HasDelay, d.DelayMS = false, 0 // nothing was allowed, so there is no delay
		}
	}
	if excess {
		t.splitExcess(evaluations, allowed)
	}
	return allowed
}

// splitExcess divides the excess and the spent credits of counters that several requests share. The
// later ones come first: an earlier request has excess only if they have nothing else.
func (t *together) splitExcess(evaluations []evaluation, allowed bool) {
	t.later = slices.Grow(t.later[:0], len(t.call.Counters))[:len(t.call.Counters)]
	clear(t.later) // for each counter, what the later requests have charged to the window
	t.paid = slices.Grow(t.paid[:0], len(t.call.Counters))[:len(t.call.Counters)]
	for i := range t.paid { // for each counter, the credits that are not attributed yet
		t.paid[i] = t.call.Outcome.Verdicts[i].CreditsSpent
	}
	first := len(t.places)
	for i := len(evaluations) - 1; i >= 0; i-- {
		e := &evaluations[i]
		if e.decision.Code != SubjectBlocked {
			first -= len(e.call.Counters)
		}
		for n, rule := range e.counted {
			r, later := &e.decision.Rules[rule], &t.later[t.places[first+n]]
			r.ExcessCost, r.CreditsSpent = 0, 0
			if allowed && r.Allowed {
				paid := &t.paid[t.places[first+n]]
				r.ExcessCost = min(e.req.Cost, max(0, r.Overage-*later))
				r.CreditsSpent = min(e.req.Cost-r.ExcessCost, *paid)
				*paid -= r.CreditsSpent
			}
			*later += e.req.Cost - r.CreditsSpent
		}
	}
}
