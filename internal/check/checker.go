package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
	turn "weir/internal/places" // a policy has places, too
)

// UnknownPlanError is the error for a request with a plan that the tenant does not have.
type UnknownPlanError struct {
	Index int // the index of the request
	Plan  string
}

func (e *UnknownPlanError) Error() string { return fmt.Sprintf("unknown plan %q", e.Plan) }

// Checker decides checks. It is safe for concurrent use.
type Checker struct {
	keys      Keys
	engine    engine.Engine
	now       func() time.Time
	storeMS   func(at time.Time) int64
	metrics   *Metrics
	observers []Observer
	credits   func(tenant limit.TenantID, subject string, r *RuleDecision)
	previews  *previews
	amends    *turn.Pace[limit.TenantID]
	instances func() int
}

// Observer is notified of decisions. It must not keep req or d, whose memory is reused. It must not
// wait, because it runs during every check.
type Observer interface {
	Decided(tenant limit.TenantID, req *Request, d *Decision, at time.Time)
}

// CheckerOptions are the parts of a Checker. Keys, Engine and Metrics are required.
type CheckerOptions struct {
	Keys      Keys
	Engine    engine.Engine // a Stack, except in simulation
	Metrics   *Metrics
	Observers []Observer
	// Credits is told of each decision by a rule for which the subject has, or had, credits
	// (RuleDecision.HasCredits). Like an Observer, it must neither wait nor keep what it gets. nil:
	// nobody is told.
	Credits func(tenant limit.TenantID, subject string, r *RuleDecision)
	Clock   func() time.Time // wall clock with a monotonic reading; nil: time.Now
	// Instances returns how many instances share the counter store; nil: one.
	Instances func() int
}

// NewChecker returns a Checker.
func NewChecker(o CheckerOptions) *Checker {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Instances == nil {
		o.Instances = func() int { return 1 }
	}
	return &Checker{keys: o.Keys, engine: o.Engine, now: o.Clock, storeMS: storeMS(o.Engine), metrics: o.Metrics, observers: o.Observers,
		credits: o.Credits, previews: newPreviews(),
		amends: turn.NewPace[limit.TenantID](amendRest, amendFree), instances: o.Instances}
}

// storeMS returns what tells the time of the counter store at an instant, in milliseconds since
// 1970. It decides which overrides, credits and windows apply, so that all instances agree on these
// as they do on counters, although their own clocks differ.
func storeMS(e engine.Engine) func(at time.Time) int64 {
	if of, ok := e.(interface{ StoreMS(at time.Time) int64 }); ok {
		return of.StoreMS
	}
	return time.Time.UnixMilli
}

// nowMS returns the time of the counter store now.
func (c *Checker) nowMS() int64 { return c.storeMS(c.now()) }

// evaluation is the state of one request while it is decided.
type evaluation struct {
	policy   *Policy
	subject  *subjectEntry // as found at the beginning; nil: not registered
	req      *Request
	decision Decision
	call     engine.Call
	counted  []int            // call.Counters[n] is the counter of decision.Rules[counted[n]]; those in next follow
	next     []engine.Counter // while the number of partitions changes: the second counters
	nextOf   []int            // of each its first counter, by index in counted
	denied   bool             // whatever the counters say: the subject is blocked, or lacks a required attribute
	keys     keyMaker
}

// Scratch is memory for deciding checks that later checks can reuse. The zero Scratch is ready to
// use. It serves one call at a time.
type Scratch struct {
	evaluations []evaluation
	calls       []*engine.Call
	decisions   []Decision
	together    together
}

// Bytes returns the approximate size of the scratch. A large one should be released.
func (s *Scratch) Bytes() (n int) {
	for i := range s.evaluations {
		e := &s.evaluations[i]
		n += cap(e.decision.Rules)*decidedBytes + cap(e.call.Counters)*countedBytes
	}
	return n + len(s.evaluations)*evaluatedBytes + cap(s.together.call.Counters)*countedBytes
}

// The memory of a Scratch for a rule of a decision, for a counter, and for a request.
var (
	decidedBytes   = sizeOf[RuleDecision]()
	countedBytes   = sizeOf[engine.Counter]() + sizeOf[limit.Verdict]()
	evaluatedBytes = sizeOf[evaluation]() + sizeOf[Decision]()
)

// grow returns n evaluations. Evaluations that were used before keep their memory.
func (s *Scratch) grow(n int) []evaluation {
	if n > len(s.evaluations) {
		s.evaluations = append(s.evaluations, make([]evaluation, n-len(s.evaluations))...)
	}
	return s.evaluations[:n]
}

// Check is CheckIn with a new Scratch.
func (c *Checker) Check(ctx context.Context, p *Policy, reqs []Request) ([]Decision, error) {
	return c.CheckIn(ctx, p, reqs, new(Scratch))
}

// CheckIn decides the requests in order, each by itself, against one policy. The decisions are in
// scratch, and valid until it is used again. CheckIn fails only with an *UnknownPlanError, before
// anything is counted. If counters cannot be reached, each rule's OnUnavailable answers. CheckIn
// does not end with its context: others may share the call to the counter store, which has its own
// timeout, and what was sent is counted in any case.
func (c *Checker) CheckIn(_ context.Context, p *Policy, reqs []Request, scratch *Scratch) ([]Decision, error) {
	started := c.now()
	evaluations, err := c.resolve(p, reqs, scratch, started)
	if err != nil {
		return nil, err
	}
	scratch.evaluate(context.Background(), c.engine, evaluations)
	c.conclude(p, reqs, scratch, evaluations, started)
	return scratch.decisions, nil
}

// CheckInTurns is CheckIn for several requests, and for such as take a processor for long. turn
// waits for a turn before the counter store is asked, and after its answer, which ends when this
// part of the work is done. nil: it needs none.
func (c *Checker) CheckInTurns(_ context.Context, p *Policy, reqs []Request, scratch *Scratch, turn func() (end func())) (_ []Decision, err error) {
	var started time.Time
	var evaluations []evaluation
	inTurn(turn, func() {
		started = c.now()
		evaluations, err = c.resolve(p, reqs, scratch, started)
	})
	if err != nil {
		return nil, err
	}
	scratch.evaluate(context.Background(), c.engine, evaluations)
	inTurn(turn, func() { c.conclude(p, reqs, scratch, evaluations, started) })
	return scratch.decisions, nil
}

func inTurn(turn func() (end func()), work func()) {
	if turn != nil {
		defer turn()()
	}
	work()
}

// resolve resolves the requests. The only error is an *UnknownPlanError.
func (c *Checker) resolve(p *Policy, reqs []Request, scratch *Scratch, started time.Time) ([]evaluation, error) {
	nowMS := c.storeMS(started)
	evaluations := scratch.grow(len(reqs))
	for i := range reqs {
		if !evaluations[i].resolve(c.keys, p, &reqs[i], started, nowMS) {
			return nil, &UnknownPlanError{Index: i, Plan: reqs[i].Plan}
		}
	}
	return evaluations, nil
}

// conclude stores the decisions in scratch, and notifies those who want to know of them.
func (c *Checker) conclude(p *Policy, reqs []Request, scratch *Scratch, evaluations []evaluation, started time.Time) {
	scratch.decisions = scratch.decisions[:0]
	for i := range evaluations {
		evaluations[i].conclude()
		d := &evaluations[i].decision
		scratch.decisions = append(scratch.decisions, *d)
		c.metrics.decided(d)
		c.tellCredits(p.tenant, d)
		for _, o := range c.observers {
			o.Decided(p.tenant, &reqs[i], d, started)
		}
	}
	c.metrics.evaluation.Observe(c.now().Sub(started).Seconds())
}

// tellCredits tells of rules with credits of the subject.
func (c *Checker) tellCredits(tenant limit.TenantID, d *Decision) {
	if !d.Credits || c.credits == nil {
		return
	}
	for i := range d.Rules {
		if d.Rules[i].HasCredits {
			c.credits(tenant, d.Subject, &d.Rules[i])
		}
	}
}

// evaluate evaluates the calls of all evaluations that have counters.
func (s *Scratch) evaluate(ctx context.Context, engine engine.Engine, evaluations []evaluation) {
	s.calls = s.calls[:0]
	for i := range evaluations {
		if len(evaluations[i].counted) > 0 {
			s.calls = append(s.calls, &evaluations[i].call)
		}
	}
	if len(s.calls) > 0 {
		engine.Evaluate(ctx, s.calls...)
	}
}

// resolve finds the plan, the subject, the rules, their limits and the keys. It is the only place
// that looks up the subject, so a decision uses one state of it. It returns false for an unknown
// plan. nowMS is started by the store's clock.
func (e *evaluation) resolve(keys Keys, p *Policy, req *Request, started time.Time, nowMS int64) bool {
	e.policy, e.req = p, req
	subject, _ := p.subjects.Load(req.Subject)
	e.subject = subject
	plan, known := p.plan(req.Plan, subject)
	if !known {
		return false
	}
	d := &e.decision
	rules := d.Rules[:0]
	e.call.Counters, e.counted, e.next, e.nextOf = e.call.Counters[:0], e.counted[:0], e.next[:0], e.nextOf[:0]
	*d = Decision{Rules: rules, Allowed: true, Subject: req.Subject, Resource: req.Resource, Cost: req.Cost, Deciding: -1, NowMS: nowMS}
	if plan != nil {
		d.Plan = plan.slug
	}
	if req.Explain {
		d.Explains = p
	}
	if e.denied = subject != nil && subject.state == Blocked && !req.reported; e.denied {
		d.Allowed, d.Code = false, SubjectBlocked
		return true
	}
	var buf [limit.MaxMatchingRules]int32
	matching := p.matching(buf[:0], req.Resource)
	e.call.Tenant, e.call.Cost, e.call.DryRun = p.tenant, req.Cost, req.DryRun
	e.call.Started, e.call.Fresh, e.call.Leased = started, req.Explain, true
	d.Rules = slices.Grow(d.Rules, len(matching))
	e.call.Counters = slices.Grow(e.call.Counters, len(matching))
	e.counted = slices.Grow(e.counted, len(matching))
	e.keys.begin(keys)
	for _, i := range matching {
		e.addRule(i, plan, subject, nowMS)
	}
	e.call.Counters = append(e.call.Counters, e.next...)
	e.call.Spread = p.places.spread(&e.call)
	return true
}

// addRule adds rule i of the policy to the decision, and the rule's counter to the call.
func (e *evaluation) addRule(i int32, plan *planNumbers, subject *subjectEntry, nowMS int64) {
	d, r := &e.decision, &e.policy.rules[i]
	if r.rule.Mode == limit.Off {
		return // Decision.EachSkipped yields it
	}
	num := e.policy.number(i, plan, subject, nowMS)
	if r.cycle != nil {
		num.numbers.Bounds = r.cycle.Bounds(subject.anchor(), nowMS)
	}
	rd := RuleDecision{Rule: &r.rule, Mode: subject.modeFor(r), Source: num.source, WindowMS: num.numbers.LengthMS(nowMS), WarnAt: num.warnAt, MayExceed: num.numbers.Overage, Metering: num.metering}
	if num.unlimited {
		rd.Unlimited, rd.Allowed = true, true
		d.Rules = append(d.Rules, rd)
		return
	}
	rd.Limit, rd.Burst, rd.Quota = num.numbers.Limit, num.numbers.Burst, num.numbers.Quota()
	counter := engine.Counter{Numbers: num.numbers, Shadow: rd.Mode == limit.Shadow, OnUnavailable: r.rule.OnUnavailable}
	if missing := e.keys.counter(&counter, r, e.req); missing != "" {
		e.missing(&rd, missing)
		return
	}
	var credits *engine.Credits
	if subject != nil && subject.credits != nil {
		credits = subject.creditsFor(r)
		rd.HasCredits, credits = credits != nil, left(credits, nowMS)
	}
	if e.keys.from != "" {
		e.moving(&counter, credits != nil, nowMS)
	}
	if credits != nil {
		counter.Credits, counter.Sole = credits.At(counter.Key), len(r.rule.By) == 1
	}
	counter.Leased = r.rule.Consistency == limit.Leased && !num.numbers.Overage && counter.Credits == nil
	e.call.Leased = e.call.Leased && counter.Leased
	e.counted = append(e.counted, len(d.Rules))
	d.Rules = append(d.Rules, rd)
	e.call.Counters = append(e.call.Counters, counter)
}

// missing adds a rule to the decision that counts by an attribute that the check lacks. If the rule
// denies it, the counters of the other rules are only read.
func (e *evaluation) missing(r *RuleDecision, attribute string) {
	d := &e.decision
	if r.Rule.OnMissingAttribute == limit.SkipRule {
		d.Skipped = append(d.Skipped, SkippedRule{Rule: r.Rule, Reason: MissingAttribute, Attribute: attribute})
		return
	}
	r.Missing, r.Uncounted, r.RetryAfterMS = attribute, true, limit.NeverMS
	d.Rules = append(d.Rules, *r)
	if r.Mode == limit.Enforce {
		e.call.Cost, e.denied = 0, true
	}
}

// conclude copies the engine's verdicts into the decision and decides.
func (e *evaluation) conclude() {
	d := &e.decision
	if d.Code == SubjectBlocked {
		return
	}
	if len(e.counted) > 0 {
		out := &e.call.Outcome
		d.NowMS, d.Degraded = out.NowMS, out.Degraded
		for n, i := range e.counted {
			d.Rules[i].take(&e.call, n, out.NowMS)
		}
		for k, n := range e.nextOf {
			next := len(e.counted) + k
			e.takeNext(&d.Rules[e.counted[n]], &e.call, next, out.NowMS)
		}
	}
	d.conclude()
}
