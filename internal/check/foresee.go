package check

import (
	"context"
	"slices"

	"weir/internal/engine"
	"weir/internal/limit"
)

// PlanChange is what subjects are to have: a plan in one of its versions.
type PlanChange struct {
	Plan    string // slug; "": the default plan
	Version int    // 0: the newest
	// Limits are in place of those of the plan, by the slugs of the rules, for rules that the
	// policy has; nil: its own.
	Limits map[string]limit.Limit
}

// Over is a subject whose next check a changed limit would deny.
type Over struct {
	Subject, Rule string
	// Used is what counts now. Of a bucket it is no more than the present limit.
	Used     int64
	Limit    int64 // the present one: of a bucket its burst
	NewLimit int64
	Denied   bool // the present limit denies the next check already
}

// Foresight tells what a change of plans would do at once.
type Foresight struct {
	Compared int    // subjects whose counters were read: those that are not active are not denied by limits
	Over     []Over // in the order of the subjects, of each in the order of the rules
	Degraded bool   // the counter store is unavailable: nothing is known
}

// Foresee holds the limits of a plan against the counters of subjects, and consumes nothing.
// Only rules are looked at whose limit would change for the subject, that count by it and by
// nothing else that is not known, and for which it has no override.
func (c *Checker) Foresee(ctx context.Context, p *Policy, change PlanChange, subjects []string) (out Foresight) {
	to, err := p.changed(change)
	if err != nil {
		return out
	}
	var some []foreseen
	flush := func() {
		c.foresee(ctx, some, &out)
		some = some[:0]
	}
	nowMS := c.now().UnixMilli()
	for _, name := range subjects {
		if ctx.Err() != nil || out.Degraded {
			break
		}
		subject, _ := p.subjects.Load(name)
		if subject != nil && subject.state != Active {
			continue
		}
		out.Compared++
		has, _ := p.plan("", subject)
		for i := range p.rules {
			if f, ok := c.foreseen(p, int32(i), has, to, subject, name, nowMS); ok { // an index of at most MaxRules
				if some = append(some, f); len(some) >= compareChunk {
					flush()
				}
			}
		}
	}
	flush()
	return out
}

// changed compiles the numbers of a change.
func (p *Policy) changed(change PlanChange) (*planNumbers, error) {
	if change.Limits != nil {
		bySlug := make(map[string]int, len(p.rules))
		limits := make(map[string]limit.Limit, len(change.Limits))
		for i := range p.rules {
			slug := p.rules[i].rule.Slug
			bySlug[slug] = i
			if l, has := change.Limits[slug]; has {
				limits[slug] = l
			}
		}
		return p.compilePlan(change.Plan, 0, limits, bySlug, "")
	}
	if change.Plan == "" {
		return p.fallback, nil
	}
	plan := p.plans[change.Plan]
	if plan == nil {
		return nil, &UnknownPlanError{Plan: change.Plan}
	}
	return plan.ofVersion(int32(change.Version)), nil // a number of the policy, or the newest
}

// foreseen is a subject under one rule: with its present number, and with the new one.
type foreseen struct {
	now, then *evaluation // of a counter that is no bucket, then reads how much is used
	old, next limit.Numbers
}

// foreseen returns how the counter of a subject under rule i is asked, false where nothing is
// to be asked.
func (c *Checker) foreseen(p *Policy, i int32, has, to *planNumbers, subject *subjectEntry, name string, nowMS int64) (f foreseen, ok bool) {
	r := &p.rules[i]
	req, reason, _ := counted(&r.rule, Request{Subject: name})
	if reason != "" || r.rule.Mode != limit.Enforce {
		return f, false
	}
	old := p.number(i, has, subject, nowMS)
	next := r.number
	if n := to.number(i); n != nil {
		next = *n
		if subject != nil && subject.multiplier > 1 {
			next = next.times(subject.multiplier)
		}
	}
	// With an unlimited number there is no count that another one could meet.
	if old.source == "override" || old.unlimited || next.unlimited || old.numbers == next.numbers {
		return f, false
	}
	f.old, f.next = old.numbers, next.numbers
	f.now = newPeek(p)
	f.now.req = &req
	f.now.keys.begin(c.keys)
	f.now.addRule(i, has, subject, nowMS)
	if len(f.now.counted) == 0 {
		return f, false
	}
	counter := f.now.call.Counters[0]
	bounds := counter.Numbers.Bounds
	counter.Numbers, counter.Shadow, counter.Credits = next.numbers, false, nil
	if !counter.Numbers.Algorithm.Bucket() { // these count the same whatever the limit is
		counter.Numbers.Limit, counter.Numbers.Overage = counter.Numbers.Algorithm.MaxLimit(), false
	}
	counter.Numbers.Bounds = bounds
	f.then = newPeek(p)
	f.then.req = &req
	f.then.decision.Rules = slices.Clone(f.now.decision.Rules)
	f.then.decision.Rules[0].MayExceed = false // the counter's limit is the greatest
	f.then.counted = []int{0}
	f.then.call.Counters = []engine.Counter{counter}
	return f, true
}

func (c *Checker) foresee(ctx context.Context, some []foreseen, out *Foresight) {
	all := make([]*evaluation, 0, 2*len(some))
	for _, f := range some {
		all = append(all, f.now, f.then)
	}
	c.peek(ctx, all)
	for _, f := range some {
		if f.now.decision.Degraded || f.then.decision.Degraded {
			out.Degraded, out.Over = true, nil
			return
		}
		now, then := &f.now.decision.Rules[0], &f.then.decision.Rules[0]
		o := Over{
			Subject: f.now.req.Subject, Rule: now.Rule.Slug, Limit: f.old.Quota(), NewLimit: f.next.Quota(), Denied: now.Remaining == 0 && !f.old.Overage,
		}
		over := then.Remaining == 0
		if f.next.Algorithm.Bucket() {
			o.Used = o.Limit - now.Remaining
		} else {
			o.Used = f.next.Algorithm.MaxLimit() - then.Remaining
			over = o.Used >= o.NewLimit
		}
		if over && !f.next.Overage {
			out.Over = append(out.Over, o)
		}
	}
}
