package dashboard

import (
	"context"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

// ruleNames are the names of a tenant's rules by their slugs. Pages show names and link by slugs.
type ruleNames map[string]string

// Of returns the name of a rule, or its slug if it has none or is deleted.
func (n ruleNames) Of(slug string) string { return nameOr(n[slug], slug) }

// ruleNames reads the names from the policy in memory. If it is not in memory, slugs are used.
func (d *dashboard) ruleNames(ctx context.Context, tenant uuid.UUID) ruleNames {
	names := ruleNames{}
	policy, err := d.Policies.Get(ctx, tenant)
	if err != nil {
		return names
	}
	for r := range policy.EachRule() {
		names[r.Slug] = r.Name
	}
	return names
}

// planNames are the names of a tenant's plans by their slugs.
type planNames map[string]string

// Of returns the name of a plan, or its slug if it has none or is deleted.
func (n planNames) Of(slug string) string { return nameOr(n[slug], slug) }

// planNames reads the names of the tenant's plans. If Postgres does not answer, slugs are used.
func (d *dashboard) planNames(ctx context.Context, a tenants.Actor) planNames {
	names, err := d.Store.PlanNames(ctx, a)
	if err != nil {
		return nil
	}
	return names
}
