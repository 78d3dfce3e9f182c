package api

import (
	"context"
	"maps"
	"slices"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Warning describes a valid value that may have an unexpected effect.
type Warning struct {
	Pointer string `json:"pointer" doc:"JSON pointer to the field that causes it"`
	Message string `json:"message" doc:"What to expect, for people"`
}

// Warned are the warnings in the answer to a write. Answers to reads have none.
type Warned struct {
	Warnings []Warning `json:"warnings,omitempty" nullable:"false" doc:"Only in the answer to a write with an unexpected effect; the write is done"`
}

func (a *admin) ruleWarnings(r *limit.Rule) Warned {
	return Warned{warningsOf(r.Warnings(a.instances()), "")}
}

func warningsOf(fields []limit.Warning, under string) []Warning {
	var out []Warning
	for _, f := range fields {
		out = append(out, Warning{Pointer: under + jsonPointer(f.Field), Message: f.Message})
	}
	return out
}

// limitWarnings returns the warnings of a rule with another limit, except those of the rule itself.
// They point to the limit.
func (a *admin) limitWarnings(r *limit.Rule, l limit.Limit, at string) []Warning {
	if l.Unlimited {
		return nil
	}
	instances := a.instances()
	known := r.Warnings(instances)
	with := *r
	with.Limit, with.Burst = l.Limit, l.Burst
	var out []Warning
	for _, f := range with.Warnings(instances) {
		if slices.Contains(known, f) {
			continue
		}
		field := "/limit"
		if f.Field == "burst" && l.Burst != 0 {
			field = "/burst"
		}
		out = append(out, Warning{Pointer: at + field, Message: f.Message})
	}
	return out
}

// oneLimitWarnings returns the warnings of a limit for the rule with this slug. If the rule cannot
// be read, the write stays valid and there are no warnings.
func (a *admin) oneLimitWarnings(ctx context.Context, slug string, l limit.Limit) Warned {
	r, err := a.store.RuleBySlug(ctx, actorFrom(ctx), slug)
	if err != nil {
		return Warned{}
	}
	return Warned{a.limitWarnings(&r.Rule, l, "")}
}

// planWarnings returns the warnings of all limits of a plan.
func (a *admin) planWarnings(ctx context.Context, p tenants.Plan) Warned {
	if len(p.Limits) == 0 {
		return Warned{}
	}
	found, _, err := a.store.Rules(ctx, actorFrom(ctx), tenants.RuleFilter{}, tenants.Page{Limit: limit.MaxRules})
	if err != nil {
		return Warned{}
	}
	rules := map[string]limit.Rule{}
	for i := range found {
		rules[found[i].Slug] = found[i].Rule
	}
	var out Warned
	for _, slug := range slices.Sorted(maps.Keys(p.Limits)) {
		if r, there := rules[slug]; there {
			out.Warnings = append(out.Warnings, a.limitWarnings(&r, p.Limits[slug], "/limits/"+escapePointer(slug))...)
		}
	}
	out.Warnings = out.Warnings[:min(len(out.Warnings), maxProblemFields)]
	return out
}
