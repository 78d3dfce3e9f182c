package dashboard

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/check"
	"weir/internal/tenants"
)

// pageSize is how many rows a list shows at once.
const pageSize = 50

type ruleRow struct {
	Slug, Name, Sentence, Mode string
}

type rulesView struct {
	Rules []ruleRow
	Next  string // path of the next page; "": none
	Later bool   // it is not the first page
}

func (d *dashboard) rules(w http.ResponseWriter, r *http.Request, v *visit) error {
	after := r.URL.Query().Get("after")
	rules, next, err := d.Store.Rules(r.Context(), v.actor(), tenants.RuleFilter{}, tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	view := rulesView{Later: after != ""}
	if next != "" {
		view.Next = withCursor("/rules", url.Values{}, next)
	}
	for i := range rules {
		view.Rules = append(view.Rules, rowOf(&rules[i].Rule))
	}
	v.frame.Title = "Rules"
	return d.render(w, r, http.StatusOK, rulesPage(v.frame, &view))
}

func rowOf(r *check.Rule) ruleRow {
	return ruleRow{Slug: r.Slug, Name: nameOr(r.Name, r.Slug), Sentence: ruleSentence(r), Mode: r.Mode.String()}
}

func nameOr(name, slug string) string {
	if name != "" {
		return name
	}
	return slug
}

type fact struct {
	Name, Value string
	Mono        bool
}

type planNumber struct{ Plan, Name, Limit string }

type ruleView struct {
	ruleRow
	Description, Outage string
	Facts               []fact
	Plans               []planNumber
	Limit               string // the rule's own
	Changed             moment
}

func (d *dashboard) rule(w http.ResponseWriter, r *http.Request, v *visit) error {
	rule, err := d.Store.RuleBySlug(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	plans, _, err := d.Store.Plans(r.Context(), v.actor(), tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return err
	}
	view := ruleView{
		ruleRow: rowOf(&rule.Rule), Description: rule.Description, Outage: outageSentence(rule.OnUnavailable),
		Facts: ruleFacts(&rule.Rule), Limit: limitText(&rule.Rule, ownLimit(&rule.Rule)), Changed: moment{rule.UpdatedAt},
	}
	for _, p := range plans {
		if limit, ok := p.Limits[rule.Slug]; ok {
			view.Plans = append(view.Plans, planNumber{p.Slug, nameOr(p.Name, p.Slug), limitText(&rule.Rule, limit)})
		}
	}
	v.frame.Title = view.Name
	return d.render(w, r, http.StatusOK, rulePage(v.frame, &view))
}

func ownLimit(r *check.Rule) check.Limit { return check.Limit{Limit: r.Limit, Burst: r.Burst} }

func ruleFacts(r *check.Rule) []fact {
	by := "nothing: one counter for the whole tenant"
	if len(r.By) > 0 {
		by = strings.Join(r.By, ", ")
	}
	facts := []fact{
		{"Slug", r.Slug, true},
		{"Resources", r.Resource, true},
		{"Algorithm", r.Algorithm.String(), true},
		{"Limit", grouped(r.Limit), false},
		{"Window", r.Window.Text, true},
	}
	if r.Algorithm.Bucket() {
		facts = append(facts, fact{"Burst", grouped(r.Numbers().Burst), false})
	}
	if r.Precision.MS > 0 {
		facts = append(facts, fact{"Precision", r.Precision.Text, true})
	}
	facts = append(facts, fact{"Counts by", by, len(r.By) > 0})
	if r.Penalty.MS > 0 {
		facts = append(facts, fact{"Penalty", r.Penalty.Text, true})
	}
	return append(facts, fact{"Mode", r.Mode.String(), true}, fact{"When counters are away", r.OnUnavailable.String(), true})
}
