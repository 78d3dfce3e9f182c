package dashboard

import (
	"net/http"
	"net/url"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// pageSize is how many rows a list shows at once.
const pageSize = 50

type ruleRow struct {
	Slug, Name, Sentence, Mode string
	Limit, Resource, Algorithm string
	Leased                     bool
	Path                       string
	Day                        *chart // its checks of the last 24 hours
}

type rulesView struct {
	Prefix, Mode, Algorithm, Resource string   // the filters; "" for any
	Resources                         []option // to choose from
	Rules                             []ruleRow
	Next                              string // path of the next page; "": none
	First                             string // path of the first page, with the same filters
	Later                             bool   // it is not the first page
}

// Filtered reports whether a filter is set.
func (v *rulesView) Filtered() bool { return v.Prefix+v.Mode+v.Algorithm+v.Resource != "" }

func (d *dashboard) rules(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	after := query.Get("after")
	view := rulesView{
		Prefix: query.Get("q"), Mode: query.Get("mode"), Algorithm: query.Get("algorithm"), Resource: query.Get("resource"), Later: after != "",
	}
	filter, kept, err := view.filter()
	if err != nil {
		return err
	}
	rules, next, err := d.Store.Rules(r.Context(), v.actor(), filter, tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	view.First = withCursor("/rules", kept, "")
	if next != "" {
		view.Next = withCursor("/rules", kept, next)
	}
	slugs := make([]string, len(rules))
	for i := range rules {
		slugs[i] = rules[i].Slug
	}
	days, err := d.lastDay(r, v, slugs)
	if err != nil {
		return err
	}
	for i := range rules {
		row := rowOf(&rules[i].Rule)
		row.Day = days[row.Slug]
		view.Rules = append(view.Rules, row)
	}
	_, view.Resources = d.namesOf(r.Context(), v.actor().TenantID())
	v.frame.Title = "Rules"
	return d.render(w, r, http.StatusOK, rulesPage(v.frame, &view))
}

// filter reads the filter, and returns the parameters for the addresses of other pages.
func (view *rulesView) filter() (f tenants.RuleFilter, kept url.Values, err error) {
	kept = url.Values{}
	var fields []limit.FieldError
	if f.Prefix = view.Prefix; f.Prefix != "" {
		if problem := limit.ValidName(f.Prefix); problem != nil {
			fields = append(fields, limit.FieldProblem("q", problem))
		}
		kept.Set("q", f.Prefix)
	}
	if view.Mode != "" {
		mode, err := limit.ParseMode(view.Mode)
		if err != nil {
			fields = append(fields, limit.FieldProblem("mode", limit.ProblemOf(err)))
		}
		f.Mode = &mode
		kept.Set("mode", view.Mode)
	}
	if view.Algorithm != "" {
		if f.Algorithm, err = limit.ParseAlgorithm(view.Algorithm); err != nil {
			fields = append(fields, limit.FieldProblem("algorithm", limit.ProblemOf(err)))
		}
		kept.Set("algorithm", view.Algorithm)
	}
	if view.Resource != "" {
		if problem := limit.ValidName(view.Resource); problem != nil {
			fields = append(fields, limit.FieldProblem("resource", problem))
		}
		f.Resource = view.Resource
		kept.Set("resource", view.Resource)
	}
	if len(fields) > 0 {
		return f, nil, &tenants.InvalidError{Fields: fields}
	}
	return f, kept, nil
}

// lastDay draws the results of each rule in the last 24 hours.
func (d *dashboard) lastDay(r *http.Request, v *visit, slugs []string) (map[string]*chart, error) {
	if len(slugs) == 0 {
		return nil, nil
	}
	day := stretchUntil(v.now, usage.Hour, 24)
	query := tenants.UsageQuery{Grain: day.Grain, From: day.compared(), To: day.To, ByRule: true, Rules: slugs}
	report, err := d.Store.Usage(r.Context(), v.actor(), query)
	if err != nil {
		return nil, err
	}
	items := map[string][]tenants.UsageItem{}
	for _, item := range report.Items {
		items[item.Rule] = append(items[item.Rule], item)
	}
	days := make(map[string]*chart, len(slugs))
	for _, slug := range slugs {
		c := newChart("Last 24 hours", day, items[slug])
		days[slug] = &c
	}
	return days, nil
}

// Change compares the denials of the last 24 hours with those of the 24 hours before.
func (r *ruleRow) Change() string { return shortChange(r.Day.Denied, r.Day.BeforeDenied) }

// Steep reports whether the denials doubled at least, and are more than a few.
func (r *ruleRow) Steep() bool { return r.Day.Denied >= 10 && r.Day.Denied >= 2*r.Day.BeforeDenied }

func rowOf(r *limit.Rule) ruleRow {
	return ruleRow{
		Slug: r.Slug, Name: nameOr(r.Name, r.Slug), Sentence: ruleSentence(r), Mode: r.Mode.String(), Limit: limitText(r, ownLimit(r)), Resource: r.Resource,
		Algorithm: algorithmTitle(r.Algorithm.String()), Leased: r.Consistency == limit.Leased, Path: ruleURL(r.Slug),
	}
}

func nameOr(name, slug string) string {
	if name != "" {
		return name
	}
	return slug
}

// ruleURL returns the address of a rule's page. The slug of a rule may be equal to the path of the
// page for new rules.
func ruleURL(slug string) string { return objectURL("/rules/", slug) }

func objectURL(list, slug string) string {
	if slug == "new" {
		slug += "/"
	}
	return list + slug
}
