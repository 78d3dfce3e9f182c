package check

import (
	"context"
	"errors"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
	turn "weir/internal/places" // a policy has places, too
)

// The work of one Foresee is bounded, because it takes processor time and calls of Redis that
// checks need: 10 000 subjects under 1 000 rules would be 20 million reads.
const (
	// MaxForeseen is the maximum number of counters that one Foresee compares: of each subject
	// those of the rules whose limit would change.
	MaxForeseen = 100_000
	// MaxOver is the maximum length of Foresight.Over.
	MaxOver = 1_000

	// maxPreviews is how many previews run at once, one of a tenant. They wait for Redis half of
	// the time. One of another tenant waits in turn for previewWait, so that two tenants with one
	// preview after the other do not keep out those of others: the largest one takes a second.
	maxPreviews = 2
	previewWait = 2 * time.Second
	// maxPreviewsAsking is how many tenants have a preview that runs or waits.
	maxPreviewsAsking = 64
)

// previews are the places for calls of Foresee on an instance.
type previews struct {
	asking *turn.Places[limit.TenantID] // that run or wait, one of a tenant
	slots  *turn.Turns[limit.TenantID]
	wait   time.Duration
}

func newPreviews() *previews {
	return &previews{
		asking: turn.New[limit.TenantID](maxPreviewsAsking, 1), slots: turn.NewTurns[limit.TenantID](maxPreviews, 1, 0),
		wait: previewWait,
	}
}

// ErrTooManyPreviews is the error of BeginPreview.
var ErrTooManyPreviews = errors.New("too many concurrent previews")

// BeginPreview takes one of the few places of this instance for calls of Foresee with many
// subjects. The caller must call end once. It fails with ErrTooManyPreviews if the tenant has its
// place, or if all places are taken for a while.
func (c *Checker) BeginPreview(ctx context.Context, tenant limit.TenantID) (end func(), err error) {
	p := c.previews
	answered, ok := p.asking.Take(tenant)
	if !ok {
		return nil, ErrTooManyPreviews
	}
	leave, err := p.slots.TakeWithin(ctx, tenant, p.wait)
	if err != nil {
		answered()
		return nil, ErrTooManyPreviews
	}
	return func() {
		leave()
		answered()
	}, nil
}

// PlanChange is what subjects are to have: a plan in one of its versions.
type PlanChange struct {
	Plan    string // slug; "": the default plan
	Version int    // 0: the newest
	// Limits are in place of those of the plan, by the slugs of the rules, for rules that the
	// policy has; nil: its own.
	Limits map[string]limit.Limit
	// Most is the maximum number of counters to compare, if it is less than MaxForeseen; 0: that.
	Most int
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
	Compared int // subjects whose counters were read: those that are not active are not denied by limits
	Counters int // of these subjects that had to be compared
	// Over is in the order of the subjects, of each in the order of the rules. It has the first
	// MaxOver; there are MoreOver others. All together are of OverSubjects subjects.
	Over         []Over
	MoreOver     int
	OverSubjects int
	Truncated    bool // there are more subjects, whose counters would exceed the maximum
	Degraded     bool // the counter store is unavailable: nothing is known
}

// Foresee holds the limits of a plan against the counters of subjects, and consumes nothing.
// Only rules are looked at whose limit would change for the subject, that count by it and by
// nothing else that is not known, and for which it has no override. If ctx ends, it reads no more
// counters, and the result is incomplete.
func (c *Checker) Foresee(ctx context.Context, p *Policy, change PlanChange, subjects []string) (out Foresight) {
	to, err := p.changed(change)
	if err != nil {
		return out
	}
	most := MaxForeseen
	if change.Most > 0 {
		most = min(most, change.Most)
	}
	var some []foreseen
	last := ""
	flush := func() {
		if ctx.Err() == nil && !out.Degraded {
			c.foresee(ctx, some, &out, &last)
		}
		some = some[:0]
	}
	// Most subjects have one of a few versions of plans, so the rules are compared once for each.
	changing := map[*planNumbers][]int32{}
	nowMS := c.nowMS()
	for _, name := range subjects {
		if ctx.Err() != nil || out.Degraded {
			break
		}
		subject, _ := p.subjects.Load(name)
		if subject != nil && subject.state != Active {
			continue
		}
		has, _ := p.plan("", subject)
		rules, known := changing[has]
		if !known {
			rules = p.changing(has, to)
			changing[has] = rules
		}
		if out.Counters+len(rules) > most {
			out.Truncated = true
			break
		}
		out.Compared++
		out.Counters += len(rules)
		for _, i := range rules {
			if f, ok := c.foreseen(p, i, has, to, subject, name, nowMS); ok {
				if some = append(some, f); len(some) >= compareChunk {
					flush()
				}
			}
		}
	}
	flush()
	return out
}

// changing returns the rules with a counter for each subject whose number differs between two
// plans. It does not consider overrides.
func (p *Policy) changing(has, to *planNumbers) (rules []int32) {
	for i := range p.rules {
		r := &p.rules[i]
		if _, reason, _ := counted(&r.rule, Request{Subject: "anybody"}); reason != "" || r.rule.Mode != limit.Enforce {
			continue
		}
		i := int32(i) // at most MaxRules
		old, next := r.number, r.number
		if n := has.number(i); n != nil {
			old = *n
		}
		if n := to.number(i); n != nil {
			next = *n
		}
		// A multiplier is of the plans' numbers, not of the rule's own, so the two can differ
		// although they look the same here.
		same := old.numbers == next.numbers && (has.number(i) == nil) == (to.number(i) == nil)
		// With an unlimited number there is no count that another one could meet.
		if !same && !old.unlimited && !next.unlimited {
			rules = append(rules, i)
		}
	}
	return rules
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
		return p.compilePlan(&PlanData{Slug: change.Plan, Limits: limits}, bySlug)
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
	// Under Local, what is used would be kept for an outage, but the counter does not have these
	// numbers.
	counter.OnUnavailable = limit.Allow
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

// foresee adds to out which of some would be over a limit. last is the last subject that is.
func (c *Checker) foresee(ctx context.Context, some []foreseen, out *Foresight, last *string) {
	all := make([]*evaluation, 0, 2*len(some))
	for _, f := range some {
		all = append(all, f.now, f.then)
	}
	c.peek(ctx, all)
	for _, f := range some {
		if f.now.decision.Degraded || f.then.decision.Degraded {
			out.Degraded, out.Over, out.MoreOver, out.OverSubjects = true, nil, 0, 0
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
		if !over || f.next.Overage {
			continue
		}
		if out.OverSubjects == 0 || o.Subject != *last { // those of a subject follow each other
			out.OverSubjects++
			*last = o.Subject
		}
		if len(out.Over) == MaxOver {
			out.MoreOver++
			continue
		}
		out.Over = append(out.Over, o)
	}
}
