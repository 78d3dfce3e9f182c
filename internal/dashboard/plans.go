package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// maxPlanColumns limits the matrix; a pricing page has only a few plans.
const maxPlanColumns = 100

// maxPlanCells limits the cells of the matrix: with many plans, a page has fewer rules, but at
// least ten.
const maxPlanCells = 1000

// planRows returns the maximum number of rules of a page with so many plans.
func planRows(plans int) int {
	return min(pageSize, max(maxPlanCells/max(plans, 1), 10))
}

type planColumn struct {
	Slug, Name string
	Default    bool
	Version    string // of the newest version, "" if it is the first
}

type planCell struct {
	Plan, Text string
	Path       string // of the form for changing it
	Own        bool   // the plan's own; otherwise the rule's limit
}

type planLine struct {
	Slug, Name, Path string
	Cells            []planCell
}

type plansView struct {
	Plans []planColumn
	Lines []planLine
	Next  string
	Later bool

	Scheduled     []scheduledLine // the next changes of subjects' plans
	MoreScheduled bool
}

// mostScheduled is the maximum number of scheduled changes on the page.
const mostScheduled = 20

// plans shows the matrix of limits: rules as rows, plans as columns, oldest plan first.
func (d *dashboard) plans(w http.ResponseWriter, r *http.Request, v *visit) error {
	after := r.URL.Query().Get("after")
	heads, _, err := d.Store.PlanHeads(r.Context(), v.actor(), tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return err
	}
	rules, next, err := d.Store.Rules(r.Context(), v.actor(), tenants.RuleFilter{}, tenants.Page{Limit: planRows(len(heads)), After: after})
	if err != nil {
		return err
	}
	slugs := make([]string, len(rules))
	for i := range rules {
		slugs[i] = rules[i].Slug
	}
	plans, _, err := d.Store.PlansFor(r.Context(), v.actor(), slugs, tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return err
	}
	slices.Reverse(plans)
	view := plansView{Later: after != ""}
	if next != "" {
		view.Next = withCursor("/plans", url.Values{}, next)
	}
	for _, p := range plans {
		column := planColumn{Slug: p.Slug, Name: nameOr(p.Name, p.Slug), Default: p.Default}
		if p.NewestVersion > 1 {
			column.Version = strconv.Itoa(p.NewestVersion)
		}
		view.Plans = append(view.Plans, column)
	}
	err = d.turns.do(r.Context(), v.actor().TenantID(), func() {
		for i := range rules {
			view.Lines = append(view.Lines, lineOf(&rules[i].Rule, plans))
		}
	})
	if err != nil {
		return err
	}
	v.frame.Title = "Plans"
	scheduled, more, err := d.Store.ScheduledPlans(r.Context(), v.actor(), tenants.Page{Limit: mostScheduled})
	if err != nil {
		return err
	}
	if view.Scheduled, err = d.scheduledLines(r.Context(), v, scheduled); err != nil {
		return err
	}
	view.MoreScheduled = more != ""
	return d.renderRows(len(view.Lines)*len(view.Plans), w, r, http.StatusOK, plansPage(v.frame, &view))
}

func lineOf(rule *limit.Rule, plans []tenants.Plan) planLine {
	line := planLine{Slug: rule.Slug, Name: nameOr(rule.Name, rule.Slug), Path: ruleURL(rule.Slug)}
	for _, p := range plans {
		lim, own := p.Limits[rule.Slug]
		if !own {
			lim = ownLimit(rule)
		}
		line.Cells = append(line.Cells, planCell{nameOr(p.Name, p.Slug), limitText(rule, lim), limitURL(p.Slug, rule.Slug), own})
	}
	return line
}

// limitURL returns the address of a plan's limit for a rule.
func limitURL(plan, rule string) string { return "/plans/" + plan + "/limits/" + rule }

// planVersionsURL returns the address of the page of a plan's versions and migrations.
func planVersionsURL(plan string) string { return "/plans/" + url.PathEscape(plan) + "/versions" }

// splitLimit splits what limitText returns into the number and the rest.
func splitLimit(text string) (number, more string) {
	parts := strings.Split(text, ", ")
	n := 1
	if len(parts) > 1 && (strings.HasPrefix(parts[1], "burst ") || strings.HasPrefix(parts[1], "queue ")) {
		n = 2
	}
	return strings.Join(parts[:n], ", "), strings.Join(parts[n:], ", ")
}
