package tenants

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// MostCounted is the number at which the counts of a reach stop: MostCounted + 1 means more than
// that.
const MostCounted = 100_000

// RuleReach has the objects that depend on a rule, and are deleted with it.
type RuleReach struct {
	Plans     []string // slugs of plans with a limit for it
	Overrides int64    // including expired ones; at most MostCounted + 1
	// Credits is how many subjects have credits for it that can still be spent, at most
	// MostCounted + 1. While there are any, and while it is Sold, the rule cannot be deleted.
	Credits int64
	Sold    bool // a price grants credits for it
}

// RuleReach counts the objects that depend on a rule. Errors: ErrNotFound.
func (s *Store) RuleReach(ctx context.Context, a Actor, rule string) (out RuleReach, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		r, err := readRule(ctx, q, a.tenant, rule)
		if err != nil {
			return err
		}
		limits, err := q.RulePlanLimits(ctx, db.RulePlanLimitsParams{TenantID: a.tenant, RuleID: r.ID})
		if err != nil {
			return err
		}
		for _, l := range limits {
			if !slices.Contains(out.Plans, l.Slug) {
				out.Plans = append(out.Plans, l.Slug)
			}
		}
		if out.Overrides, err = q.CountRuleOverrides(ctx, db.CountRuleOverridesParams{TenantID: a.tenant, RuleID: r.ID, Most: MostCounted + 1}); err != nil {
			return err
		}
		if out.Sold, err = q.RuleHasBilling(ctx, db.RuleHasBillingParams{TenantID: a.tenant, RuleID: &r.ID}); err != nil {
			return err
		}
		out.Credits, err = q.CountSubjectsWithCredits(ctx, db.CountSubjectsWithCreditsParams{TenantID: a.tenant, RuleID: r.ID, Now: s.instant(), Most: MostCounted + 1})
		return err
	})
	return out, err
}

// PlanReach has the registered subjects that the limits of a plan affect. All other subjects have
// the default plan.
type PlanReach struct {
	Subjects   int64 // with the newest version of the plan; for the default plan, also those without a plan; at most MostCounted + 1
	Overridden int64 // of these, those with an active override for the rule; at most MostCounted + 1
}

// PlanReach counts the subjects that a plan's limit for a rule affects; with rule "" none is
// counted as overridden. Errors: ErrNotFound (plan or rule).
func (s *Store) PlanReach(ctx context.Context, a Actor, plan, rule string) (out PlanReach, err error) {
	now := s.instant()
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		p, err := planRow(ctx, q, a.tenant, plan)
		if err != nil {
			return err
		}
		subjects, err := q.CountPlanSubjects(ctx, db.CountPlanSubjectsParams{
			TenantID: a.tenant, PlanID: &p.ID, NewestVersion: p.NewestVersion, IsDefault: p.IsDefault, Most: MostCounted + 1,
		})
		if err != nil {
			return err
		}
		out.Subjects = min(int64(subjects), MostCounted+1)
		if rule == "" {
			return nil
		}
		r, err := readRule(ctx, q, a.tenant, rule)
		if err != nil {
			return err
		}
		out.Overridden, err = q.CountPlanOverrides(ctx, db.CountPlanOverridesParams{
			TenantID: a.tenant, RuleID: r.ID, PlanID: &p.ID, NewestVersion: p.NewestVersion, IsDefault: p.IsDefault, Now: &now, Most: MostCounted + 1,
		})
		return err
	})
	return out, err
}
