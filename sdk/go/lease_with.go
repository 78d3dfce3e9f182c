package weir

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Lease is the units of WithLease. It is safe for concurrent use.
type Lease struct {
	checker Checker
	client  *Client
	check   Check
	held    *lease // nil: the server has leased nothing
}

// LeaseWithout returns a lease without units, whose checks checker decides. It is for fakes.
func LeaseWithout(checker Checker, check Check) *Lease { return &Lease{checker: checker, check: check} }

// WithLease takes up to that many units for checks with the subject, resource, plan and attributes
// of check, calls work, and returns the units that work has not used: when it ends, or when the
// time of the lease is over. It needs no option, and is for work that knows how many units it will
// use: an import, an export.
//
// The server gives fewer units if a quarter of what remains is less, and none if a rule is not
// leased or it does not answer. The checks that find too few units are sent. The error is that of
// work, or a *MisuseError or the context's error, in which case work was not called.
func (c *Client) WithLease(ctx context.Context, check Check, units int64, work func(*Lease) error) error {
	check.Cost = 0
	q, misuse := ask(check, false)
	switch {
	case misuse != nil:
		return misuse
	case check.IdempotencyKey != "":
		return invalid("header:Idempotency-Key", "is set", "Omit it: a lease is for many checks.")
	case units < 1 || units > maxCost:
		return invalid("/units", fmt.Sprint("is ", units), "Pass 1 to 1000000000000000.")
	}
	l := &Lease{checker: c, client: c, check: q.Check}
	sentAt := c.clock.Now()
	granted, denial, _, err := c.requestLease(ctx, &l.check, func() int64 { return units }, sentAt)
	if refused := (*refusedLease)(nil); err != nil && !errors.As(err, &refused) {
		return err
	}
	if denial != nil {
		c.rememberDenial(&l.check, denial, sentAt)
	}
	if l.held = granted; granted != nil {
		c.returns.hold(granted)
		defer l.end(ctx)
	}
	return work(l)
}

// Check decides a check of this cost; 0 means 1. If the lease has too few units, or has ended, the
// check is sent.
func (l *Lease) Check(ctx context.Context, cost int64) (d Decision, _ error) {
	check := l.check
	check.Cost = cost
	if l.held == nil || cost < 0 || cost > maxCost {
		return l.checker.Check(ctx, check)
	}
	now, units := l.client.clock.Now(), max(cost, 1)
	left, ok := l.held.grant(now, units)
	if !ok {
		return l.checker.Check(ctx, check)
	}
	l.held.decide(now, units, left, &d)
	if len(l.client.hooks) > 0 {
		_, end := l.client.begin(ctx, "check", []Check{check})
		end([]Decision{d}, nil)
	}
	return d, nil
}

// Left returns the number of units that the lease can still grant.
func (l *Lease) Left() int64 {
	if l.held == nil {
		return 0
	}
	return l.held.held(l.client.clock.Now())
}

// end returns what is left at the end of the block, also when ctx has ended, unless that was done
// when the time of the lease was over. The server counts a return once, so it is sent again.
func (l *Lease) end(ctx context.Context) {
	c := l.client
	r, ok := c.returns.release(l.held)
	if !ok {
		return
	}
	ctx = context.WithoutCancel(ctx)
	failure := c.returnLease(ctx, r)
	if failure != nil && (failure.Cause == CauseConnectionLost || failure.Cause == CauseConnectionRefused) {
		failure = c.returnLease(ctx, r)
	}
	if failure != nil {
		c.returns.again(r, failure)
	}
}

// requestLease requests units, if the breaker allows it. The number is computed only then.
func (c *Client) requestLease(ctx context.Context, check *Check, units func() int64, sentAt time.Time) (*lease, *Decision, *NoDecision, error) {
	leave, ok := c.brk.enter(sentAt)
	if !ok {
		return nil, nil, &NoDecision{Cause: CauseBreakerOpen}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	ended := false
	defer c.unlessEnded(leave, &ended)
	granted, denial, err := c.sendLease(ctx, check, units(), sentAt)
	ended = true
	failure, err := c.settle(leave, err)
	return granted, denial, failure, err
}

// returnLease returns units, if the breaker allows it. A return that the server refuses has ended.
func (c *Client) returnLease(ctx context.Context, r *leaseReturn) *NoDecision {
	leave, ok := c.brk.enter(c.clock.Now())
	if !ok {
		return &NoDecision{Cause: CauseBreakerOpen}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	ended := false
	defer c.unlessEnded(leave, &ended)
	err := c.sendReturn(ctx, r)
	ended = true
	failure, err := c.settle(leave, err)
	if err != nil {
		return nil
	}
	return failure
}

// rememberDenial stores the denial of a request for units, which is that of a check of cost 1.
func (c *Client) rememberDenial(check *Check, denial *Decision, sentAt time.Time) {
	q := question{Check: *check}
	q.Cost = 1
	c.memory.remember(&q, denial, sentAt)
}
