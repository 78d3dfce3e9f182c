package check

import (
	"context"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Comparison tells where subjects stand under one rule, with the number that their plan gives it
// now and with another one.
type Comparison struct {
	// Asked are the subjects whose counters were asked: of those that were given, the active
	// ones that have the plan and no override for the rule.
	Asked int
	// Now and Then are those of them that a check of cost 1 would find denied by the rule at this
	// instant, with either number. A subject in both is denied with either number.
	Now, Then []string
	// Reason says why nothing was asked: ModeOff, NotBySubject or MissingValues; "": it was.
	Reason   SkipReason
	Degraded bool // the counter store is unavailable; nothing is known
}

// compareChunk bounds how many counters go in one pipeline, so that no check waits long behind it.
const compareChunk = 100

// Compare holds a number for rule (a slug) against the counters of subjects that have the plan
// ("": those without a plan), and consumes nothing. to nil is the rule's own number. A rule or
// plan that the policy lacks, as one that was just deleted, concerns nobody.
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
	nowMS := c.now().UnixMilli()
	for _, name := range subjects {
		subject, _ := p.subjects.Load(name)
		has, _ := p.plan("", subject)
		if (has == nil) != (plan == "") || has != nil && has.slug != plan || subject != nil && subject.state != Active {
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
		if len(e.counted) == 0 { // unlimited now: there is no count that another number could meet
			continue
		}
		other := newPeek(p)
		other.req = &req
		other.decision.Rules = slices.Clone(e.decision.Rules)
		other.decision.Rules[0].Unlimited = then.unlimited
		if !then.unlimited {
			other.counted = []int{0}
			counter := e.call.Counters[0]
			bounds := counter.Numbers.Bounds
			counter.Numbers, counter.Shadow = then.numbers, false
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

// Subject returns what the policy knows of a registered subject, and false for one that is not.
func (p *Policy) Subject(name string) (SubjectData, bool) {
	e, registered := p.subjects.Load(name)
	if !registered {
		return SubjectData{}, false
	}
	d := SubjectData{Subject: name, Plan: e.plan, State: e.state}
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
