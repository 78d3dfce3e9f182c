package check

import (
	"context"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Comparison says which subjects are over the limit of one rule, with the current limit of their
// plan and with another one. Subjects with an older version of the plan are not
// compared.
type Comparison struct {
	// Asked is the number of subjects whose counters were read: of the given subjects, those that
	// are active, have the plan, and have no override for the rule.
	Asked int
	// Now and Then are the subjects for which the rule would deny a check of cost 1 at this
	// instant, with the current and with the other limit. A subject can be in both.
	Now, Then []string
	// Reason says why nothing was read: ModeOff, NotBySubject or MissingValues. It is "" if
	// counters were read.
	Reason   SkipReason
	Degraded bool // the counter store is unavailable; nothing is known
}

// compareChunk is the maximum number of counters in one pipeline, so that no check waits long for
// it.
const compareChunk = 100

// Compare compares the counters of subjects that have the plan ("": those without a plan) with a
// limit of the rule (a slug). It consumes nothing. If to is nil, it uses the rule's own limit. For
// a rule or plan that the policy does not have, such as one that was just deleted, the result is
// empty.
func (c *Checker) Compare(ctx context.Context, p *Policy, plan, rule string, to *limit.Limit, subjects []string) (out Comparison) {
	index := slices.IndexFunc(p.rules, func(r compiledRule) bool { return r.rule.Slug == rule })
	if index < 0 {
		return out
	}
	r := &p.rules[index]
	then := r.number
	if to != nil {
		then = then.with(*to, "")
	}
	if _, reason, _ := counted(&r.rule, Request{Subject: "anybody"}); reason != "" {
		return Comparison{Reason: reason}
	}
	if r.rule.Mode == limit.Off {
		return Comparison{Reason: ModeOff}
	}
	for some := range slices.Chunk(subjects, compareChunk) {
		if ctx.Err() != nil || out.Degraded {
			break
		}
		c.compare(ctx, p, plan, int32(index), then, some, &out) // an index of at most MaxRules
	}
	return out
}

func (c *Checker) compare(ctx context.Context, p *Policy, plan string, index int32, then number, subjects []string, out *Comparison) {
	var now, changed []*evaluation
	nowMS := c.nowMS()
	for _, name := range subjects {
		subject, _ := p.subjects.Load(name)
		has, _ := p.plan("", subject)
		if (has == nil) != (plan == "") || has != nil && has != p.plans[plan] || subject != nil && subject.state != Active {
			continue
		}
		if p.number(index, has, subject, nowMS).source == "override" {
			continue
		}
		req, _, _ := counted(&p.rules[index].rule, Request{Subject: name})
		out.Asked++
		e := newPeek(p)
		e.req = &req
		e.keys.begin(c.keys)
		e.addRule(index, has, subject, nowMS)
		if len(e.counted) == 0 { // unlimited now: there is no count to compare
			continue
		}
		other := newPeek(p)
		other.req = &req
		other.decision.Rules = slices.Clone(e.decision.Rules)
		other.decision.Rules[0].Unlimited, other.decision.Rules[0].MayExceed = then.unlimited, then.numbers.Overage
		if !then.unlimited {
			other.counted = []int{0}
			counter := e.call.Counters[0]
			bounds := counter.Numbers.Bounds
			counter.Numbers, counter.Shadow, counter.Credits = then.numbers, false, nil
			counter.OnUnavailable = limit.Allow // as in foreseen
			counter.Numbers.Bounds = bounds
			other.call.Counters = []engine.Counter{counter}
		}
		now, changed = append(now, e), append(changed, other)
	}
	c.peek(ctx, append(slices.Clone(now), changed...))
	for i, e := range now {
		other := changed[i]
		if e.decision.Degraded || other.decision.Degraded {
			out.Degraded = true
			return
		}
		for _, side := range []struct {
			e    *evaluation
			list *[]string
		}{{e, &out.Now}, {other, &out.Then}} {
			d := &side.e.decision.Rules[0]
			if d.asOfOne(); !d.Allowed && !d.Unlimited {
				*side.list = append(*side.list, e.req.Subject)
			}
		}
	}
}

// Subject returns a registered subject, and false for one that is not registered.
func (p *Policy) Subject(name string) (SubjectData, bool) {
	e, registered := p.subjects.Load(name)
	if !registered {
		return SubjectData{}, false
	}
	d := SubjectData{Subject: name, Plan: e.plan, PlanVersion: int(e.planVersion), State: e.state}
	if e.anchorMS != limit.NoAnchor {
		at := time.UnixMilli(e.anchorMS).UTC()
		d.CycleAnchor = &at
	}
	for _, o := range e.overrides {
		data := OverrideData{Rule: o.rule.Value(), Limit: o.limit}
		if o.startsMS != 0 {
			data.StartsAt = time.UnixMilli(o.startsMS)
		}
		if o.expires != 0 {
			data.ExpiresAt = time.UnixMilli(o.expires)
		}
		d.Overrides = append(d.Overrides, data)
	}
	return d, true
}
