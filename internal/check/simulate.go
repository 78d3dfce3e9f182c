package check

import (
	"context"
	"fmt"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Simulation describes requests to decide without any live counter.
type Simulation struct {
	Policy   PolicyData         // the rules, and plans if there are any
	Subjects []SubjectData      // registered subjects: plans, states, overrides
	StartMS  int64              // the instant of AtMS 0, milliseconds since 1970
	Requests []SimulatedRequest // in the order in which they are decided
}

// SimulatedRequest is a request and its instant on the virtual clock. A later request may have an
// earlier instant: the clock then steps back, as a real clock can.
type SimulatedRequest struct {
	AtMS int64 // milliseconds after StartMS; the sum is an instant from 0 to MaxInstantMS
	Request
}

// Simulate decides the requests of s in order on a virtual clock, beginning without state, and
// calls decided with each decision and the index of its request. The decision is valid only until
// decided returns. Matching, limits, counting and the answer are those of a Checker with an engine
// in memory. Denials are not remembered, because time does not advance between requests, and
// nothing is counted in metrics.
//
// It returns the error of ctx when that ends, the first error of decided, an *UnknownPlanError for
// a request with a plan that s does not have, and an error for a policy that does not compile or an
// instant out of range.
func Simulate(ctx context.Context, s Simulation, decided func(index int, d *Decision) error) error {
	// The counters exist only in this function, so their keys need no secret.
	keys := NewKeys([16]byte{})
	policy, err := CompilePolicy(keys, limit.TenantID{}, s.Policy)
	if err != nil {
		return fmt.Errorf("compile simulated policy: %w", err)
	}
	for _, subject := range s.Subjects {
		policy.AddSubject(subject)
	}
	// The engine has space for all possible counters, because shared ones would give wrong answers.
	// Its own clock stands still, so that nothing expires before the virtual clock reaches it or
	// returns to it.
	most := max(1, len(s.Requests)*len(s.Policy.Rules))
	engine := engine.NewMemory(engine.MemoryOptions{
		Clock: func() int64 { return 0 }, MaxCounters: most, MaxPerTenant: most,
		// A counter has at most an entry for each request, and memory for some more. Coarse ones
		// would give wrong answers.
		MaxEntries: 4 * most, MaxEntriesPerTenant: 4 * most,
	})
	for i := range s.Requests {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := &s.Requests[i]
		var e evaluation
		if atMS := s.StartMS + r.AtMS; !e.resolve(keys, policy, &r.Request, time.UnixMilli(atMS), atMS) {
			return &UnknownPlanError{Index: i, Plan: r.Plan}
		}
		if len(e.counted) > 0 {
			e.call.NowMS = s.StartMS + r.AtMS // 0 means the engine's clock, which is 0 too
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
