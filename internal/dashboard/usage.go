package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

const (
	mostGroups    = 50 // groups on a page; the download has all
	mostSuggested = 200
)

type usageView struct {
	Range           *rangeView
	Form            *form
	Chart           chart
	Groups          []usageGroup
	More            int // groups that are not listed
	By              string
	Approximate     bool
	CompleteUntil   moment
	Kept, CSV       string
	Rules, Plans    []option
	Resources       []option
	Shadow, Degrade int64
	Quotas          []quotaLine
	Bounds          *boundsView
}

// GroupName heads the column of groups.
func (v *usageView) GroupName() string { return strings.ToUpper(v.By[:1]) + v.By[1:] }

// usageGroup is the usage of one rule, plan, resource or subject in the whole period.
type usageGroup struct {
	Name, Link string
	tenants.UsageItem
	Title string // the name of a rule; "" for other groups
	Left  int64  // thousandths that are not of this group, for its bar

	Trend  []int64 // checks, by grain
	Before int64   // checks in the previous period

	allowed []int64 // by grain
}

var usageGrains = []option{{"", "Automatic"}, {"minute", "Minute"}, {"hour", "Hour"}, {"day", "Day"}}

var usageGroupings = []option{{"", "Nothing"}, {"rule", "Rule"}, {"plan", "Plan"}, {"resource", "Resource"}, {"subject", "Subject"}}

var usageTops = []option{{"", "Most checks"}, {"denied", "Most denied"}}

// usage shows usage over time, or returns it as a table.
func (d *dashboard) usage(w http.ResponseWriter, r *http.Request, v *visit) error {
	f := &form{values: r.URL.Query()}
	if f.Get("period") == "" { // the picker says which one it is
		f.values.Set("period", "24h")
		if f.Get("from") != "" {
			f.values.Set("period", custom)
		}
	}
	s, query := usageQuery(f, v.now)
	if f.Get("format") == "csv" && !f.invalid() {
		return d.usageTable(w, r, v, s, query)
	}
	view := usageView{Form: f, By: f.Get("by"), Kept: keptSentence(s.Grain), Range: usageRange(f, v.now)}
	status := http.StatusOK
	if !f.invalid() {
		if err := d.readUsage(r.Context(), v.actor(), &view, s, query); err != nil {
			if f.refuse(usageFields(err)) == 0 {
				return err
			}
		}
	}
	if f.invalid() {
		status = http.StatusUnprocessableEntity
	}
	if err := d.suggest(r.Context(), v.actor(), &view); err != nil {
		return err
	}
	view.Quotas = d.quotasOf(r.Context(), v.session.Current.Slug, v.now)
	bounds, err := d.boundsOf(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	view.Bounds = bounds
	v.frame.Title = "Usage"
	return d.render(w, r, status, usagePage(v.frame, &view))
}

// usageQuery reads the address. Errors are added to the form.
func usageQuery(f *form, now time.Time) (s stretch, query tenants.UsageQuery) {
	s = usageSpan(f, now)
	by := f.Get("by")
	query = tenants.UsageQuery{
		Grain: s.Grain, From: s.From, To: s.To, Rule: f.Get("rule"), Plan: f.Get("plan"), Resource: f.Get("resource"), Subject: f.Get("subject"),
		ByRule: by == "rule", ByPlan: by == "plan", ByResource: by == "resource", BySubject: by == "subject", DeniedFirst: f.Get("top") == "denied",
	}
	oneOf(f, "by", usageGroupings)
	oneOf(f, "top", usageTops)
	oneOf(f, "grain", usageGrains)
	return s, query
}

func oneOf(f *form, name string, options []option) {
	if !slices.ContainsFunc(options, func(o option) bool { return o.Value == f.Get(name) }) {
		f.wrong(name, oneOfTheList)
	}
}

func usageSpan(f *form, now time.Time) stretch {
	if f.Get("period") == "custom" {
		return customSpan(f, now)
	}
	p, err := periodOf(f.Get("period"))
	if err != nil {
		f.refuse(err)
		p = periods[1]
	}
	if grain, chosen := grainOf(f); chosen {
		return stretchUntil(now, grain, max(1, int(time.Duration(p.Grains)*p.Grain.Duration()/grain.Duration())))
	}
	return stretchUntil(now, p.Grain, p.Grains)
}

func customSpan(f *form, now time.Time) stretch {
	from, to := instantOf(f, "from"), instantOf(f, "to")
	if to.IsZero() {
		to = now
	}
	if from.IsZero() && f.Error("from") == "" {
		f.wrong("from", isRequired)
	}
	if !from.Before(to) {
		f.wrong("to", limit.Wrong("Use a later end, or an earlier start.", "must be after from"))
	}
	if f.invalid() {
		return stretchUntil(now, usage.Hour, 24)
	}
	grain, chosen := grainOf(f)
	switch length := to.Sub(from); {
	case chosen:
	case length <= 3*time.Hour && now.Sub(from) < tenants.UsageRetention(usage.Minute):
		grain = usage.Minute
	case length <= 8*24*time.Hour && now.Sub(from) < tenants.UsageRetention(usage.Hour):
		grain = usage.Hour
	default:
		grain = usage.Day
	}
	return newStretch(now, grain, from, to)
}

func grainOf(f *form) (g usage.Grain, chosen bool) {
	for _, g := range usage.Grains {
		if g.String() == f.Get("grain") {
			return g, true
		}
	}
	return 0, false
}

// instantOf parses a time of a browser's field, in UTC, or with a zone; zero for none.
func instantOf(f *form, name string) time.Time {
	text := f.Get(name)
	if text == "" {
		return time.Time{}
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339, time.DateOnly} {
		t, err := time.Parse(layout, text)
		if err == nil && t.Year() >= 1970 && t.Year() < 10_000 {
			return t
		}
	}
	f.wrong(name, limit.MustBe("a time such as 2026-01-31T12:00, in UTC"))
	return time.Time{}
}

// usageFields converts the store's names of fields to those of the page.
func usageFields(err error) error {
	if invalid, ok := err.(*tenants.InvalidError); ok { // the store wraps none of these
		for i := range invalid.Fields {
			if invalid.Fields[i].Field == "group_by" {
				invalid.Fields[i].Field = "by"
			}
		}
	}
	return err
}

func (d *dashboard) readUsage(ctx context.Context, a tenants.Actor, view *usageView, s stretch, query tenants.UsageQuery) error {
	total := query
	total.ByRule, total.ByPlan, total.ByResource, total.BySubject = false, false, false, false
	if total.Subject == "" {
		total.DeniedFirst = false
	} else if s.count() > 500 {
		s.Before = false // lists of subjects can be read only for a limited number of periods
	}
	rules, plans := d.ruleNames(ctx, a.TenantID()), d.planNames(ctx, a)
	var report tenants.UsageReport
	var err error
	if view.Chart, report, err = d.seriesWithReport(ctx, a, usageTitle(&query, rules, plans), s, total); err != nil {
		return err
	}
	view.Chart.Zoom, view.Chart.Whole = zoomAddress(view.Form.values), unzoomedAddress(view.Form.values)
	view.Chart.Log = view.Form.Get("scale") == scaleLog
	view.Chart.Scale = otherScale("/usage", view.Form.values, view.Chart.Log)
	if query.Plan == "" {
		view.Chart.Decisions = "/decisions?" + url.Values{"show": {"all"}, "rule": {query.Rule}, "resource": {query.Resource}, "subject": {query.Subject}}.Encode()
	}
	filters := []tenants.AuditFilter{{Kind: "rule", Target: query.Rule}, {Kind: "plan", Target: query.Plan}}
	if view.Chart.Marks, err = d.marks(ctx, a, s, filters...); err != nil {
		return err
	}
	// Of one subject, the groups are those of the chart, whose lists take long to read.
	if groups := view.By != "" && (view.By != "subject" || query.Subject == ""); groups || query.DeniedFirst != total.DeniedFirst {
		query.From = s.compared()
		if report, err = d.Store.Usage(ctx, a, query); err != nil {
			return err
		}
	}
	all := report.Items
	report.Items = within(all, s)
	view.CompleteUntil, view.Approximate = moment{report.CompleteUntil}, report.Approximate
	view.Shadow, view.Degrade = view.Chart.Shadow, view.Chart.Degrade // of checks, however they are grouped
	if view.By != "" {
		if err := d.sumUp(ctx, a.TenantID(), len(all), func() { view.group(all, report.Items, s, query.DeniedFirst) }); err != nil {
			return err
		}
		for i := range view.Groups {
			switch g := &view.Groups[i]; {
			case view.By == "rule":
				g.Title = rules.Of(g.Name)
			case view.By == "plan" && g.Name != "" && g.Name != usage.OtherPlans:
				g.Title = plans.Of(g.Name)
			}
		}
		if view.By == "rule" && view.Chart.Parts != nil {
			view.Chart.Overlapping = true
			view.Chart.Source = "Stacked by rule. A check that matches several rules counts for each."
		}
	}
	values := copied(view.Form.values)
	values.Set("format", "csv")
	view.CSV = "/usage?" + values.Encode()
	return nil
}

func copied(values url.Values) url.Values {
	out := url.Values{}
	for name, v := range values {
		if len(v) > 0 && v[0] != "" {
			out.Set(name, v[0])
		}
	}
	return out
}

// usageAddress returns the address of the page with a change of its parameters.
func usageAddress(values url.Values, change func(url.Values)) string {
	out := copied(values)
	out.Del("format")
	change(out)
	return "/usage?" + out.Encode()
}

func usageTitle(q *tenants.UsageQuery, rules ruleNames, plans planNames) string {
	var of []string
	for _, part := range []struct{ name, value string }{{"rule", rules.Of(q.Rule)}, {"plan", plans.Of(q.Plan)}, {"resource", q.Resource}, {"subject", q.Subject}} {
		if part.value != "" {
			of = append(of, part.name+" "+part.value)
		}
	}
	if len(of) == 0 {
		return "All checks"
	}
	return "Checks of " + strings.Join(of, ", ")
}

// usageGroups sums up the period for each group, busiest first.
func usageGroups(by string, items []tenants.UsageItem, deniedFirst bool) []usageGroup {
	at := map[string]int{}
	var groups []usageGroup
	for i := range items {
		item := &items[i]
		name := groupOf(by, item)
		n, there := at[name]
		if !there {
			n = len(groups)
			at[name] = n
			groups = append(groups, usageGroup{Name: name})
		}
		groups[n].Error += item.Error
		groups[n].Add(item.Counts)
	}
	weight := func(g *usageGroup) int64 {
		if deniedFirst {
			return g.Denied
		}
		return g.Allowed + g.Denied
	}
	slices.SortFunc(groups, func(a, b usageGroup) int {
		return cmp.Or(cmp.Compare(weight(&b), weight(&a)), cmp.Compare(a.Name, b.Name))
	})
	for i := range groups {
		if most := weight(&groups[0]); most > 0 {
			groups[i].Left = 1000 * weight(&groups[i]) / most
		}
	}
	return groups
}

// group lists the groups of the period, and splits the chart by them. all has the items of the
// period and of the previous one. There may be 50,000 groups, so only those that the page lists get
// links, and numbers by grain.
func (v *usageView) group(all, period []tenants.UsageItem, s stretch, deniedFirst bool) {
	groups := usageGroups(v.By, period, deniedFirst)
	v.More = max(0, len(groups)-mostGroups)
	v.Groups = slices.Clone(groups[:len(groups)-v.More])
	for i := range v.Groups {
		v.Groups[i].Link = usageLink(v.By, v.Groups[i].Name)
	}
	others := addTrends(v.Groups, v.By, all, s)
	if !v.DeniedOnly() { // then usage has no allowed checks of the groups
		v.Chart.Parts = splitOf(s, v.By, v.Groups, v.More, others)
	}
}

// DeniedOnly reports whether the groups are the most denied subjects, for which usage has only
// denials.
func (v *usageView) DeniedOnly() bool { return v.By == "subject" && v.Form.Get("top") == "denied" }

// ShadowKnown reports whether some group has denials in shadow, or there are none.
func (v *usageView) ShadowKnown() bool {
	return v.Shadow == 0 || slices.ContainsFunc(v.Groups, func(g usageGroup) bool { return g.ShadowDenied > 0 })
}

func usageLink(by, name string) string {
	switch {
	case name == "":
		return ""
	case by == "rule":
		return "/rules/" + url.PathEscape(name)
	case by == "subject":
		return subjectURL(name)
	}
	return ""
}

// Called returns what the page calls a group.
func (g *usageGroup) Called(by string) string {
	switch {
	case g.Title != "":
		return g.Title
	case by == "plan" && g.Name == usage.OtherPlans:
		return "Other plans"
	case g.Name != "":
		return g.Name
	case by == "plan":
		return "No plan"
	}
	return "All others"
}

func keptSentence(g usage.Grain) string {
	return fmt.Sprintf("Weir keeps usage per minute for %d days, per hour for %d and per day for %d. Step shown: %s.",
		keptDays(usage.Minute), keptDays(usage.Hour), keptDays(usage.Day), g)
}

func keptDays(g usage.Grain) int { return int(tenants.UsageRetention(g) / (24 * time.Hour)) }

// suggest reads the names of rules and plans for the form.
func (d *dashboard) suggest(ctx context.Context, a tenants.Actor, view *usageView) error {
	rules, _, err := d.Store.Rules(ctx, a, tenants.RuleFilter{}, tenants.Page{Limit: mostSuggested})
	if err != nil {
		return err
	}
	for i := range rules {
		view.Rules = append(view.Rules, option{rules[i].Slug, rules[i].Name})
	}
	plans, _, err := d.Store.PlanHeads(ctx, a, tenants.Page{Limit: mostSuggested})
	for i := range plans {
		view.Plans = append(view.Plans, option{plans[i].Slug, plans[i].Name})
	}
	_, view.Resources = d.namesOf(ctx, a.TenantID())
	return err
}

// usageTable returns the query as a table.
func (d *dashboard) usageTable(w http.ResponseWriter, r *http.Request, v *visit, s stretch, query tenants.UsageQuery) error {
	report, err := d.Store.Usage(r.Context(), v.actor(), query)
	if err != nil {
		return usageFields(err)
	}
	complete := report.CompleteUntil
	var table bytes.Buffer // whole, because its bytes are counted before it is sent, without the report
	if err := d.longTurns.do(r.Context(), v.actor().TenantID(), func() { _ = report.WriteCSV(&table, &query) }); err != nil {
		return err
	}
	leave, ok := d.keepUnread(r, table.Len())
	if !ok {
		return errUnread
	}
	defer leave()
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="usage-`+s.Grain.String()+`.csv"`)
	h.Set("Weir-Complete-Until", complete.Format(time.RFC3339Nano))
	_, _ = w.Write(table.Bytes()) // the browser is gone if this fails
	return nil
}

// Narrowed reports whether one of the rarely used fields is set.
func (v *usageView) Narrowed() bool {
	for _, name := range []string{"rule", "plan", "resource", "subject"} {
		if v.Form.Get(name) != "" || v.Form.Error(name) != "" {
			return true
		}
	}
	return false
}
