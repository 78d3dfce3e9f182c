package dashboard

import (
	"context"
	"slices"

	"weir/internal/tenants"
)

// portalCredits are the prepaid units of the customer for one limit.
type portalCredits struct {
	Name, Balance, Spent, Units string
	State, Tone                 string
	Expires                     *moment
}

// portalMetered is the metered usage of the customer under one limit.
type portalMetered struct{ Name, Units, Overage string }

// mostPortalCredits is how many grants the page shows.
const mostPortalCredits = 20

// portalNames returns the names of the limits that the page shows, by slug.
func (v *portalView) portalNames() map[string]string {
	names := map[string]string{}
	for i := range v.Limits {
		names[v.Limits[i].Rule] = v.Limits[i].Name
	}
	return names
}

// readPortalCredits reads the customer's credits: those that can be spent first, in the order in
// which they are, then the others, newest first.
func (d *dashboard) readPortalCredits(ctx context.Context, visit *tenants.PortalVisit, v *portalView) error {
	list, _, err := d.Store.Credits(ctx, visit.Actor(), visit.Subject, tenants.Page{Limit: mostPortalCredits})
	if err != nil {
		return err
	}
	now := v.Now.At
	rank := func(c *tenants.Credits) int64 {
		switch {
		case c.Balance(now) == 0:
			return 1<<62 + 1
		case c.ExpiresAt == nil:
			return 1 << 62
		}
		return c.ExpiresAt.UnixMilli()
	}
	slices.SortStableFunc(list, func(a, b tenants.Credits) int { return int(min(max(rank(&a)-rank(&b), -1), 1)) })
	names := v.portalNames()
	for i := range list {
		c := &list[i]
		name, shown := names[c.Rule]
		if !shown { // a rule that does not limit the customer is not their business
			continue
		}
		row := portalCredits{Name: name, Balance: grouped(c.Balance(now)), Spent: grouped(c.Spent), Units: grouped(c.Units), Expires: momentOf(c.ExpiresAt)}
		row.State, row.Tone = creditState(c, now)
		v.Credits = append(v.Credits, row)
	}
	return nil
}

// readPortalMetered reads the customer's metered usage of this month, of limits that are metered.
func (d *dashboard) readPortalMetered(ctx context.Context, visit *tenants.PortalVisit, v *portalView) error {
	policy, err := d.Policies.Get(ctx, visit.Tenant)
	if err != nil {
		return err
	}
	metered := policy.Metered()
	if len(metered) == 0 { // as of most tenants
		return nil
	}
	report, items, _, err := d.Store.MeteredUsage(ctx, visit.Actor(), tenants.MeteredQuery{Subject: visit.Subject, Sum: true, Open: true}, tenants.Page{Limit: mostPortalLimits})
	if err != nil {
		return err
	}
	v.MeteredSince = moment{report.From}
	names := v.portalNames()
	for _, item := range items {
		if name, shown := names[item.Rule]; shown && metered[item.Rule] {
			v.Metered = append(v.Metered, portalMetered{Name: name, Units: grouped(item.Units), Overage: grouped(item.OverageUnits)})
		}
	}
	return nil
}
