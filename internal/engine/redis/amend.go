package redis

import (
	"context"
	"fmt"
	"strings"

	"weir/internal/engine"
	"weir/internal/limit"
)

// amendFiles are the files of amend.lua, which handles counters of all algorithms.
func amendFiles() []string {
	parts := []string{"prelude", "counter", "ratio"}
	for _, a := range limit.Algorithms {
		parts = append(parts, luaParts[a]...)
	}
	return append(parts, "amend")
}

// amendUnitUS is how long Redis takes for a unit of the work that amend.lua reports.
const amendUnitUS = 15

// Amend changes counters, each once. Those that fit into one run are changed in one step.
func (e *Engine) Amend(ctx context.Context, a *engine.Amendment) error {
	if err := a.Validate(); err != nil {
		return err
	}
	a.WorkUS, a.Before = 0, false
	steps := a.Steps()
	for i := range steps {
		work, err := e.amendStep(ctx, &steps[i])
		if err != nil {
			return fmt.Errorf("amend counters: %w", err)
		}
		if a.WorkUS += work * amendUnitUS; work == 0 {
			a.Before = i == 0
			return nil
		}
	}
	return nil
}

// Flags of a run of amend.lua.
const (
	amendReset   = 1
	amendFollows = 2 // another run of the same amendment
)

// amendLeased is a flag of a counter of amend.lua: units of it may be held.
const amendLeased = 2

// amendStep changes counters in one run, and returns its work, or 0 if all was done before.
func (e *Engine) amendStep(ctx context.Context, a *engine.Amendment) (work int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	keys := []string{a.Once, a.Done}
	arg := append(appendUint(appendUint(nil, a.Number, 7), a.NowMS, 6), oneIf(a.Reset)*amendReset|oneIf(a.Follows)*amendFollows)
	for i := range a.Parts {
		part := &a.Parts[i]
		n, key := &part.Numbers, part.OwnKey()
		keys = append(keys, key, penaltyKey(key))
		arg = appendUint(append(arg, byte(n.Algorithm)), n.Limit, 7)
		arg = appendUint(appendUint(arg, n.WindowMS, 5), extra(n), 5)
		arg = appendUint(appendUint(appendID(arg, part.ID), part.To.Limit, 7), part.To.Burst, 5)
		arg = append(arg, oneIf(n.Overage && part.To.Overage)|oneIf(part.Leased)*amendLeased)
	}
	work, err = e.client.EvalSha(ctx, e.amend.sha, keys, arg).Int64()
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		e.loads.Add(1)
		work, err = e.client.Eval(ctx, e.amend.text, keys, arg).Int64()
	}
	return work, err
}
