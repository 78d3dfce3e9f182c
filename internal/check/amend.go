package check

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// CounterChange describes the change of a subject's counters when the subject gets another plan.
type CounterChange struct {
	ID       int64 // unique within the tenant, whose changes are carried out in this order; from 1
	Subject  string
	Reset    bool   // false: the used share of each quota stays
	From, To string // slugs of plans
	// The versions of these plans; 0: the newest.
	FromVersion, ToVersion int
	// The multipliers of the limits of these plans; 0: as the subject has now.
	FromMultiplier, ToMultiplier int64
	// The limits of these versions when the subject got the plan, by rule; nil: as the policy has.
	FromLimits, ToLimits map[string]limit.Limit
	// OwnLimits are the limits that rules themselves had then; of others: as the policy has. They
	// count where a plan has none.
	OwnLimits map[string]limit.Limit
	// Approved are the limits that the subject had instead of those of From, by overrides that have
	// ended with the plan, by rule.
	Approved map[string]limit.Limit
}

// Amend changes counters, once for each ID. It changes the counters of all rules that count by the
// subject, and by no value that it does not know. If an override defines the subject's limit for a
// rule, and has not ended with the plan, that counter is not changed, because no plan applies to
// it. If the limits of a plan are unknown (Unknown), the usage stays as it is. Amend fails with an
// ErrCountersUnavailable or the error of ctx, and can then be repeated. It may take long: the store
// rests between long steps, and tenants take turns.
func (c *Checker) Amend(ctx context.Context, p *Policy, change CounterChange) error {
	if p.Unknown(&change) != "" {
		c.metrics.unscaled.Inc()
		return nil
	}
	subject, _ := p.subjects.Load(change.Subject)
	now := c.nowMS()
	a := engine.Amendment{Number: change.ID, Reset: change.Reset}
	name := c.keys.name(append([]byte("amendment"+strconv.FormatInt(change.ID, 10)), p.tenant[:]...))
	newest := c.keys.name(append([]byte("amendments"), p.tenant[:]...))
	place := p.places.ofSubject(change.Subject)
	a.Once, a.Done = place+string(name.Append(nil)), place+string(newest.Append(nil))
	var keys keyMaker
	keys.begin(c.keys)
	for i := range p.rules {
		r := &p.rules[i]
		req, reason, _ := counted(&r.rule, Request{Subject: change.Subject})
		from, fits := p.numberOf(i, change.OwnLimits, change.FromLimits, change.From, change.FromVersion, cmp.Or(change.FromMultiplier, subject.factor()))
		to, fit := p.numberOf(i, change.OwnLimits, change.ToLimits, change.To, change.ToVersion, cmp.Or(change.ToMultiplier, subject.factor()))
		if reason != "" || r.rule.Mode == limit.Off {
			continue
		}
		if had, ended := change.Approved[r.rule.Slug]; ended { // the policy may still have the override
			from, fits = from.with(had, "override"), len(had.Validate(&r.rule)) == 0
		} else if p.overridden(i, subject, now) {
			continue
		}
		if change.Reset {
			to = from // the numbers do not matter
		} else if !fits || !fit || from.unlimited || to.unlimited || from.numbers == to.numbers {
			continue // there is no ratio, or it is 1
		}
		counter := engine.Counter{Numbers: from.numbers, Leased: r.rule.Consistency == limit.Leased}
		if keys.counter(&counter, r, &req) != "" {
			continue
		}
		if r.cycle != nil {
			counter.Numbers.Bounds = r.cycle.Bounds(subject.anchor(), now)
			to.numbers.Bounds = counter.Numbers.Bounds
		}
		a.Parts = append(a.Parts, engine.AmendPart{Counter: counter, To: to.numbers})
	}
	if len(a.Parts) == 0 {
		return nil
	}
	if err := c.amend(ctx, p.tenant, &a); err != nil {
		return err
	}
	if keys.from == "" {
		return nil
	}
	// The number of partitions changes, and the subject's counters are at another place, too.
	a.Once, a.Done = engine.Retag(a.Once, keys.from), engine.Retag(a.Done, keys.from)
	for i := range a.Parts {
		a.Parts[i].Key = engine.Retag(a.Parts[i].Key, keys.from)
	}
	return c.amend(ctx, p.tenant, &a)
}

// The amendments of all instances together take at most a tenth of the time of the counter store,
// which serves no check meanwhile. Those of small counters are so short that most need no rest.
const (
	amendRest = 9 // times as long as the store has worked, with one instance
	amendFree = time.Millisecond
	amendLost = 5 * time.Millisecond // how long the store has worked that was asked and did not answer, at a guess
)

// amend carries out an amendment step by step. If ctx ends, the other steps are left for the next
// time.
func (c *Checker) amend(ctx context.Context, tenant limit.TenantID, a *engine.Amendment) error {
	steps := a.Steps()
	for i := range steps {
		if err := c.amends.Take(ctx, tenant); err != nil {
			return err
		}
		if err := c.amendStep(ctx, tenant, &steps[i]); err != nil {
			return fmt.Errorf("%w: %w", ErrCountersUnavailable, err)
		}
		if steps[i].Before {
			return nil
		}
	}
	return nil
}

// amendStep carries out a step, and leaves the turn that the caller has taken, also after a panic.
func (c *Checker) amendStep(ctx context.Context, tenant limit.TenantID, step *engine.Amendment) error {
	took := amendLost
	defer func() { c.amends.Leave(tenant, took*time.Duration(c.instances())) }()
	err := c.engine.Amend(context.WithoutCancel(ctx), step)
	if err == nil || engine.NotCounted(err) {
		took = time.Duration(step.WorkUS) * time.Microsecond
	}
	return err
}

// Unknown returns the plan of which a change needs limits that neither it nor the policy has: it
// was made before changes had limits, and the plan was deleted since then, or is not loaded yet.
// Usually the result is "".
func (p *Policy) Unknown(change *CounterChange) string {
	switch {
	case change.Reset:
		return "" // needs none
	case change.FromLimits == nil && p.planOf(change.From, change.FromVersion) == nil:
		return change.From
	case change.ToLimits == nil && p.planOf(change.To, change.ToVersion) == nil:
		return change.To
	}
	return ""
}

// planOf returns a version of a plan (0: the newest), or nil if the policy does not have it.
func (p *Policy) planOf(slug string, version int) *planNumbers {
	newest := p.plans[slug]
	if newest == nil || version == 0 {
		return newest
	}
	if of := newest.ofVersion(int32(version)); of.version == version { // one of the database
		return of
	}
	return nil
}

// numberOf returns the number of rule i for a subject with a plan, a multiplier and no override.
// limits are those of the plan; nil: as the policy has. fits is false if the limit is none of the
// rule, which was changed since then.
func (p *Policy) numberOf(i int, own, limits map[string]limit.Limit, plan string, version int, multiplier int64) (n number, fits bool) {
	r := &p.rules[i]
	n, fits = r.number, true
	if lim, has := own[r.rule.Slug]; has {
		if fits = len(lim.Validate(&r.rule)) == 0; fits {
			n = n.with(lim, n.source)
		}
	}
	if limits != nil {
		lim, has := limits[r.rule.Slug]
		if !has {
			return n, fits
		}
		if len(lim.Validate(&r.rule)) > 0 {
			return n, false
		}
		return n.with(lim, "plan:"+plan).times(multiplier), true
	}
	if of := p.planOf(plan, version).number(int32(i)); of != nil { // an index of at most MaxRules
		return of.times(multiplier), true
	}
	return n, fits
}

// overridden reports whether an override defines the subject's number for rule i.
func (p *Policy) overridden(i int, subject *subjectEntry, nowMS int64) bool {
	return p.number(int32(i), nil, subject, nowMS).source == "override" // an index of at most MaxRules
}
