package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir/internal/engine"
	"weir/internal/limit"
)

// ErrCountersUnavailable is wrapped by the error of a Reset that the counter store did not
// confirm: counters may or may not have been forgotten, and asking again does no harm.
var ErrCountersUnavailable = errors.New("the counters cannot be reached")

// SubjectLimits is the live state of one subject.
type SubjectLimits struct {
	Subject string
	State   SubjectState
	Plan    string // slug; "" where the tenant has no plans
	// Rules are those that count by the subject, by slug. Allowed and RetryAfterMS tell of a
	// check of cost 1 that meets this rule alone.
	Rules    []RuleDecision
	Hidden   []HiddenRule // all other rules, by slug
	Degraded bool         // the counter store is unavailable: this is what checks are answered meanwhile
}

// HiddenRule is a rule that has no counter for the subject and the other values that are given.
type HiddenRule struct {
	Rule    *limit.Rule
	Reason  SkipReason // ModeOff, ResourceMismatch, NotBySubject or MissingValues
	Missing []string   // with MissingValues: what to give, as in Rule.By
}

// The reasons for which a subject has no counter to show or to forget, beside those of a check.
const (
	NotBySubject  SkipReason = "not_by_subject" // it counts others along with the subject
	MissingValues SkipReason = "missing_values" // it counts by values that were not given
)

// UncountedError is the error of a Reset of one rule that has no counter for the values given.
type UncountedError struct {
	Rule    string // slug
	Unknown bool   // there is no such rule; else:
	Reason  SkipReason
	Missing []string // with MissingValues: what to give, as in Rule.By
}

func (e *UncountedError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("there is no rule %s", e.Rule)
	}
	return fmt.Sprintf("rule %s has no counter for these values: %s %s", e.Rule, e.Reason, strings.Join(e.Missing, ", "))
}

// Inspect tells what is left for values.Subject under each rule, and consumes nothing. Of
// values, Resource ("": not given) and Attributes say which counter of a rule that counts by
// them is meant; the rest of it says nothing here. While the counter store is unavailable, it tells
// what a check would be answered.
func (c *Checker) Inspect(ctx context.Context, p *Policy, values Request) SubjectLimits {
	now := c.now()
	subject, _ := p.subjects.Load(values.Subject)
	plan, _ := p.plan("", subject)
	out := SubjectLimits{Subject: values.Subject}
	if subject != nil {
		out.State = subject.state
	}
	if plan != nil {
		out.Plan = plan.slug
	}
	var evaluations []*evaluation
	for i := range p.rules {
		rule := &p.rules[i].rule
		req, reason, missing := counted(rule, values)
		if reason == "" && rule.Mode == limit.Off {
			reason = ModeOff
		}
		if reason != "" {
			out.Hidden = append(out.Hidden, HiddenRule{Rule: rule, Reason: reason, Missing: missing})
			continue
		}
		last := len(evaluations) - 1
		if last < 0 || len(evaluations[last].counted) == limit.MaxMatchingRules {
			evaluations = append(evaluations, newPeek(p))
			last++
		}
		e := evaluations[last]
		e.req = &req
		e.keys.begin(c.keys)
		e.addRule(int32(i), plan, subject, now.UnixMilli())
	}
	c.peek(ctx, evaluations)
	for _, e := range evaluations {
		out.Degraded = out.Degraded || e.decision.Degraded
		for i := range e.decision.Rules {
			e.decision.Rules[i].asOfOne()
			out.Rules = append(out.Rules, e.decision.Rules[i])
		}
	}
	return out
}

// newPeek returns an evaluation that consumes nothing and has no rules yet.
func newPeek(p *Policy) *evaluation {
	return &evaluation{policy: p, call: engine.Call{Tenant: p.tenant, DryRun: true}, decision: Decision{Allowed: true, Deciding: -1}}
}

// peek asks the counters of evaluations.
func (c *Checker) peek(ctx context.Context, evaluations []*evaluation) {
	var calls []*engine.Call
	for _, e := range evaluations {
		if len(e.counted) > 0 {
			calls = append(calls, &e.call)
		}
	}
	if len(calls) == 0 {
		return
	}
	// The engine has a deadline of its own; a client that disconnects is no failure of the store.
	c.engine.Evaluate(context.WithoutCancel(ctx), calls...)
	for _, e := range evaluations {
		if len(e.counted) > 0 {
			e.conclude()
		}
	}
}

// asOfOne makes a peek, which every rule allows, tell of a check of cost 1.
func (r *RuleDecision) asOfOne() {
	switch {
	case r.Unlimited:
	case r.Uncounted:
		if r.Allowed = r.Rule.OnUnavailable == limit.Allow; !r.Allowed {
			r.RetryAfterMS = engine.RetryAfterOutageMS()
		}
	case r.Remaining == 0:
		r.Allowed, r.RetryAfterMS = false, r.NextAfterMS
	}
}

// Reset forgets the counters, penalties included, of values.Subject under the rule of this
// slug, or under every rule that has a counter for the values ("": all). It returns the rules
// whose counters are forgotten now, and with all rules also those that have none. A denial
// that an instance remembers ends by itself within 100 ms.
//
// It fails with an *UncountedError where the rule that is named has no counter for the values,
// before anything is forgotten; and with an ErrCountersUnavailable.
func (c *Checker) Reset(ctx context.Context, p *Policy, rule string, values Request) (reset []*limit.Rule, hidden []HiddenRule, err error) {
	var counters []engine.Counter
	for i := range p.rules {
		r := &p.rules[i]
		if rule != "" && rule != r.rule.Slug {
			continue
		}
		req, reason, missing := counted(&r.rule, values)
		switch {
		case reason == "":
			var counter engine.Counter
			(&keyMaker{keys: c.keys}).counter(&counter, r, &req)
			counters, reset = append(counters, counter), append(reset, &r.rule)
		case rule != "":
			return nil, nil, &UncountedError{Rule: rule, Reason: reason, Missing: missing}
		default:
			hidden = append(hidden, HiddenRule{Rule: &r.rule, Reason: reason, Missing: missing})
		}
	}
	if rule != "" && len(reset) == 0 {
		return nil, nil, &UncountedError{Rule: rule, Unknown: true}
	}
	for some := range slices.Chunk(counters, resetChunk) {
		if err := c.engine.Reset(context.WithoutCancel(ctx), some...); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrCountersUnavailable, err)
		}
	}
	return reset, hidden, nil
}

// resetChunk bounds how many counters go in one pipeline, so that no check waits long behind it.
const resetChunk = 128

// counted returns the request whose counter of rule r the values mean, or why there is none. A
// rule for one exact resource needs no resource to be given.
func counted(r *limit.Rule, values Request) (req Request, reason SkipReason, missing []string) {
	if !slices.Contains(r.By, "subject") {
		return values, NotBySubject, nil
	}
	for _, by := range r.By {
		name, isAttribute := strings.CutPrefix(by, "attributes.")
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
