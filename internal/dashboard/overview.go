package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"weir/internal/check"
	"weir/internal/tenants"
)

type overviewView struct {
	Configured tenants.Configured
	Hour, Day  chart
	Denying    []denyingRule
	Ending     []endingOverride
}

// FirstRun tells that there is nothing yet that could be limited.
func (v *overviewView) FirstRun() bool { return v.Configured.Rules == 0 }

// Subjects is their number, as far as it is counted.
func (v *overviewView) Subjects() string {
	if v.Configured.Subjects > tenants.MostCountedSubjects {
		return "over " + grouped(tenants.MostCountedSubjects)
	}
	return grouped(v.Configured.Subjects)
}

type denyingRule struct {
	Slug            string
	Denied, Decided int64
}

type endingOverride struct {
	Subject, Rule, Limit, Reason, In string
	Ends                             moment
}

const (
	mostDenying  = 5
	mostEnding   = 8
	endingWithin = 7 * 24 * time.Hour
)

func (d *dashboard) overview(w http.ResponseWriter, r *http.Request, v *visit) error {
	ctx, actor := r.Context(), v.actor()
	var view overviewView
	var err error
	if view.Configured, err = d.Store.Configured(ctx, actor); err != nil {
		return err
	}
	hour, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: check.UsageMinute})
	if err != nil {
		return err
	}
	day, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: check.UsageHour})
	if err != nil {
		return err
	}
	view.Hour, view.Day = newChart("The last hour", "minute", time.Minute, hour), newChart("The last day", "hour", time.Hour, day)
	byRule, err := d.Store.Usage(ctx, actor, tenants.UsageQuery{Grain: check.UsageHour, ByRule: true})
	if err != nil {
		return err
	}
	view.Denying = denying(byRule.Items)
	until := v.now.Add(endingWithin)
	ending, _, err := d.Store.Overrides(ctx, actor, tenants.OverrideFilter{EndingBefore: &until}, tenants.Page{Limit: mostEnding})
	if err != nil {
		return err
	}
	for _, o := range ending {
		view.Ending = append(view.Ending, endingOverride{
			Subject: o.Subject, Rule: o.Rule, Limit: plainLimit(o.Limit), Reason: o.Reason,
			In: inWords(o.ExpiresAt.Sub(v.now)), Ends: moment{*o.ExpiresAt},
		})
	}
	v.frame.Title = "Overview"
	return d.render(w, r, http.StatusOK, overviewPage(v.frame, &view))
}

// denying sums up the rules that denied anything, the busiest first.
func denying(items []tenants.UsageItem) []denyingRule {
	sums := map[string]*denyingRule{}
	for _, item := range items {
		sum := sums[item.Rule]
		if sum == nil {
			sum = &denyingRule{Slug: item.Rule}
			sums[item.Rule] = sum
		}
		sum.Denied += item.Denied
		sum.Decided += item.Allowed + item.Denied
	}
	var out []denyingRule
	for _, sum := range sums {
		if sum.Denied > 0 {
			out = append(out, *sum)
		}
	}
	slices.SortFunc(out, func(a, b denyingRule) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Slug, b.Slug))
	})
	return out[:min(len(out), mostDenying)]
}

// plainLimit is a number without its rule at hand.
func plainLimit(l check.Limit) string {
	switch {
	case l.Unlimited:
		return "unlimited"
	case l.Burst != 0 && l.Burst != l.Limit:
		return grouped(l.Limit) + ", " + grouped(l.Burst) + " at once"
	}
	return grouped(l.Limit)
}
