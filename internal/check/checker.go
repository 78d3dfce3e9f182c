package check

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// UnknownPlanError is the error for a request that names a plan the tenant does not have.
type UnknownPlanError struct {
	Index int // of the request
	Plan  string
}

func (e *UnknownPlanError) Error() string { return fmt.Sprintf("unknown plan %q", e.Plan) }

// Checker decides checks. It may be used by many goroutines at once.
type Checker struct {
	keys    Keys
	shared  *guarded
	local   Engine // this instance's own counters, for rules that are Local while shared is away
	peers   *Peers
	denials *denials
	leases  *leases
	metrics *Metrics
	usage   *Usage
	recent  *Recent
	about   func() Instance
	clock   func() time.Time
}

// CheckerOptions are what a Checker is made of. All fields but Usage, Clock and About are required.
type CheckerOptions struct {
	Keys    Keys
	Shared  Engine // the counter store that all instances share
	Local   Engine // counters in this process
	Peers   *Peers
	Metrics *Metrics
	Usage   *Usage           // counts the decisions; nil: nobody does
	Clock   func() time.Time // wall clock with a monotonic reading, for overrides and local times; nil: time.Now
	// About tells what the program knows of this instance: all of Instance but Latency and
	// DegradedSince. nil: nothing.
	About func() Instance
}

// NewChecker returns a Checker. Close it when its last check has ended.
func NewChecker(o CheckerOptions) *Checker {
	silence, own := o.Clock, o.Clock == nil
	if own {
		o.Clock, silence = time.Now, awakeClock
	}
	probe := func(ctx context.Context) error { return probeCall(ctx, o.Shared) }
	c := &Checker{
		keys:    o.Keys,
		shared:  &guarded{engine: o.Shared, breaker: newBreaker(silence, probe, o.Metrics), metrics: o.Metrics},
		local:   o.Local,
		peers:   o.Peers,
		denials: newDenials(o.Clock),
		metrics: o.Metrics,
		usage:   o.Usage,
		recent:  newRecent(o.Clock, o.Keys, o.Peers),
		about:   o.About,
		clock:   o.Clock,
	}
	c.leases = newLeases(c.shared, o.Metrics, o.Clock, own)
	c.recent.instance = c.instance
	return c
}

// Close ends what runs in the background, and gives back what is leased.
func (c *Checker) Close() {
	c.leases.close()
	close(c.shared.breaker.stop)
}

// Instances is how many instances of the service answer checks, as far as this one knows; at least 1.
func (c *Checker) Instances() int { return c.peers.Count() }

// DegradedSince returns since when the counter store is taken to be away; zero if it is not.
func (c *Checker) DegradedSince() time.Time { return c.shared.breaker.degradedSince() }

// Recent returns what this process keeps of its decisions.
func (c *Checker) Recent() *Recent { return c.recent }

// evaluation is one request on its way to a decision.
type evaluation struct {
	policy   *Policy
	req      *Request
	decision Decision
	call     Call
	counted  []int // call.Counters[n] is the counter of decision.Rules[counted[n]]
	started  time.Time
	leasing
	keys keyMaker
}

// Room is memory that deciding needs and that the next checks can use again. The zero Room is
// ready. It serves one call at a time.
type Room struct {
	evaluations []evaluation
	calls       []*Call
	decisions   []Decision
}

// Bytes returns how much memory the room holds, roughly: a large one is better let go.
func (r *Room) Bytes() (n int) {
	for i := range r.evaluations {
		e := &r.evaluations[i]
		n += cap(e.decision.Rules)*decidedBytes + cap(e.call.Counters)*countedBytes
	}
	return n + len(r.evaluations)*evaluatedBytes
}

// What a Room holds for a rule of a decision, for a counter, and for a request.
var (
	decidedBytes   = sizeOf[RuleDecision]()
	countedBytes   = sizeOf[Counter]() + sizeOf[Verdict]()
	evaluatedBytes = sizeOf[evaluation]() + sizeOf[Decision]()
)

// grow makes room for so many evaluations. Those that were used before keep their memory.
func (r *Room) grow(n int) []evaluation {
	if n > len(r.evaluations) {
		r.evaluations = append(r.evaluations, make([]evaluation, n-len(r.evaluations))...)
	}
	return r.evaluations[:n]
}

// Check is CheckIn with a Room of its own.
func (c *Checker) Check(ctx context.Context, p *Policy, reqs []Request) ([]Decision, error) {
	return c.CheckIn(ctx, p, reqs, new(Room))
}

// CheckIn decides the requests in order, each by itself, against one policy. The decisions are in
// room, and good until it is used again. It fails only with an *UnknownPlanError, before
// anything is counted: counters that cannot be reached are answered by each rule's
// OnUnavailable. A client that goes away ends nothing: others may share the exchange with the
// counter store, which has a deadline of its own, and what is under way is counted all the same.
func (c *Checker) CheckIn(_ context.Context, p *Policy, reqs []Request, room *Room) ([]Decision, error) {
	started := c.clock()
	evaluations := room.grow(len(reqs))
	for i := range reqs {
		if !evaluations[i].begin(c, p, &reqs[i], started) {
			return nil, &UnknownPlanError{Index: i, Plan: reqs[i].Plan}
		}
	}
	c.count(evaluations, room)
	room.decisions = room.decisions[:0]
	for i := range evaluations {
		d := &evaluations[i].decision
		room.decisions = append(room.decisions, *d)
		c.metrics.decided(d)
		if evaluations[i].given {
			c.metrics.leaseGiven.Inc()
		}
		c.usage.record(p.tenant, &reqs[i], d, started)
		c.recent.record(p.tenant, &reqs[i], d, started)
	}
	c.metrics.evaluation.Observe(c.clock().Sub(started).Seconds())
	return room.decisions, nil
}

// count takes the evaluations that have counters to the shared engine, those left out that a denial or
// a lease in this process answers, and finishes all of them.
func (c *Checker) count(evaluations []evaluation, room *Room) {
	calls := room.calls[:0]
	for i := range evaluations {
		e := &evaluations[i]
		if len(e.counted) == 0 || c.answerDenied(e) || e.leased && c.leases.answer(e) {
			e.counted = e.counted[:0]
			continue
		}
		calls = append(calls, &e.call)
	}
	room.calls = calls
	if len(calls) > 0 {
		c.shared.evaluate(context.Background(), calls)
		c.settleLeased(evaluations, calls)
	}
	for i := range evaluations {
		e := &evaluations[i]
		if len(e.counted) == 0 {
			continue
		}
		if e.call.Err != nil {
			c.answerWithout(e)
		} else {
			e.answer()
		}
		e.decision.conclude()
		c.denials.remember(e)
	}
}

// begin resolves what applies: plan, subject, rules, numbers, keys. It reports false for an
// unknown plan. A request that needs no counter is decided when begin returns.
func (e *evaluation) begin(c *Checker, p *Policy, req *Request, now time.Time) bool {
	e.policy, e.req, e.started, e.leasing = p, req, now, leasing{}
	nowMS := now.UnixMilli()
	subject, _ := p.subjects.Load(req.Subject)
	plan, known := p.plan(req.Plan, subject)
	if !known {
		return false
	}
	d := &e.decision
	rules := d.Rules[:0]
	e.call.Counters, e.counted = e.call.Counters[:0], e.counted[:0]
	*d = Decision{Rules: rules, Allowed: true, Subject: req.Subject, Resource: req.Resource, Cost: req.Cost, Deciding: -1, NowMS: nowMS}
	if plan != nil {
		d.Plan = plan.slug
	}
	if subject != nil && subject.state == Blocked {
		d.Allowed, d.Code = false, SubjectBlocked
		if req.Explain {
			for i := range p.rules {
				d.Skipped = append(d.Skipped, SkippedRule{Rule: &p.rules[i].rule, Reason: BlockedSubject})
			}
		}
		return true
	}
	var room [MaxMatchingRules]int32
	matching := p.matching(room[:0], req.Resource)
	e.call.Tenant, e.call.Cost, e.call.DryRun = p.tenant, req.Cost, req.DryRun
	e.leased = req.Cost > 0 && !req.DryRun && !req.Explain
	d.Rules = slices.Grow(d.Rules, len(matching))
	e.call.Counters = slices.Grow(e.call.Counters, len(matching))
	e.counted = slices.Grow(e.counted, len(matching))
	e.keys.begin(c.keys)
	for _, i := range matching {
		e.addRule(i, plan, subject, nowMS)
	}
	if req.Explain {
		e.explain(matching)
	}
	if len(e.counted) == 0 {
		d.conclude()
	}
	return true
}

// addRule adds rule i of the policy to the decision, and its counter to the call.
func (e *evaluation) addRule(i int32, plan *planNumbers, subject *subjectEntry, nowMS int64) {
	d, r := &e.decision, &e.policy.rules[i]
	if r.rule.Mode == Off {
		return // explain lists it
	}
	num := e.policy.number(i, plan, subject, nowMS)
	rd := RuleDecision{Rule: &r.rule, Mode: r.rule.Mode, Source: num.source, WindowMS: num.numbers.windowMS(nowMS)}
	if subject != nil && subject.state == Exempt {
		rd.Mode = Shadow
	}
	if num.unlimited {
		rd.Unlimited, rd.Allowed = true, true
		d.Rules = append(d.Rules, rd)
		return
	}
	counter := Counter{Numbers: num.numbers, Shadow: rd.Mode == Shadow}
	if missing := e.keys.counter(&counter, r, e.req); missing != "" {
		d.Skipped = append(d.Skipped, SkippedRule{Rule: &r.rule, Reason: MissingAttribute, Attribute: missing})
		return
	}
	rd.Limit, rd.Burst, rd.Quota = num.numbers.Limit, num.numbers.Burst, num.numbers.Quota()
	e.leased = e.leased && r.rule.Consistency == Leased
	e.counted = append(e.counted, len(d.Rules))
	d.Rules = append(d.Rules, rd)
	e.call.Counters = append(e.call.Counters, counter)
}

// explain lists every rule of the policy that is not evaluated, with the reason.
func (e *evaluation) explain(matching []int32) {
	next := 0
	for i := range e.policy.rules {
		r := &e.policy.rules[i].rule
		switch {
		case next < len(matching) && int(matching[next]) == i:
			next++
			if r.Mode == Off {
				e.decision.Skipped = append(e.decision.Skipped, SkippedRule{Rule: r, Reason: ModeOff})
			}
		case r.Mode == Off:
			e.decision.Skipped = append(e.decision.Skipped, SkippedRule{Rule: r, Reason: ModeOff})
		default:
			e.decision.Skipped = append(e.decision.Skipped, SkippedRule{Rule: r, Reason: ResourceMismatch})
		}
	}
}

// answer takes the shared engine's verdicts into the decision.
func (e *evaluation) answer() {
	e.decision.NowMS = e.call.Outcome.NowMS
	for n, i := range e.counted {
		r := &e.decision.Rules[i]
		r.take(&e.call.Outcome.Verdicts[n], e.call.Outcome.NowMS)
		if e.held > 0 {
			r.Remaining = min(r.Remaining+e.held, r.Quota)
		}
	}
}

// windowMS is the length of the window at an instant: of a calendar month, the present one's.
func (n Numbers) windowMS(nowMS int64) int64 {
	switch n.Calendar {
	case NoCalendar:
		return n.WindowMS
	case CalendarDay:
		return dayMS
	case CalendarWeek:
		return 7 * dayMS
	default:
		t := time.UnixMilli(nowMS).UTC()
		return int64(time.Date(t.Year(), t.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()) * dayMS
	}
}
