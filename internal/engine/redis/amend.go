package redis

import (
	"context"
	"fmt"
	"strings"

	"weir/internal/engine"
	"weir/internal/limit"
)

// amendParts are the files of amend.lua, which handles counters of all algorithms.
func amendParts() []string {
	parts := []string{"prelude", "counter"}
	for _, a := range limit.Algorithms {
		parts = append(parts, luaParts[a]...)
	}
	return append(parts, "amend")
}

// Amend changes counters, once and in one step.
func (e *Engine) Amend(ctx context.Context, a *engine.Amendment) error {
	if err := a.Validate(); err != nil || len(a.Parts) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	keys := []string{a.Once}
	arg := append(appendUint(nil, a.NowMS, 6), oneIf(a.Reset))
	for i := range a.Parts {
		part := &a.Parts[i]
		n, key := &part.Numbers, part.OwnKey()
		keys = append(keys, key, penaltyKey(key))
		arg = appendUint(append(arg, byte(n.Algorithm)), n.Limit, 7)
		arg = appendUint(appendUint(arg, n.WindowMS, 5), extra(n), 5)
		arg = appendUint(appendUint(appendID(arg, part.ID), part.To.Limit, 7), part.To.Burst, 5)
		arg = append(arg, oneIf(n.Overage && part.To.Overage))
	}
	err := e.client.EvalSha(ctx, e.amend.sha, keys, arg).Err()
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		e.loads.Add(1)
		err = e.client.Eval(ctx, e.amend.text, keys, arg).Err()
	}
	if err != nil {
		return fmt.Errorf("amend counters: %w", err)
	}
	return nil
}
