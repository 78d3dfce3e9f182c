package check

import (
	"context"
	"fmt"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Simulation asks what requests would be answered, without asking any counter that is in use.
type Simulation struct {
	Policy   PolicyData         // the rules, and plans if there are any
	Subjects []SubjectData      // registered subjects: plans, states, overrides
	StartMS  int64              // the instant of AtMS 0, milliseconds since 1970
	Requests []SimulatedRequest // in the order in which they are decided
}

// SimulatedRequest is a request and its instant on the virtual clock. A later request may have
// an earlier instant: then the clock steps back, and the algorithms meet that as they do in life.
type SimulatedRequest struct {
	AtMS int64 // milliseconds after StartMS; the sum is an instant from 0 to MaxInstantMS
	Request
}

// Simulate decides the requests of s one after the other on a virtual clock, beginning with no
// state, and gives each decision to decided, with the request's index. The decision is only
// valid until decided returns. Matching, numbers, counting and the answer are those of a
// Checker over a MemoryEngine; there is no denial kept in process, for time stands still
// between requests, and no metric.
//
// It ends with the error of ctx when that ends, with the first error of decided, with an
// *UnknownPlanError for a request that names a plan that s lacks, and with an error for a
// policy that does not compile or an instant out of range.
func Simulate(ctx context.Context, s Simulation, decided func(index int, d *Decision) error) error {
	// No counter leaves this function, so there is nobody to keep its key from.
	keys := NewKeys([16]byte{})
	policy, err := CompilePolicy(keys, limit.TenantID{}, s.Policy)
	if err != nil {
		return fmt.Errorf("compile simulated policy: %w", err)
	}
	for _, subject := range s.Subjects {
		policy.AddSubject(subject)
	}
	// As many counters as there can be: shared ones would answer wrongly. The engine's own
	// clock stands still, so that nothing expires before the virtual clock reaches it, or
	// returns to it.
	most := max(1, len(s.Requests)*len(s.Policy.Rules))
	engine := engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return 0 }, MaxCounters: most, MaxPerTenant: most})
	for i := range s.Requests {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := &s.Requests[i]
		var e evaluation
		if !e.resolve(keys, policy, &r.Request, time.UnixMilli(s.StartMS+r.AtMS)) {
			return &UnknownPlanError{Index: i, Plan: r.Plan}
		}
		if len(e.counted) > 0 {
			e.call.NowMS = s.StartMS + r.AtMS // 0 asks for the engine's clock, which is 0 too
			engine.Evaluate(ctx, &e.call)
			if e.call.Err != nil {
				return fmt.Errorf("simulate request %d: %w", i, e.call.Err)
			}
		}
		e.conclude()
		if err := decided(i, &e.decision); err != nil {
			return err
		}
	}
	return nil
}
