package tenants

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// PutPlanLimit sets the limit of a plan for a rule; created reports whether it had none. m is
// compared with the versions of the plan and of the limit. Errors: ErrNotFound (plan or rule),
// ErrPreconditionFailed, *InvalidError.
func (s *Store) PutPlanLimit(ctx context.Context, a Actor, plan, rule string, lim limit.Limit, m Match) (out Plan, created bool, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, r, err := c.planLimit(ctx, plan, rule)
		if err != nil {
			return err
		}
		before, exists := old.Limits[rule]
		if err := c.matchLimit(m, old, exists, r); err != nil {
			return err
		}
		if err := invalidIf(lim.Validate(&r.Rule)); err != nil {
			return err
		}
		if exists && before == lim {
			out = old.Plan
			return nil
		}
		created = !exists
		if created {
			if err := c.checkRoomForLimits(ctx, "limit", 1); err != nil {
				return err
			}
		}
		p := old.Plan
		p.Limits = maps.Clone(old.Limits)
		p.Limits[rule] = lim
		out, err = c.replacePlan(ctx, old.Plan, p)
		return err
	})
	return out, created && err == nil, err
}

// DeletePlanLimit deletes a plan's limit for a rule, so that the rule's own limit applies. Errors:
// ErrNotFound (plan, rule or limit), ErrPreconditionFailed.
func (s *Store) DeletePlanLimit(ctx context.Context, a Actor, plan, rule string, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, r, err := c.planLimit(ctx, plan, rule)
		if err != nil {
			return err
		}
		if _, exists := old.Limits[rule]; !exists {
			return ErrNotFound
		}
		if err := c.matchLimit(m, old, true, r); err != nil {
			return err
		}
		p := old.Plan
		p.Limits = maps.Clone(old.Limits)
		delete(p.Limits, rule)
		_, err = c.replacePlan(ctx, old.Plan, p)
		return err
	})
}

// planWithVersions is a plan with the versions at which its limits were last written.
type planWithVersions struct {
	Plan
	limitVersions map[string]int64
}

func (c *change) planLimit(ctx context.Context, plan, rule string) (planWithVersions, Rule, error) {
	p, err := planHead(ctx, c.Queries, c.tenant, plan)
	if err != nil {
		return planWithVersions{}, Rule{}, err
	}
	r, err := c.rule(ctx, rule)
	if err != nil {
		return planWithVersions{}, Rule{}, err
	}
	limits, err := c.PlanLimits(ctx, db.PlanLimitsParams{TenantID: c.tenant, PlanIds: []uuid.UUID{p.ID}})
	if err != nil {
		return planWithVersions{}, Rule{}, err
	}
	out := planWithVersions{Plan: p, limitVersions: make(map[string]int64, len(limits))}
	for _, l := range limits {
		out.Limits[l.Slug] = planLimitOf(l.LimitUnits, l.BurstUnits, l.Unlimited, l.WarnAt, l.Overage, l.Metering)
		out.limitVersions[l.Slug] = l.Version
	}
	return out, r, nil
}

func (c *change) matchLimit(m Match, p planWithVersions, exists bool, r Rule) error {
	if exists {
		return m.check(p.Version, p.limitVersions[r.Slug])
	}
	if m.Any {
		return ErrPreconditionFailed
	}
	return m.check(p.Version)
}

// checkLimits validates the limits that differ from before, and returns the rules of all added,
// changed and deleted limits, by slug.
func (c *change) checkLimits(ctx context.Context, before, after map[string]limit.Limit) (map[string]Rule, error) {
	changed := map[string]bool{}
	for slug, lim := range after {
		if old, had := before[slug]; !had || old != lim {
			changed[slug] = true
		}
	}
	for slug := range before {
		if _, stays := after[slug]; !stays {
			changed[slug] = true
		}
	}
	slugs := slices.DeleteFunc(slices.Sorted(maps.Keys(changed)), func(slug string) bool { return !limit.ValidSlug(slug) })
	rows, err := c.RulesBySlug(ctx, db.RulesBySlugParams{TenantID: c.tenant, Slugs: slugs})
	if err != nil {
		return nil, err
	}
	rules := make(map[string]Rule, len(rows))
	for _, row := range rows {
		if rules[row.Slug], err = ruleOf(row); err != nil {
			return nil, err
		}
	}
	var fields []limit.FieldError
	for _, slug := range slices.Sorted(maps.Keys(changed)) {
		lim, set := after[slug]
		if !set {
			continue
		}
		r, exists := rules[slug]
		if !exists {
			fields = append(fields, limit.FieldProblem("limits."+slug, noSuchRule))
			continue
		}
		fields = append(fields, prefixed("limits."+slug+".", lim.Validate(&r.Rule))...)
	}
	return rules, invalidIf(fields)
}

// limitColumns are limits as the arrays of one statement. A thousand statements would take a
// second.
type limitColumns struct {
	rules               []uuid.UUID
	limits, bursts      []int64
	unlimiteds          []bool
	warnAts             []float64
	overages, meterings []string
}

func (l *limitColumns) add(rule uuid.UUID, lim limit.Limit) {
	warnAt := -1.0 // null: an array of numbers has none
	if share := lim.WarnAt.Value(); share != nil {
		warnAt = *share
	}
	l.rules, l.limits, l.bursts = append(l.rules, rule), append(l.limits, lim.Limit), append(l.bursts, lim.Burst)
	l.unlimiteds, l.warnAts = append(l.unlimiteds, lim.Unlimited), append(l.warnAts, warnAt)
	l.overages, l.meterings = append(l.overages, lim.Overage.String()), append(l.meterings, lim.Metering.String())
}

// writeLimits writes the differences between the limits of the plan and after.
func (c *change) writeLimits(ctx context.Context, old Plan, after map[string]limit.Limit, rules map[string]Rule, version int64) error {
	var put limitColumns
	for _, slug := range slices.Sorted(maps.Keys(after)) {
		if before, had := old.Limits[slug]; !had || before != after[slug] {
			put.add(rules[slug].ID, after[slug])
		}
	}
	if len(put.rules) > 0 {
		err := c.UpsertPlanLimits(ctx, db.UpsertPlanLimitsParams{
			TenantID: c.tenant, PlanID: old.ID, RuleIds: put.rules, Limits: put.limits, Bursts: put.bursts, Unlimiteds: put.unlimiteds,
			WarnAts: put.warnAts, Overages: put.overages, Meterings: put.meterings, Version: version,
		})
		if err != nil {
			return err
		}
	}
	var gone []uuid.UUID
	for slug := range old.Limits {
		if _, stays := after[slug]; !stays {
			gone = append(gone, rules[slug].ID)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return c.DeletePlanLimits(ctx, db.DeletePlanLimitsParams{TenantID: c.tenant, PlanID: old.ID, RuleIds: gone})
}
