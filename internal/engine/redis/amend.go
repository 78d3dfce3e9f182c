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
	parts := []string{"prelude", "counter"}
	for _, a := range limit.Algorithms {
		parts = append(parts, luaParts[a]...)
	}
	return append(parts, "amend")
}

// maxAmendWork is the maximum work of a run of amend.lua with several counters. Redis serves
// nothing else during a run.
const maxAmendWork = 128

// amendWork estimates the work of changing a counter for Redis. Most are 1.
func amendWork(a *engine.Amendment, n *limit.Numbers) int64 {
	switch {
	case a.Reset:
		return 1
	case n.Algorithm == limit.SlidingWindowLog:
		return 1 + n.Limit*maxAmendWork/limit.MaxLogLimit
	case n.Algorithm == limit.SlidingWindowBuckets:
		return 1 + n.WindowMS/n.PrecisionMS/8
	}
	return 1
}

// Amend changes counters, each once. Those that fit into one run are changed in one step.
func (e *Engine) Amend(ctx context.Context, a *engine.Amendment) error {
	if err := a.Validate(); err != nil {
		return err
	}
	for from, to := 0, 0; from < len(a.Parts); from = to {
		for work := int64(0); to < len(a.Parts); to++ {
			work += amendWork(a, &a.Parts[to].Numbers)
			if to > from && work > maxAmendWork {
				break
			}
		}
		if err := e.amendParts(ctx, a, a.Parts[from:to], to < len(a.Parts)); err != nil {
			return fmt.Errorf("amend counters: %w", err)
		}
	}
	return nil
}

// Flags of a run of amend.lua.
const (
	amendReset   = 1
	amendFollows = 2 // another run of the same amendment
)

// amendParts changes some counters of an amendment in one step.
func (e *Engine) amendParts(ctx context.Context, a *engine.Amendment, parts []engine.AmendPart, follows bool) error {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	keys := []string{a.Once}
	arg := append(appendUint(nil, a.NowMS, 6), oneIf(a.Reset)*amendReset|oneIf(follows)*amendFollows)
	for i := range parts {
		part := &parts[i]
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
	return err
}
