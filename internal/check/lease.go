package check

import (
	"context"
	"errors"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Lease is units that a client may grant from its own memory, to checks that equal one request
// except for their cost.
type Lease struct {
	engine.Grant
	Decision *Decision // of the request, with Units as its cost
}

// NotLeasableError is the error of Lease for a request whose checks cannot be decided from memory
// now. Each check must be sent.
type NotLeasableError struct {
	// Rules are the rules because of which no lease is possible. They are nil if other requests
	// took the units several times.
	Rules []NotLeasable
	// Now: a lease of these rules is possible, but not at the moment.
	Now bool
}

// NotLeasable is a rule of which no units can be leased, and the reason.
type NotLeasable struct {
	Rule   string // slug
	Reason *limit.Problem
}

func (e *NotLeasableError) Error() string {
	if len(e.Rules) > 0 {
		return "rule " + e.Rules[0].Rule + " " + e.Rules[0].Reason.Message
	}
	return "other requests took the units in the meantime"
}

// The reasons for which no units of a rule can be leased.
var (
	notLeased     = limit.Wrong("Set consistency to leased, or send each check.", "has consistency strict")
	notForClients = limit.Wrong("Send each check, or use fixed_window.",
		"has the algorithm fixed_window_first_hit: a lease would open a window before its first request")
	notByAlgorithm = limit.Wrong("Send each check, or use another algorithm.", "has an algorithm that counts each request at its own instant")
	hasPenalty     = limit.Wrong("Send each check, or remove the penalty.", "has a penalty, which begins with the first denied check")
	hasOverage     = limit.Wrong("Send each check, or set overage to deny.", "allows overage, so a leased unit could count as excess")
	shadowDenies   = limit.Wrong("Send each check, so that the rule reports it.", "is in shadow mode and has nothing left: each check must reach it")
	windowEnds     = limit.Wrong("Send each check, and ask again in the next window.", "has a window that ends too soon")
	bucketRefills  = limit.Wrong("Send each check, or increase the burst.",
		"refills so fast that too few of its remaining units could be granted")
	inPartitions = limit.Wrong("Send each check.", "is counted in several partitions, or in another one than other rules of the check")
	hasCredits   = limit.Wrong("Send each check of this subject.", "has credits for the subject, which a lease could spend in advance")
)

// errNoGranter is the error of Lease if the engine of the checker grants nothing to clients.
var errNoGranter = errors.New("the engine grants no leases to clients")

// Lease charges up to req.Cost units to all counters of the request, for a client, and grants at
// least one. If the subject is blocked or nothing is left, the lease has no units, and its decision
// is the denial of a check of cost 1. The error is an *UnknownPlanError, a *NotLeasableError, or
// ErrCountersUnavailable. The decision is in scratch.
//
// A granted lease is no decided check, so observers are not notified: see Report. Of a denial they
// are.
func (c *Checker) Lease(ctx context.Context, p *Policy, req *Request, scratch *Scratch) (Lease, error) {
	granter, ok := c.engine.(engine.Granter)
	if !ok {
		return Lease{}, errNoGranter
	}
	started := c.now()
	e := &scratch.grow(1)[0]
	if !e.resolve(c.keys, p, req, started, c.storeMS(started)) {
		return Lease{}, &UnknownPlanError{Plan: req.Plan}
	}
	lease := Lease{Decision: &e.decision}
	switch {
	case e.decision.Code == SubjectBlocked:
		return lease, c.deniedLease(e)
	case e.denied: // a required attribute is missing
		return c.deniedByCheck(ctx, p, *req, scratch)
	case len(e.counted) == 0: // nothing limits it
		e.decision.conclude()
		lease.Units, lease.Life = req.Cost, limit.LeaseHold
		return lease, nil
	}
	if e.call.Spread {
		return Lease{}, e.spread()
	}
	if err := e.leasable(); err != nil {
		return Lease{}, err
	}
	var err error
	lease.Grant, err = granter.Grant(context.WithoutCancel(ctx), &e.call, req.Cost, e.clientLease())
	refused := (*engine.RefusedError)(nil)
	switch {
	case errors.Is(err, engine.ErrDenied):
		return lease, c.deniedLease(e)
	case errors.As(err, &refused):
		return Lease{}, e.refused(refused)
	case err != nil:
		return Lease{}, errors.Join(ErrCountersUnavailable, err)
	}
	e.decision.Cost = lease.Units
	e.conclude()
	c.metrics.leaseGranted(lease.Units)
	return lease, nil
}

// deniedLease concludes the denial of a lease, as that of a check of cost 1.
func (c *Checker) deniedLease(e *evaluation) error {
	req, d := *e.req, &e.decision
	req.Cost, d.Cost = 1, 1
	e.conclude()
	c.metrics.decided(d)
	c.notify(e.policy, &req, d)
	return nil
}

// deniedByCheck returns the denial of a lease that a check of cost 1 gets.
func (c *Checker) deniedByCheck(ctx context.Context, p *Policy, req Request, scratch *Scratch) (Lease, error) {
	req.Cost = 1
	decisions, err := c.CheckIn(ctx, p, []Request{req}, scratch)
	if err != nil {
		return Lease{}, err
	}
	return Lease{Decision: &decisions[0]}, nil
}

// clientLease returns for how long a client may hold units of the counters: for the shortest lease
// of their rules.
func (e *evaluation) clientLease() time.Duration {
	hold := time.Duration(limit.MaxLeaseMS) * time.Millisecond
	for _, i := range e.counted {
		hold = min(hold, e.decision.Rules[i].Rule.ClientLease())
	}
	return hold
}

// refused returns the error of a request for which the engine grants no units now.
func (e *evaluation) refused(r *engine.RefusedError) *NotLeasableError {
	err := &NotLeasableError{Now: true}
	if r.Counter < 0 {
		return err
	}
	reason := map[engine.Refusal]*limit.Problem{
		engine.ShadowDenies: shadowDenies, engine.WindowEnds: windowEnds, engine.BucketRefills: bucketRefills,
	}[r.Why]
	err.Rules = []NotLeasable{{Rule: e.decision.Rules[e.counted[r.Counter]].Rule.Slug, Reason: reason}}
	return err
}

// spread returns the error of a request whose rules count in several partitions.
func (e *evaluation) spread() *NotLeasableError {
	err := &NotLeasableError{}
	for _, i := range e.counted {
		err.Rules = append(err.Rules, NotLeasable{Rule: e.decision.Rules[i].Rule.Slug, Reason: inPartitions})
	}
	return err
}

// leasable returns why no units of the counters can be leased, or nil.
func (e *evaluation) leasable() error {
	var rules []NotLeasable
	for n, i := range e.counted {
		counter, r := &e.call.Counters[n], e.decision.Rules[i].Rule
		var reason *limit.Problem
		switch {
		case r.Consistency != limit.Leased:
			reason = notLeased
		case counter.Credits != nil:
			reason = hasCredits
		case counter.Numbers.Overage:
			reason = hasOverage
		case counter.Numbers.PenaltyMS > 0:
			reason = hasPenalty
		case counter.Numbers.Algorithm == limit.FixedWindowFirstHit:
			reason = notForClients
		case !counter.Numbers.Leasable():
			reason = notByAlgorithm
		default:
			continue
		}
		rules = append(rules, NotLeasable{Rule: r.Slug, Reason: reason})
	}
	if rules == nil {
		return nil
	}
	return &NotLeasableError{Rules: rules}
}

// ReturnLease returns the units of a grant that the client did not grant. It must be called at most
// once for each grant, and again only if engine.NotCounted is true for its error. Units of a window
// that is over are lost.
func (c *Checker) ReturnLease(ctx context.Context, g *engine.Grant, units int64) error {
	refund := g.Returned(units)
	if len(refund.Parts) == 0 {
		return nil
	}
	c.engine.Refund(context.WithoutCancel(ctx), refund)
	if refund.Err != nil {
		return errors.Join(ErrCountersUnavailable, refund.Err)
	}
	if refund.Refused == 0 {
		c.metrics.leaseReturned(units)
	}
	return nil
}

// Reported is what a client decided from a lease, or from a denial that it remembered.
type Reported struct {
	Allowed, AllowedUnits int64 // checks, and the sum of their costs
	Denied, DeniedUnits   int64
}

// Report notifies the observers of checks that a client decided. They count by the rules and the
// plan that apply now. Denied checks count in the totals, and not by rule, because the client does
// not say which rule denied them.
func (c *Checker) Report(p *Policy, req Request, r Reported, scratch *Scratch) {
	now := c.now()
	e := &scratch.grow(1)[0]
	req.reported, req.Cost = true, 1
	if !e.resolve(c.keys, p, &req, now, c.storeMS(now)) {
		req.Plan = "" // deleted in the meantime
		e.resolve(c.keys, p, &req, now, c.storeMS(now))
	}
	c.metrics.leaseReported(&r)
	d := &e.decision
	if r.Allowed > 0 {
		req.Cost, d.Cost, d.Reported = r.AllowedUnits, r.AllowedUnits, r.Allowed
		for i := range d.Rules {
			d.Rules[i].Allowed = true
		}
		d.conclude()
		c.notify(p, &req, d)
	}
	if r.Denied > 0 {
		req.Cost, d.Cost, d.Reported = r.DeniedUnits, r.DeniedUnits, r.Denied
		d.Rules, d.Deciding = d.Rules[:0], -1
		d.Allowed, d.Code = false, RateLimitExceeded
		c.notify(p, &req, d)
	}
}

// CountedAttributes returns the attributes of a request by which rules that match it count, without
// their values. Report needs no others: it must know only which rules the request lacks an
// attribute for.
func (p *Policy) CountedAttributes(req *Request) (out []Attribute) {
	var buf [limit.MaxMatchingRules]int32
	matching := p.matching(buf[:0], req.Resource)
	for i := range req.Attributes {
		name := req.Attributes[i].Name
		if slices.ContainsFunc(matching, func(r int32) bool { return p.rules[r].by.has(name) }) {
			out = append(out, Attribute{Name: name})
		}
	}
	return out
}

func (c *Checker) notify(p *Policy, req *Request, d *Decision) {
	for _, o := range c.observers {
		o.Decided(p.tenant, req, d, c.now())
	}
}
