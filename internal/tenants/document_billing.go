package tenants

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Billing in a document: endpoints without their secrets, which can therefore be changed but not
// created or deleted, and the plans and credits of prices.

// readBilling reads the billing part of a document, sorted by name.
func readBilling(ctx context.Context, q *db.Queries, tenant uuid.UUID) (endpoints []BillingEndpoint, prices []BillingPrice, err error) {
	rows, err := q.BillingEndpoints(ctx, db.BillingEndpointsParams{TenantID: tenant, Most: maxBillingEndpoints + 1})
	if err != nil {
		return nil, nil, err
	}
	for _, row := range rows {
		endpoints = append(endpoints, billingEndpointRow(row))
	}
	mapped, err := q.BillingPrices(ctx, db.BillingPricesParams{TenantID: tenant, Most: maxBillingPrices + 1})
	if err != nil {
		return nil, nil, err
	}
	for _, row := range mapped {
		prices = append(prices, billingPriceOf(row))
	}
	slices.SortFunc(endpoints, func(a, b BillingEndpoint) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	slices.SortFunc(prices, func(a, b BillingPrice) int { return strings.Compare(a.Price, b.Price) })
	return endpoints, prices, nil
}

func endpointFields(e *BillingEndpoint) []field {
	return []field{
		{"provider", e.Provider}, {"name", e.Name}, {"subject_from", e.SubjectFrom}, {"grace_days", e.GraceDays}, {"fallback_plan", textOrNil(e.FallbackPlan)},
	}
}

func priceFields(p *BillingPrice) []field {
	fields := []field{{"plan", textOrNil(p.Plan)}, {"endpoint", p.Endpoint.String()}, {"multiply", p.Multiply}, {"priority", p.Priority}}
	if c := p.Credits; c != nil {
		fields = append(fields, field{"credits.rule", c.Rule}, field{"credits.units", c.Units}, field{"credits.expires_after_days", c.ExpiresDays})
	}
	return fields
}

// reviseBilling compares endpoints and prices with the document.
func (r *revision) reviseBilling() {
	for i := range r.Endpoints {
		r.reviseEndpoint(i)
	}
	named := map[string]bool{}
	for i := range r.Prices {
		in, at := &r.Prices[i], fmt.Sprintf("billing_prices.%d.", i)
		r.problems = append(r.problems, prefixed(at, in.validate())...)
		if named[in.Price] {
			r.wrong(at+"id", limit.Duplicate)
		}
		named[in.Price] = true
		r.revisePriceTarget(at, in)
		old := slices.IndexFunc(r.before.prices, func(p BillingPrice) bool { return p.Price == in.Price })
		switch of := slices.IndexFunc(r.before.endpoints, func(e BillingEndpoint) bool { return e.ID == in.Endpoint }); {
		case of < 0:
			r.wrong(at+"endpoint", noSuchEndpoint)
		case !r.before.endpoints[of].HasPrices() && old < 0: // a document may keep what an earlier release took
			r.wrong(at+"endpoint", noPrices)
		}
		if old < 0 {
			r.putPrices = append(r.putPrices, *in)
			r.create("price", in.Price, "", priceFields(in))
		} else if in.id = r.before.prices[old].id; r.update("price", in.Price, priceFields(&r.before.prices[old]), priceFields(in)) {
			r.putPrices = append(r.putPrices, *in)
		}
	}
	for i := range r.before.prices {
		if old := &r.before.prices[i]; r.prune && r.Prices != nil && !named[old.Price] {
			r.gonePrices = append(r.gonePrices, old.Price)
			r.remove("price", old.Price, "", priceFields(old))
		}
	}
	if len(r.Prices) > maxBillingPrices {
		r.wrong("billing_prices", limit.Wrong("Send fewer.", "may be at most %d", maxBillingPrices))
	}
	r.checkPaidPlans(named)
}

func (r *revision) revisePriceTarget(at string, in *BillingPrice) {
	if in.Credits == nil {
		if in.Plan != "" && (r.plans[in.Plan] == nil || r.plans[in.Plan].goes) {
			r.wrong(at+"plan", noSuchPlan)
		}
		return
	}
	rule, exists := r.rules[in.Credits.Rule]
	if !exists {
		r.wrong(at+"credits.rule", noSuchRule)
		return
	}
	r.problems = append(r.problems, rule.Rule.CheckCredits(at+"credits.rule")...)
}

func (r *revision) reviseEndpoint(i int) {
	in, at := r.Endpoints[i], fmt.Sprintf("billing_endpoints.%d.", i)
	old := slices.IndexFunc(r.before.endpoints, func(e BillingEndpoint) bool { return e.ID == in.ID })
	if old < 0 {
		r.wrong(at+"id", limit.Wrong("Create the endpoint first with POST /v1/billing/endpoints, or omit it.",
			"names no billing endpoint of this tenant: create it with its secrets, which a document does not have"))
		return
	}
	now := r.before.endpoints[old]
	now.Name, now.SubjectFrom, now.GraceDays, now.FallbackPlan = in.Name, in.SubjectFrom, in.GraceDays, in.FallbackPlan
	if in.Provider != now.Provider {
		r.wrong(at+"provider", fixedProvider)
	}
	var fields []limit.FieldError
	now.validate(&fields)
	r.problems = append(r.problems, prefixed(at, fields)...)
	if now.FallbackPlan != "" && (r.plans[now.FallbackPlan] == nil || r.plans[now.FallbackPlan].goes) {
		r.wrong(at+"fallback_plan", noSuchPlan)
	}
	if r.update("endpoint", now.ID.String(), endpointFields(&r.before.endpoints[old]), endpointFields(&now)) {
		r.editedEndpoints = append(r.editedEndpoints, now)
	}
}

// checkPaidPlans refuses to delete plans and rules that prices or endpoints use.
func (r *revision) checkPaidPlans(named map[string]bool) {
	gone := func(slug string) bool { return slug != "" && r.plans[slug] == nil }
	for _, p := range r.before.prices {
		if named[p.Price] || slices.Contains(r.gonePrices, p.Price) {
			continue
		}
		if c := p.Credits; c != nil && slices.ContainsFunc(r.goneRules, func(old Rule) bool { return old.Slug == c.Rule }) {
			r.wrong("rules", limit.Wrong("Map the price to another rule first, or keep the rule.",
				"omit rule %s, for which price %s grants credits: map the price to another rule first, or keep the rule", c.Rule, p.Price))
		}
		if gone(p.Plan) {
			r.wrong("plans", limit.Wrong("Map the price to another plan first, or keep the plan.",
				"omit plan %s, to which price %s is mapped: map the price to another plan first, or keep the plan", p.Plan, p.Price))
		}
	}
	for _, e := range r.before.endpoints {
		edited := slices.ContainsFunc(r.editedEndpoints, func(now BillingEndpoint) bool { return now.ID == e.ID })
		if !edited && gone(e.FallbackPlan) {
			r.wrong("plans", limit.Wrong("Change the endpoint first, or keep the plan.",
				"omit plan %s, the fallback plan of a billing endpoint: change the endpoint first, or keep the plan", e.FallbackPlan))
		}
	}
}

// changesBilling reports whether the document changes anything of billing.
func (r *revision) changesBilling() bool {
	return len(r.editedEndpoints)+len(r.putPrices)+len(r.gonePrices) > 0
}

// queueBilling writes endpoints and prices.
func (c *change) queueBilling(ctx context.Context, r *revision, version int64) error {
	for _, e := range r.editedEndpoints {
		var plan *uuid.UUID
		if e.FallbackPlan != "" {
			plan = &r.plans[e.FallbackPlan].ID
		}
		if _, err := c.storeBillingEndpoint(ctx, e, plan, false, version); err != nil {
			return err
		}
	}
	for _, p := range r.putPrices {
		var to priceTarget
		if p.Credits == nil {
			to.plan = &r.plans[p.Plan].ID
		} else {
			rule := r.rules[p.Credits.Rule]
			to.rule = &rule.ID
		}
		if _, err := c.writeBillingPrice(ctx, p, to, version); err != nil {
			return err
		}
	}
	for _, price := range r.gonePrices {
		if err := c.DeleteBillingPrice(ctx, db.DeleteBillingPriceParams{TenantID: c.tenant, Price: price}); err != nil {
			return err
		}
	}
	return nil
}
