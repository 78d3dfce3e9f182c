package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// mostDecisions is the maximum number of recent decisions on a page.
const mostDecisions = 100

type decisionsView struct {
	Filter   decisionFilter
	Form     *form
	Range    *rangeView
	Rows     []decisionRow
	Watching watching
	Chart    *chart
	Kept     *keptUsage   // of the chosen period, if no decision of it is kept; nil: not asked for
	Detail   *decisionRow // the chosen decision; nil: none is chosen, or no instance remembers it
	Sentence string       // of the rule that decided it, as it is now

	Rules, Resources []option // to choose from
}

// decisionFilter is the filter in the page's address.
type decisionFilter struct {
	Subject, Resource, Rule, Show string
	Pick                          string // the chosen decision; see decisionRow.Pick
	Span                          listSpan
	values                        url.Values
}

// decisionPeriods are short, because instances remember recent decisions only.
var decisionPeriods = []recentPeriod{
	{"5m", "Last 5 minutes", 5 * time.Minute}, {"15m", "Last 15 minutes", 15 * time.Minute}, {"1h", "Last hour", time.Hour}, {"6h", "Last 6 hours", 6 * time.Hour},
}

var decisionKinds = []option{{"denied", "Denied only"}, {"all", "All checks"}}

// Denied reports whether only denials are shown, which is the default.
func (f *decisionFilter) Denied() bool { return f.Show != "all" }

// decisionQuery returns the query of the page with these values.
func decisionQuery(values url.Values) string {
	out := url.Values{}
	for _, field := range []string{"show", "subject", "rule", "resource", "period", "from", "to"} {
		if text := values.Get(field); text != "" {
			out.Set(field, text)
		}
	}
	return out.Encode()
}

// Query returns the filter as part of an address.
func (f *decisionFilter) Query() string { return decisionQuery(f.values) }

// Live returns the address of the updates.
func (f *decisionFilter) Live() string { return "/live" + f.With(f.Pick) }

// With returns the address of the page with a chosen decision; "" for none.
func (f *decisionFilter) With(pick string) string {
	query := f.Query()
	if pick != "" && query != "" {
		query += "&"
	}
	if pick != "" {
		query += "pick=" + url.QueryEscape(pick)
	}
	if query == "" {
		return "/decisions"
	}
	return "/decisions?" + query
}

// AnyTime returns the address of the page without bounds of time.
func (f *decisionFilter) AnyTime() string {
	all := withBounds(f.values, "", "")
	all.Del("period")
	return "/decisions?" + decisionQuery(all)
}

// Usage returns the page with the most denied subjects of the chosen period, which usage keeps for
// longer; "" if none is chosen.
func (f *decisionFilter) Usage() string {
	if f.Span.From.IsZero() || f.Span.To.IsZero() {
		return ""
	}
	return "/usage?" + url.Values{
		"period": {custom}, "from": {f.Span.From.UTC().Format(minuteForm)}, "to": {f.Span.To.UTC().Format(minuteForm)}, "by": {"subject"}, "top": {"denied"},
	}.Encode()
}

// Filtered reports whether a filter other than the kind of decision is set.
func (f *decisionFilter) Filtered() bool { return f.Subject != "" || f.Resource != "" || f.Rule != "" }

// decisionRow is a recent decision in words.
type decisionRow struct {
	At                      time.Time
	Subject, Resource, Cost string
	Allowed                 bool
	Rule, Name              string // slug and name of the deciding rule
	Why                     string
	Again                   string // when the same check would be allowed
	Repeats                 string // "27 times in 4 s"; "" if it was not repeated

	Picked bool // its details are beside the list

	first, last time.Time // of the equal denials
	times       int64
	source      string // of the limit, as in " (plan Pro)"
	least, most int64  // milliseconds that they were told to wait; 0: not known
	decision    recent.Decision
}

// until returns when the same check would have been allowed.
func (r *decisionRow) until() time.Time {
	if r.most == limit.NeverMS {
		return r.At
	}
	return r.At.Add(time.Duration(r.most) * time.Millisecond)
}

// Machine and Clock return the time of the row.
func (r *decisionRow) Machine() string { return r.At.UTC().Format(time.RFC3339Nano) }

// Clock is the time of day.
func (r *decisionRow) Clock() string { return r.At.UTC().Format("15:04:05") }

func decisionColumns(ofMany bool) string {
	if ofMany {
		return "7"
	}
	return "6"
}

// Day returns the date of the row.
func (r *decisionRow) Day() string { return r.At.UTC().Format("2 Jan 2006") }

// decisionFilterOf parses the address. An invalid subject or resource matches nothing, so only its
// length is checked. Errors are added to the form.
func decisionFilterOf(f *form) decisionFilter {
	out := decisionFilter{
		Subject: f.Get("subject"), Resource: f.Get("resource"), Rule: f.Get("rule"), Show: f.Get("show"), Pick: f.Get("pick"), Span: spanOf(f, decisionPeriods), values: f.values,
	}
	if out.Show != "" {
		oneOf(f, "show", decisionKinds)
	}
	for _, field := range []struct{ name, text string }{{"subject", out.Subject}, {"resource", out.Resource}, {"rule", out.Rule}, {"pick", out.Pick}} {
		if len(field.text) > limit.MaxNameBytes {
			f.wrong(field.name, limit.MustBe("at most %d bytes", limit.MaxNameBytes))
		}
	}
	return out
}

func (d *dashboard) readDecisions(ctx context.Context, tenant uuid.UUID, plans planNames, f *decisionFilter, now time.Time) decisionsView {
	query := recent.Query{Prefix: f.Subject, Resource: f.Resource, Rule: f.Rule, Denied: f.Denied(), Most: mostDecisions}
	since, until := f.Span.bounds(now)
	if since != nil {
		query.Since = *since
	}
	if until != nil {
		query.Most = 0 // the newest ones may all be later
	}
	list := d.recent(ctx, tenant, query)
	if until != nil {
		list.Decisions = slices.DeleteFunc(list.Decisions, func(d recent.Decision) bool { return !d.At.Before(*until) })
		list.Decisions = list.Decisions[:min(len(list.Decisions), mostDecisions)]
	}
	view := decisionsView{Filter: *f, Rows: decisionRows(list.Decisions, d.ruleNames(ctx, tenant), plans), Watching: watching{list.Answered, list.Instances}}
	view.Detail = view.picked()
	return view
}

// decisions shows recent decisions.
func (d *dashboard) decisions(w http.ResponseWriter, r *http.Request, v *visit) (err error) {
	form := &form{values: r.URL.Query()}
	f := decisionFilterOf(form)
	view, status := decisionsView{Filter: f}, http.StatusUnprocessableEntity
	if !form.invalid() {
		view, status = d.readDecisions(r.Context(), v.actor().TenantID(), d.planNames(r.Context(), v.actor()), &f, v.now), http.StatusOK
		if view.Kept, err = d.keptUsage(r.Context(), v.actor(), &view, v.now); err != nil {
			return err
		}
		if view.Detail != nil {
			view.Sentence = d.sentenceOf(r.Context(), v.actor(), view.Detail.Rule)
		}
		if view.Chart, err = d.decisionChart(r.Context(), v.actor(), &f, v.now); err != nil {
			return err
		}
	}
	view.Form = form
	view.Range = listRange(form, decisionPeriods, nil, func(values url.Values) string { return "/decisions?" + decisionQuery(values) })
	view.Rules, view.Resources = d.namesOf(r.Context(), v.actor().TenantID())
	for i := range view.Rows { // rules name few resources, most of them as orders:*
		if seen := (option{view.Rows[i].Resource, ""}); seen.Value != "" && !slices.Contains(view.Resources, seen) {
			view.Resources = append(view.Resources, seen)
		}
	}
	slices.SortFunc(view.Resources, func(a, b option) int { return cmp.Compare(a.Value, b.Value) })
	v.frame.Title = "Decisions"
	return d.render(w, r, status, decisionsPage(v.frame, &view))
}

// namesOf returns a tenant's rules by name, and the resources that they name, to choose from.
func (d *dashboard) namesOf(ctx context.Context, tenant uuid.UUID) (rules, resources []option) {
	policy, err := d.Policies.Get(ctx, tenant)
	if err != nil {
		return nil, nil // the page works without suggestions
	}
	for r := range policy.EachRule() {
		if len(rules) < mostSuggested {
			rules = append(rules, option{r.Slug, r.Name})
		}
		resource := option{r.Resource, ""}
		if len(resources) < mostSuggested && !strings.HasSuffix(r.Resource, "*") && !slices.Contains(resources, resource) {
			resources = append(resources, resource)
		}
	}
	slices.SortFunc(rules, func(a, b option) int {
		return cmp.Or(cmp.Compare(strings.ToLower(nameOr(a.Name, a.Value)), strings.ToLower(nameOr(b.Name, b.Value))), cmp.Compare(a.Value, b.Value))
	})
	return rules, resources
}

// liveDecisions updates the page.
func (d *dashboard) liveDecisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	form := &form{values: r.URL.Query()}
	f := decisionFilterOf(form)
	if form.invalid() {
		return &tenants.InvalidError{Fields: form.stray()}
	}
	actor := tenants.AsSystem(v.actor().TenantID(), "live") // outlives this visit, and only reads
	var plans planNames
	var kept liveKept
	return d.live(w, r, v, "decisions "+f.With(f.Pick), func(ctx context.Context, tick int) (parts []part, err error) {
		if tick%overviewSlow == 0 {
			plans = d.planNames(ctx, actor)
		}
		view := d.readDecisions(ctx, actor.TenantID(), plans, &f, d.Now())
		if err := kept.update(tick, func() (*keptUsage, error) { return d.keptUsage(ctx, actor, &view, d.Now()) }); err != nil {
			return nil, err
		}
		view.Kept = kept.usage
		if len(view.Rows) > 0 || kept.usage != nil || !kept.failed { // else the page continues to show what it has
			parts = append(parts, part{"rows", decisionList(&view)})
		}
		if tick%2 == 1 { // usage is written once a second, and read half as often
			return parts, nil
		}
		if view.Chart, err = d.decisionChart(ctx, actor, &f, d.Now()); err != nil {
			return nil, err
		}
		return append(parts, part{"sums", chartSums(view.Chart)}, part{"plot", decisionPlot(&view)}, part{"series", chartSeries(view.Chart)}), nil
	})
}

// recentDenials returns the recent denials of one subject, newest first, the number of instances
// that reported them, and whether there may be more.
func (d *dashboard) recentDenials(ctx context.Context, tenant uuid.UUID, subject string, most int, plans planNames) (rows []decisionRow, from watching, more bool) {
	list := d.recent(ctx, tenant, recent.Query{Subject: subject, Denied: true, Most: most})
	return decisionRows(list.Decisions, d.ruleNames(ctx, tenant), plans), watching{list.Answered, list.Instances}, most > 0 && len(list.Decisions) >= most
}

// foldWithin is the longest pause between two equal denials that one row shows.
const foldWithin = 5 * time.Second

// decisionRows returns decisions in words, newest first. Equal denials that follow each other
// within foldWithin are one row, with their number and the time from the first to the last one.
func decisionRows(list []recent.Decision, names ruleNames, plans planNames) []decisionRow {
	rows := make([]decisionRow, 0, len(list))
	folded := map[decisionKey]int{} // the row of the last equal denial
	for i := range list {
		r := &list[i]
		key := keyOf(r)
		if at, seen := folded[key]; seen && !r.Allowed && rows[at].first.Sub(r.Last()) <= foldWithin {
			rows[at].first, rows[at].times = r.At, rows[at].times+1+r.Repeats
			rows[at].least, rows[at].most = min(rows[at].least, r.RetryAfterMS), max(rows[at].most, r.RetryAfterMS)
			continue
		}
		row := decisionRow{
			At: r.At, Subject: r.Subject, Resource: r.Resource, Cost: grouped(r.Cost), Allowed: r.Allowed, Rule: r.Rule, Name: names.Of(r.Rule),
			Why: reasonText(r, plans), Again: retryText(r), first: r.At, last: r.Last(), times: 1 + r.Repeats, least: r.RetryAfterMS, most: r.RetryAfterMS, decision: *r, source: sourceText(r.Source, plans),
		}
		if !r.Allowed {
			folded[key] = len(rows)
		}
		rows = append(rows, row)
	}
	for i := range rows {
		if r := &rows[i]; r.times > 1 {
			seconds := max(1, int64((r.last.Sub(r.first)+time.Second-1)/time.Second))
			r.Repeats = grouped(r.times) + " times in " + grouped(seconds) + " s"
		}
	}
	return rows
}

// reasonText explains a decision in a sentence.
func reasonText(d *recent.Decision, plans planNames) string {
	switch {
	case d.Code == check.SubjectBlocked:
		return "The subject is blocked."
	case d.Code == check.CostExceedsLimit && d.Cost <= d.Quota: // Envoy's descriptors are decided together
		return "With other checks of the same request, the cost exceeds the limit of " + grouped(d.Quota) + "."
	case d.Code == check.CostExceedsLimit:
		return "The cost of " + grouped(d.Cost) + " exceeds the limit of " + grouped(d.Quota) + "."
	case d.Code == check.AttributeMissing:
		return "The check lacked an attribute that the rule requires."
	case d.Code == check.CountersUnavailable:
		return "Redis was unavailable, and the rule denies in that case."
	case !d.Allowed && d.Penalized:
		return "Penalty after an earlier denial."
	case !d.Allowed && d.Remaining > 0 && d.Remaining >= d.Cost:
		return "With other checks of the same request, the cost was more than the " + grouped(d.Remaining) + " of " + grouped(d.Quota) + " that remained" + sourceText(d.Source, plans) + "."
	case !d.Allowed && d.Remaining > 0:
		return "The cost was " + grouped(d.Cost) + ", and " + grouped(d.Remaining) + " of " + grouped(d.Quota) + " remained" + sourceText(d.Source, plans) + "."
	case !d.Allowed && d.Quota == 1:
		return "1 of 1 used" + sourceText(d.Source, plans) + "."
	case !d.Allowed:
		return grouped(d.Quota) + " of " + grouped(d.Quota) + " used" + sourceText(d.Source, plans) + "."
	case d.Rule == "" && d.Degraded:
		return "Redis was unavailable, and no rule denied."
	case d.Rule == "" && d.Shadow:
		return "Only rules in shadow matched."
	case d.Rule == "":
		return "No rule with a limit matched."
	case d.Degraded:
		return "Within the limit, counted by this instance because Redis was unavailable."
	}
	if d.Uncounted {
		return "Within the limit" + sourceText(d.Source, plans) + "."
	}
	return grouped(d.Remaining) + " of " + grouped(d.Quota) + " remaining" + sourceText(d.Source, plans) + "."
}

// sourceText names the source of a limit, unless it is the rule's own.
func sourceText(source string, plans planNames) string {
	if source == "rule" {
		return ""
	}
	return " (" + strings.TrimPrefix(strings.TrimPrefix(originText(source, plans), "from "), "an ") + ")"
}

// retryText says when the same check would have been allowed, relative to the decision.
func retryText(d *recent.Decision) string {
	switch {
	case d.Allowed:
		return ""
	case d.Code == check.SubjectBlocked:
		return "when unblocked"
	case d.RetryAfterMS == limit.NeverMS:
		return "never"
	}
	return "in " + short(time.Duration(d.RetryAfterMS)*time.Millisecond)
}
