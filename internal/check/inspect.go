package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir/internal/engine"
	"weir/internal/limit"
)

// ErrCountersUnavailable is wrapped by the error of a change that the counter store did not
// confirm, such as a Reset. Counters may or may not have been changed; it is safe to repeat it.
var ErrCountersUnavailable = errors.New("the counters cannot be reached")

// SubjectLimits is the live state of one subject.
type SubjectLimits struct {
	Subject string
	State   SubjectState
	Plan    string // slug; "" where the tenant has no plans
	// Rules are the rules that count by the subject, by slug. Allowed and RetryAfterMS describe a
	// check of cost 1 against this rule alone.
	Rules  []RuleDecision
	Hidden []HiddenRule // all other rules, by slug
	// NowMS is the instant from which RetryAfterMS and ResetAfterMS of the rules count, by the
	// clock of the counter store.
	NowMS int64
	// Degraded: the counter store is unavailable. These are the numbers that checks use meanwhile.
	Degraded bool
}

// HiddenRule is a rule that has no counter for the subject and the other given values.
type HiddenRule struct {
	Rule    *limit.Rule
	Reason  SkipReason // ModeOff, ResourceMismatch, NotBySubject or MissingValues
	Missing []string   // with MissingValues: the values to give, as in Rule.By
}

// The reasons, besides those of a check, for which a subject has no counter to show or to reset.
const (
	NotBySubject  SkipReason = "not_by_subject" // it counts other subjects together with this one
	MissingValues SkipReason = "missing_values" // it counts by values that were not given
)

// UncountedError is the error of a Reset of one rule that has no counter for the given values.
type UncountedError struct {
	Rule    string // slug
	Unknown bool   // the rule does not exist; otherwise:
	Reason  SkipReason
	Missing []string // with MissingValues: the values to give, as in Rule.By
}

func (e *UncountedError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("no rule %q", e.Rule)
	}
	return fmt.Sprintf("rule %s has no counter for these values: %s %s", e.Rule, e.Reason, strings.Join(e.Missing, ", "))
}

// Inspect returns the remaining units of values.Subject under each rule, and consumes nothing.
// Resource ("": not given) and Attributes of values select the counter of a rule that counts by
// them; the other fields are ignored. While the counter store is unavailable, it returns what a
// check would be answered.
func (c *Checker) Inspect(ctx context.Context, p *Policy, values Request) SubjectLimits {
	return c.inspect(ctx, p, p.rules, 0, values)
}

// fewInspected is how many rules InspectInTurns reads without a turn, in some hundredths of a
// millisecond.
const fewInspected = 4

// InspectInTurns is Inspect in turns of a processor. With 1000 rules it takes some milliseconds of
// one before the counter store is asked, and as many after the answer. For each of both, turn waits
// for a turn, which ends when the work is done. InspectInTurns fails only if turn does.
func (c *Checker) InspectInTurns(ctx context.Context, p *Policy, values Request, turn func() (end func(), err error)) (SubjectLimits, error) {
	if len(p.rules) <= fewInspected {
		return c.Inspect(ctx, p, values), nil
	}
	in := inspection{checker: c, policy: p, values: values}
	inTurn := func(work func()) error {
		end, err := turn()
		if err != nil {
			return err
		}
		defer end()
		work()
		return nil
	}
	if err := inTurn(func() { in.begin(p.rules, 0) }); err != nil {
		return SubjectLimits{}, err
	}
	c.read(ctx, in.evaluations)
	err := inTurn(in.conclude)
	return in.limits, err
}

// InspectRule is Inspect for one rule (a slug), of which it reads at most one counter. For a rule
// that the policy does not have, there are neither Rules nor Hidden.
func (c *Checker) InspectRule(ctx context.Context, p *Policy, rule string, values Request) SubjectLimits {
	index := slices.IndexFunc(p.rules, func(r compiledRule) bool { return r.rule.Slug == rule })
	if index < 0 {
		return c.inspect(ctx, p, nil, 0, values)
	}
	return c.inspect(ctx, p, p.rules[index:index+1], int32(index), values) // of at most MaxRules
}

// inspect is Inspect for some rules of the policy that follow each other, from index first on.
func (c *Checker) inspect(ctx context.Context, p *Policy, rules []compiledRule, first int32, values Request) SubjectLimits {
	in := inspection{checker: c, policy: p, values: values}
	in.begin(rules, first)
	c.read(ctx, in.evaluations)
	in.conclude()
	return in.limits
}

// inspection is the state of an Inspect.
type inspection struct {
	checker     *Checker
	policy      *Policy
	values      Request
	evaluations []*evaluation
	limits      SubjectLimits
}

// begin finds the counters of the rules.
func (in *inspection) begin(rules []compiledRule, first int32) {
	p, values := in.policy, in.values
	nowMS := in.checker.nowMS()
	subject, _ := p.subjects.Load(values.Subject)
	plan, _ := p.plan("", subject)
	out := &in.limits
	out.Subject, out.NowMS = values.Subject, nowMS
	if subject != nil {
		out.State = subject.state
	}
	if plan != nil {
		out.Plan = plan.slug
	}
	for i := range rules {
		rule := &rules[i].rule
		req, reason, missing := counted(rule, values)
		if reason == "" && rule.Mode == limit.Off {
			reason = ModeOff
		}
		if reason != "" {
			out.Hidden = append(out.Hidden, HiddenRule{Rule: rule, Reason: reason, Missing: missing})
			continue
		}
		last := len(in.evaluations) - 1
		if last < 0 || len(in.evaluations[last].counted) == limit.MaxMatchingRules {
			in.evaluations = append(in.evaluations, newPeek(p))
			last++
		}
		e := in.evaluations[last]
		e.req = &req
		e.keys.begin(in.checker.keys)
		e.addRule(first+int32(i), plan, subject, nowMS)
	}
}

// conclude sets the limits by what the counter store answered.
func (in *inspection) conclude() {
	out := &in.limits
	for n, e := range in.evaluations {
		if len(e.counted) > 0 {
			e.conclude()
		}
		if n == 0 && len(e.counted) > 0 {
			out.NowMS = e.decision.NowMS
		}
		out.Degraded = out.Degraded || e.decision.Degraded
		e.decision.Subject = in.values.Subject
		in.checker.tellCredits(in.policy.tenant, &e.decision)
		for i := range e.decision.Rules {
			e.decision.Rules[i].asOfOne()
			e.decision.Rules[i].countFrom(out.NowMS, e.decision.NowMS)
			out.Rules = append(out.Rules, e.decision.Rules[i])
		}
	}
}

// countFrom changes the waits of a decision of nowMS so that they begin at fromMS.
func (r *RuleDecision) countFrom(fromMS, nowMS int64) {
	for _, wait := range []*int64{&r.RetryAfterMS, &r.ResetAfterMS, &r.NextAfterMS} {
		if *wait > 0 && *wait != limit.NeverMS {
			*wait = max(*wait+nowMS-fromMS, 1)
		}
	}
}

// newPeek returns an evaluation that consumes nothing and has no rules yet.
func newPeek(p *Policy) *evaluation {
	return &evaluation{policy: p, call: engine.Call{Tenant: p.tenant, DryRun: true}, decision: Decision{Allowed: true, Deciding: -1}}
}

// peek reads the counters of evaluations, and concludes them.
func (c *Checker) peek(ctx context.Context, evaluations []*evaluation) {
	c.read(ctx, evaluations)
	for _, e := range evaluations {
		if len(e.counted) > 0 {
			e.conclude()
		}
	}
}

// read reads the counters of evaluations.
func (c *Checker) read(ctx context.Context, evaluations []*evaluation) {
	var calls []*engine.Call
	for _, e := range evaluations {
		if len(e.counted) > 0 {
			e.call.Spread = e.policy.places.spread(&e.call)
			calls = append(calls, &e.call)
		}
	}
	if len(calls) == 0 {
		return
	}
	// The engine has its own timeout. A client that disconnects must not count as a failure of the
	// store.
	c.engine.Evaluate(context.WithoutCancel(ctx), calls...)
}

// asOfOne changes the result of a read, which every rule allows, to that of a check of cost 1.
func (r *RuleDecision) asOfOne() {
	switch {
	case r.Unlimited:
	case r.Uncounted:
		if r.Allowed = r.Rule.OnUnavailable == limit.Allow; !r.Allowed {
			r.RetryAfterMS = engine.RetryAfterOutageMS()
		}
	case r.Remaining == 0 && !r.MayExceed && r.Credits == 0:
		r.Allowed, r.RetryAfterMS = false, r.NextAfterMS
	}
}

// Reset resets the counters and penalties of values.Subject: under the rules with these slugs, or
// without any under every rule that has a counter for the values. It returns the slugs of those
// whose counters were reset and, if all rules were meant, those without a counter. A denial in the
// memory of another instance ends within 100 ms.
//
// If a named rule has no counter for the values, Reset fails with an *UncountedError and resets
// nothing. It can also fail with an ErrCountersUnavailable. It then returns the slugs of the rules
// whose counters may have been reset.
func (c *Checker) Reset(ctx context.Context, p *Policy, rules []string, values Request) (reset []string, hidden []HiddenRule, err error) {
	reset = []string{}
	var counters []engine.Counter
	unknown := make(map[string]bool, len(rules))
	for _, slug := range rules {
		unknown[slug] = true
	}
	for i := range p.rules {
		r := &p.rules[i]
		if len(rules) > 0 && !unknown[r.rule.Slug] {
			continue
		}
		delete(unknown, r.rule.Slug)
		req, reason, missing := counted(&r.rule, values)
		switch {
		case reason == "":
			var counter engine.Counter
			m := keyMaker{keys: c.keys}
			m.counter(&counter, r, &req)
			counters, reset = append(counters, counter), append(reset, r.rule.Slug)
			if m.from != "" {
				counter.Key = engine.Retag(counter.Key, m.from)
				counters = append(counters, counter)
			}
		case len(rules) > 0:
			return nil, nil, &UncountedError{Rule: r.rule.Slug, Reason: reason, Missing: missing}
		default:
			hidden = append(hidden, HiddenRule{Rule: &r.rule, Reason: reason, Missing: missing})
		}
	}
	if len(unknown) > 0 {
		return nil, nil, &UncountedError{Rule: slices.Sorted(maps.Keys(unknown))[0], Unknown: true}
	}
	begun := false
	for some := range slices.Chunk(counters, resetChunk) {
		if err := c.engine.Reset(context.WithoutCancel(ctx), some...); err != nil {
			if !begun && engine.NotCounted(err) {
				reset = nil
			}
			return reset, nil, fmt.Errorf("%w: %w", ErrCountersUnavailable, err)
		}
		begun = true
	}
	return reset, hidden, nil
}

// resetChunk is the maximum number of counters in one pipeline, so that no check waits long for it.
const resetChunk = 128

// counted returns the request for the counter of rule r that the values select, or why there is
// none. A rule for one exact resource does not need a resource in values.
func counted(r *limit.Rule, values Request) (req Request, reason SkipReason, missing []string) {
	if !slices.Contains(r.By, "subject") {
		return values, NotBySubject, nil
	}
	for _, by := range r.By {
		name, isAttribute := limit.AttributeOf(by)
		switch {
		case isAttribute:
			if _, given := values.attribute(name); !given {
				missing = append(missing, by)
			}
		case by == "resource" && values.Resource == "" && strings.HasSuffix(r.Resource, "*"):
			missing = append(missing, by)
		case by == "resource" && values.Resource == "":
			values.Resource = r.Resource
		case by == "resource" && !limit.Matches(r.Resource, values.Resource):
			return values, ResourceMismatch, nil
		}
	}
	if missing != nil {
		return values, MissingValues, missing
	}
	return values, "", nil
}
