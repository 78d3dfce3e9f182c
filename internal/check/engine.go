package check

import (
	"context"

	"github.com/google/uuid"
)

// TenantID names a tenant. It comes from a verified key or session, never from a request's body.
type TenantID = uuid.UUID

// Numbers are what one algorithm decides by.
type Numbers struct {
	Algorithm   Algorithm
	Limit       int64    // units of cost per window, 1 to 10^9 (10^15 in the fixed windows)
	WindowMS    int64    // milliseconds; 0 with Calendar
	Calendar    Calendar // fixed_window only
	Burst       int64    // the three buckets only: capacity; never 0 there
	PrecisionMS int64    // sliding_window_buckets only: divides WindowMS
	PenaltyMS   int64    // 0: none
}

// Quota is the most that one request may ever cost.
func (n Numbers) Quota() int64 {
	if n.Algorithm.Bucket() {
		return n.Burst
	}
	return n.Limit
}

// Counter is one rule's counter in a Call.
type Counter struct {
	// Key is the counter's own, or with Grouped that of its group. Keys spells both.
	Key string
	// ID names the rule among all that count by the same values: idBytes long, or "" for a counter
	// that is never in a group.
	ID      string
	Grouped bool // an engine may keep it together with the others of its group
	Numbers Numbers
	Shadow  bool // its verdict is reported, and never denies
}

// OwnKey is what names the counter alone, whether it is grouped or not.
func (c *Counter) OwnKey() string {
	if c.Grouped {
		return keyBeside(c.Key, c.ID)
	}
	return c.Key
}

// same reports whether both are one counter.
func (c *Counter) same(o *Counter) bool {
	return c.Key == o.Key && c.Grouped == o.Grouped && (!c.Grouped || c.ID == o.ID)
}

// Call is one check as an engine sees it: a cost against all counters at once.
type Call struct {
	Tenant   TenantID // whose counters these are; an engine in memory bounds each tenant's
	Cost     int64    // >= 0; 0 peeks: always allowed, counts nothing
	DryRun   bool     // answer as if counted, and change nothing
	NowMS    int64    // milliseconds since 1970; 0: the engine's own clock. Only tests and simulation set it
	Counters []Counter

	// Filled in by Evaluate; Verdicts is reused when its capacity suffices.
	Outcome Outcome
	Err     error // the counters could not be reached, or answered nonsense; Outcome is then void
}

// Outcome is an engine's answer to a Call.
type Outcome struct {
	NowMS    int64 // the instant at which it was decided
	Allowed  bool  // every enforcing counter admits (or Cost is 0)
	Verdicts []Verdict
}

// NeverMS stands in RetryAfterMS where no wait can help.
const NeverMS int64 = -1

// Verdict is what one counter says. Where the call was allowed and this counter charged, the
// numbers are those after the charge; otherwise those of the unchanged state.
type Verdict struct {
	Allowed      bool  // this rule alone would admit
	CostExceeds  bool  // the cost is greater than the quota: never to be admitted
	Penalized    bool  // a penalty (Numbers.PenaltyMS) runs, or is started by this denial; a peek is Allowed even so
	Remaining    int64 // max(0, floor(quota - used)); 0 while penalized
	RetryAfterMS int64 // 0 if Allowed; else the smallest wait, >= 1, until the same cost is admitted; NeverMS
	ResetMS      int64 // instant at which the quota is whole again; NowMS if it is
	NextMS       int64 // instant at which at least one unit more than Remaining is there; NowMS if the quota is whole
	DelayMS      int64 // leaky_bucket_queue: how long an admitted request must be held; 0 elsewhere and when denied
}

// An Engine decides calls on counters.
//
// Each call is atomic: all its counters are read at one instant, the cost is charged to every
// admitting counter if all enforcing ones admit, and to none otherwise. A denied or dry call
// changes nothing (except that a denial by a rule with a penalty starts that penalty). Calls
// of one Evaluate are decided in order. An engine retries nothing: a call whose fate is
// unknown carries Err.
type Engine interface {
	Evaluate(ctx context.Context, calls ...*Call)
	// Reset forgets counters, penalties included. Their Numbers mean nothing to it.
	Reset(ctx context.Context, counters ...Counter) error
	// Refund takes units back that allowed calls charged and nobody was given. It fills in each
	// refund's Refused and Err.
	Refund(ctx context.Context, refunds ...*Refund)
}
