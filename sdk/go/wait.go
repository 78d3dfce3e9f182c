package weir

import (
	"context"
	"fmt"
	"time"
)

// Wait sends the check until it is allowed, waits for the delay of a queue rule, and returns. It
// waits no longer than the context's deadline: if the wait would exceed it, or if no wait helps,
// the denial is returned immediately. Check Decision.Allowed.
//
// If the delay of an allowed check exceeds the deadline, the error is context.DeadlineExceeded: the
// units are used, but the caller must not proceed.
func (c *Client) Wait(ctx context.Context, check Check) (Decision, error) {
	deadline, has := ctx.Deadline()
	return c.waitUntil(ctx, check, deadline, has)
}

func (c *Client) waitUntil(ctx context.Context, check Check, deadline time.Time, hasDeadline bool) (Decision, error) {
	if check.IdempotencyKey != "" {
		return Decision{}, c.refused(ctx, "check", []Check{check},
			invalid("header:Idempotency-Key", "is set", "Omit it: the same key would get the same denial again."))
	}
	fits := func(d time.Duration) bool { return !hasDeadline || !c.clock.Now().Add(d).After(deadline) }
	var denial Decision
	for denied := false; ; denied = true {
		d, err := c.Check(ctx, check)
		if err != nil {
			return Decision{}, err
		}
		if denied && d.NoDecision != nil && d.NoDecision.callersDeadline {
			return denial, nil // the end of the wait must not allow what was denied
		}
		if d.Allowed {
			return c.hold(ctx, d, fits)
		}
		wait, known := d.RetryAfter()
		if !known && d.Source == SourceFallback && d.Denial.Code == CodeLimiterUnavailable {
			wait, known = breakerProbeInterval, true
		}
		if !known || !fits(wait) {
			return d, nil
		}
		if err := c.clock.Sleep(ctx, wait); err != nil {
			return d, deadlineOr(err, d)
		}
		denial = d
	}
}

// hold waits for the delay of an allowed check.
func (c *Client) hold(ctx context.Context, d Decision, fits func(time.Duration) bool) (Decision, error) {
	delay := d.Delay()
	if delay <= 0 {
		return d, nil
	}
	if !fits(delay) {
		return Decision{}, fmt.Errorf("weir: the request must be held for %s, beyond the deadline: %w", delay, context.DeadlineExceeded)
	}
	if err := c.clock.Sleep(ctx, delay); err != nil {
		return Decision{}, err
	}
	return d, nil
}

// deadlineOr returns nil if the deadline passed during a sleep that should have been short enough:
// the last denial is then the result.
func deadlineOr(err error, d Decision) error {
	if err == context.DeadlineExceeded {
		return nil
	}
	return err
}
