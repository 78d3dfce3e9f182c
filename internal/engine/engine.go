package engine

import (
	"context"
	"time"

	"weir/internal/limit"
)

// Counter is the counter of one rule in a Call.
type Counter struct {
	// Key is the counter's own key or, if Grouped, the key of its group.
	Key string
	// ID identifies the rule among all rules that count by the same values. It has idBytes bytes,
	// or is "" for a counter that is never in a group.
	ID      string
	Grouped bool // an engine may store it in one value with the other counters of its group
	Leased  bool // its units may be prefetched
	Second  bool // it repeats a counter of the call at another tag, and is charged after all others
	// Sole: the subject has no other counter under the rule. It matters for a counter with Credits.
	Sole    bool
	Numbers limit.Numbers
	Shadow  bool // its verdict is reported but never denies
	// Credits are prepaid units that a call may spend beyond the limit; nil: none. A counter in
	// shadow mode has none.
	Credits *Credits
	// OnUnavailable is how Fallback answers for this counter if the store is unavailable.
	OnUnavailable limit.OnUnavailable
	// Cost is the cost of this counter in a Call with PerCounter, and 0 in every other Call.
	Cost int64
}

// OwnKey returns the key that the counter has outside of a group.
func (c *Counter) OwnKey() string {
	if c.Grouped {
		return keyBeside(c.Key, c.ID)
	}
	return c.Key
}

// Same reports whether c and o are the same counter, with the same or other numbers.
func (c *Counter) Same(o *Counter) bool {
	return c.Key == o.Key && c.Grouped == o.Grouped && (!c.Grouped || c.ID == o.ID)
}

// Space is where an engine in memory keeps counters. What is in one space takes no room from the
// others.
type Space uint8

const (
	// TenantSpace is the part of the owner of the counters. When it is full, its keys share
	// counters.
	TenantSpace Space = iota
	// QuotaSpace is for quotas of tenants, whose counters have another owner: the platform. They
	// never share counters. What it has no room to count is allowed.
	QuotaSpace
	// ThrottleSpace is for attempts of people, such as sign-ins, whose counters have no owner. When
	// it is full, they share counters with one another.
	ThrottleSpace
	spaces
)

// Call is one check as an engine sees it: a cost against all counters at once.
type Call struct {
	Tenant limit.TenantID // the owner of the counters; an engine in memory limits the counters of each tenant
	Cost   int64          // >= 0; 0 reads the state: always allowed, counts nothing
	// PerCounter means that each counter is charged its own Cost. The call's Cost is then the
	// greatest of them. One call can then decide several checks together: all of them or none.
	PerCounter bool
	DryRun     bool  // answer as if counted, but change nothing
	NowMS      int64 // milliseconds since 1970; 0: the engine's own clock. Only tests and simulation set it
	Counters   []Counter

	// Started is when the check began, by a clock with a monotonic reading. It is not later than
	// the store's decision. Denials and Leases need it.
	Started time.Time
	// Fresh requires the store's own answer, not one from the memory of this process or from
	// prefetched units.
	Fresh bool
	// Leased means that units of every counter may be prefetched.
	Leased bool
	// Space is where an engine in memory keeps the counters.
	Space Space
	// Spread means that the keys have different hash tags, so that no single run of a script can
	// decide the call. Only Spread accepts such a call.
	Spread bool

	// Evaluate fills in the fields below. It reuses the memory of Outcome.Verdicts.
	Outcome Outcome
	Err     error // the counters could not be reached, or the reply was invalid; Outcome is then undefined

	local *localCall // for Memory, from Fallback
	lease leasing    // for Leases
}

// CostOf returns the cost that counter i is charged.
func (c *Call) CostOf(i int) int64 {
	if c.PerCounter {
		return c.Counters[i].Cost
	}
	return c.Cost
}

// Outcome is an engine's answer to a Call.
type Outcome struct {
	NowMS    int64 // the instant of the decision, milliseconds since 1970
	Allowed  bool  // every enforcing counter allows it (or Cost is 0)
	Degraded bool  // Fallback answered, not the store
	Verdicts []limit.Verdict
}

// An Engine decides calls on counters. Engines wrap one another; Stack defines the order.
//
// Each call is atomic. All its counters are read at one instant. If every enforcing counter allows
// the call, its cost is charged to every counter that allows it, and otherwise to none. A denied
// call or a dry run changes nothing, except that a denial by a rule with a penalty starts the
// penalty. Calls of one Evaluate are decided in order. An engine must not retry: if the outcome of
// a call is unknown, the call has an Err.
type Engine interface {
	// Evaluate fills in the Outcome or Err of every call. It may reorder the slice of calls.
	Evaluate(ctx context.Context, calls ...*Call)
	// Reset deletes counters and their penalties. It ignores their Numbers.
	Reset(ctx context.Context, counters ...Counter) error
	// Amend carries out an amendment, once for each Amendment.Once. After an error, call it again.
	Amend(ctx context.Context, a *Amendment) error
	// Refund returns units that allowed calls charged and that were not used. It fills in Refused
	// and Err of each refund.
	Refund(ctx context.Context, refunds ...*Refund)
}

// keepUnanswered returns the calls for which answered returns false. It moves them to the front and
// keeps their order.
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
