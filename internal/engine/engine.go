package engine

import (
	"context"
	"time"

	"weir/internal/limit"
)

// Counter is one rule's counter in a Call.
type Counter struct {
	// Key is the counter's own key or, if Grouped, the key of its group.
	Key string
	// ID names the rule among all that count by the same values: idBytes long, or "" for a counter
	// that is never in a group.
	ID      string
	Grouped bool // an engine may store it together with the others of its group
	Numbers limit.Numbers
	Shadow  bool // its verdict is reported and never denies
	// OnUnavailable says what Fallback answers for this counter while the store cannot.
	OnUnavailable limit.OnUnavailable
	// Cost is what this counter is charged in a Call with PerCounter, and 0 in every other.
	Cost int64
}

// OwnKey is the key of the counter alone, whether it is grouped or not.
func (c *Counter) OwnKey() string {
	if c.Grouped {
		return keyBeside(c.Key, c.ID)
	}
	return c.Key
}

// Same reports whether both are one counter, whatever their numbers.
func (c *Counter) Same(o *Counter) bool {
	return c.Key == o.Key && c.Grouped == o.Grouped && (!c.Grouped || c.ID == o.ID)
}

// Call is one check as an engine sees it: a cost against all counters at once.
type Call struct {
	Tenant limit.TenantID // the owner of the counters; an engine in memory bounds each tenant's
	Cost   int64          // >= 0; 0 peeks: always allowed, counts nothing
	// PerCounter says that each counter is charged its own Cost. The call's Cost is then the
	// greatest of them. So one call can decide several checks, all of them or none.
	PerCounter bool
	DryRun     bool  // answer as if counted, and change nothing
	NowMS      int64 // milliseconds since 1970; 0: the engine's own clock. Only tests and simulation set it
	Counters   []Counter

	// Started is when the check began, by a clock with a monotonic reading: no later than the
	// moment at which the store decides. Denials and Leases need it.
	Started time.Time
	// Fresh asks for the store's own answer: not for one that this process remembers or prefetched.
	Fresh bool
	// Leased says that units of every counter may be prefetched.
	Leased bool

	// Evaluate fills in the rest. It reuses the memory of Outcome.Verdicts.
	Outcome Outcome
	Err     error // the counters could not be reached, or the reply was invalid; Outcome is then void

	lease leasing // for Leases
}

// CostOf returns what counter i is charged.
func (c *Call) CostOf(i int) int64 {
	if c.PerCounter {
		return c.Counters[i].Cost
	}
	return c.Cost
}

// Outcome is an engine's answer to a Call.
type Outcome struct {
	NowMS    int64 // the instant of the decision, milliseconds since 1970
	Allowed  bool  // every enforcing counter admits (or Cost is 0)
	Degraded bool  // Fallback answered, not the store
	Verdicts []limit.Verdict
}

// An Engine decides calls on counters. Engines wrap one another; Stack says in which order.
//
// Each call is atomic: all its counters are read at one instant, its cost is charged to every
// admitting counter if all enforcing ones admit, and to none otherwise. A denied or dry call
// changes nothing (except that a denial by a rule with a penalty starts that penalty). Calls
// of one Evaluate are decided in order. An engine must not retry: a call whose fate is
// unknown carries Err.
type Engine interface {
	// Evaluate fills in the Outcome or Err of every call. It may permute the slice of calls.
	Evaluate(ctx context.Context, calls ...*Call)
	// Reset deletes counters, penalties included. It ignores their Numbers.
	Reset(ctx context.Context, counters ...Counter) error
	// Amend carries out an amendment, once for each Amendment.Once. After an error, ask again.
	Amend(ctx context.Context, a *Amendment) error
	// Refund takes units back that allowed calls charged and nobody used. It fills in each
	// refund's Refused and Err.
	Refund(ctx context.Context, refunds ...*Refund)
}

// keepUnanswered moves the calls that answered does not answer to the front, in their order, and
// returns them.
func keepUnanswered(calls []*Call, answered func(*Call) bool) []*Call {
	kept := 0
	for i, c := range calls {
		if !answered(c) {
			calls[kept], calls[i] = c, calls[kept]
			kept++
		}
	}
	return calls[:kept]
}
