package dashboard

import (
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

	Rules, Resources []string // to choose from
}

// decisionFilter is the filter in the page's address.
type decisionFilter struct {
	Subject, Resource, Rule, Show string
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

// AnyTime returns the address of the page without bounds of time.
func (f *decisionFilter) AnyTime() string {
	all := withBounds(f.values, "", "")
	all.Del("period")
	return "/decisions?" + decisionQuery(all)
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

	first, last time.Time // of the equal denials
	times       int64
}

// Machine and Clock return the time of the row.
func (r *decisionRow) Machine() string { return r.At.UTC().Format(time.RFC3339Nano) }

// Clock includes milliseconds, because several rows may be in one second.
func (r *decisionRow) Clock() string { return r.At.UTC().Format("15:04:05.000") }

func decisionColumns(ofMany bool) string {
	if ofMany {
		return "5"
	}
	return "4"
}

// Day returns the date of the row.
func (r *decisionRow) Day() string { return r.At.UTC().Format("2 Jan 2006") }

// decisionFilterOf parses the address. An invalid subject or resource matches nothing, so only its
// length is checked. Errors are added to the form.
func decisionFilterOf(f *form) decisionFilter {
	out := decisionFilter{
		Subject: f.Get("subject"), Resource: f.Get("resource"), Rule: f.Get("rule"), Show: f.Get("show"), Span: spanOf(f, decisionPeriods), values: f.values,
	}
	if out.Show != "" {
		oneOf(f, "show", decisionKinds)
	}
	for _, field := range []struct{ name, text string }{{"subject", out.Subject}, {"resource", out.Resource}, {"rule", out.Rule}} {
		if len(field.text) > limit.MaxNameBytes {
			f.wrong(field.name, limit.MustBe("at most %d bytes", limit.MaxNameBytes))
		}
	}
	return out
}

func (d *dashboard) readDecisions(ctx context.Context, tenant uuid.UUID, f *decisionFilter, now time.Time) decisionsView {
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
	return decisionsView{Filter: *f, Rows: decisionRows(list.Decisions, d.ruleNames(ctx, tenant)), Watching: watching{list.Answered, list.Instances}}
}

// decisions shows recent decisions.
func (d *dashboard) decisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	form := &form{values: r.URL.Query()}
	f := decisionFilterOf(form)
	view, status := decisionsView{Filter: f}, http.StatusUnprocessableEntity
	if !form.invalid() {
		view, status = d.readDecisions(r.Context(), v.actor().TenantID(), &f, v.now), http.StatusOK
	}
	view.Form = form
	view.Range = listRange(form, decisionPeriods, nil, func(values url.Values) string { return "/decisions?" + decisionQuery(values) })
	view.Rules, view.Resources = d.namesOf(r.Context(), v.actor().TenantID())
	v.frame.Title = "Decisions"
	return d.render(w, r, status, decisionsPage(v.frame, &view))
}

// namesOf returns the slugs of a tenant's rules, and the resources that they name.
func (d *dashboard) namesOf(ctx context.Context, tenant uuid.UUID) (rules, resources []string) {
	policy, err := d.Policies.Get(ctx, tenant)
	if err != nil {
		return nil, nil // the page works without suggestions
	}
	for r := range policy.EachRule() {
		if len(rules) < mostSuggested {
			rules = append(rules, r.Slug)
		}
		if len(resources) < mostSuggested && !strings.HasSuffix(r.Resource, "*") && !slices.Contains(resources, r.Resource) {
			resources = append(resources, r.Resource)
		}
	}
	return rules, resources
}

// liveDecisions updates the page.
func (d *dashboard) liveDecisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	form := &form{values: r.URL.Query()}
	f := decisionFilterOf(form)
	if form.invalid() {
		return &tenants.InvalidError{Fields: form.stray()}
	}
	tenant := v.actor().TenantID()
	return d.live(w, r, v, "decisions "+f.Query(), func(ctx context.Context, _ int) ([]part, error) {
		view := d.readDecisions(ctx, tenant, &f, d.Now())
		return []part{{"rows", decisionList(&view)}}, nil
	})
}

// recentDenials returns the recent denials of one subject, newest first, and the number of
// instances that reported them.
func (d *dashboard) recentDenials(ctx context.Context, tenant uuid.UUID, subject string, most int) ([]decisionRow, watching) {
	list := d.recent(ctx, tenant, recent.Query{Subject: subject, Denied: true, Most: most})
	return decisionRows(list.Decisions, d.ruleNames(ctx, tenant)), watching{list.Answered, list.Instances}
}

// foldWithin is the longest pause between two equal denials that one row shows.
const foldWithin = 5 * time.Second

// decisionRows returns decisions in words, newest first. Equal denials that follow each other
// within foldWithin are one row, with their number and the time from the first to the last one.
func decisionRows(list []recent.Decision, names ruleNames) []decisionRow {
	rows := make([]decisionRow, 0, len(list))
	type sameKey struct{ subject, resource, rule, code, cost string }
	folded := map[sameKey]int{} // the row of the last equal denial
	for i := range list {
		r := &list[i]
		key := sameKey{r.Subject, r.Resource, r.Rule, string(r.Code), itoa(r.Cost)}
		if at, seen := folded[key]; seen && !r.Allowed && rows[at].first.Sub(r.At) <= foldWithin {
			rows[at].first, rows[at].times = r.At, rows[at].times+1+r.Repeats
			continue
		}
		row := decisionRow{
			At: r.At, Subject: r.Subject, Resource: r.Resource, Cost: grouped(r.Cost), Allowed: r.Allowed, Rule: r.Rule, Name: names.Of(r.Rule),
			Why: reasonText(r), Again: retryText(r), first: r.At, last: r.At, times: 1 + r.Repeats,
		}
		if r.Repeats > 0 {
			row.last = row.last.Add(recent.RepeatsWithin)
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
func reasonText(d *recent.Decision) string {
	switch {
	case d.Code == check.SubjectBlocked:
		return "The subject is blocked."
	case d.Code == check.CostExceedsLimit && d.Cost <= d.Quota: // Envoy's descriptors are decided together
		return "With other checks of the same request, the cost exceeds the limit of " + grouped(d.Quota) + "."
	case d.Code == check.CostExceedsLimit:
		return "The cost of " + grouped(d.Cost) + " exceeds the limit of " + grouped(d.Quota) + "."
	case d.Code == check.CountersUnavailable:
		return "Redis was unavailable, and the rule denies in that case."
	case !d.Allowed && d.Penalized:
		return "Penalty after an earlier denial."
	case !d.Allowed && d.Remaining > 0 && d.Remaining >= d.Cost:
		return "With other checks of the same request, the cost was more than the " + grouped(d.Remaining) + " of " + grouped(d.Quota) + " that remained" + sourceText(d.Source) + "."
	case !d.Allowed && d.Remaining > 0:
		return "The cost was " + grouped(d.Cost) + ", and " + grouped(d.Remaining) + " of " + grouped(d.Quota) + " remained" + sourceText(d.Source) + "."
	case !d.Allowed && d.Quota == 1:
		return "1 of 1 used" + sourceText(d.Source) + "."
	case !d.Allowed:
		return grouped(d.Quota) + " of " + grouped(d.Quota) + " used" + sourceText(d.Source) + "."
	case d.Rule == "" && d.Degraded:
		return "Redis was unavailable, and no rule denied."
	case d.Rule == "":
		return "No rule with a limit matched."
	case d.Degraded:
		return "Within the limit, counted by this instance because Redis was unavailable."
	}
	if d.Uncounted {
		return "Within the limit" + sourceText(d.Source) + "."
	}
	return grouped(d.Remaining) + " of " + grouped(d.Quota) + " remaining" + sourceText(d.Source) + "."
}

// sourceText names the source of a limit, unless it is the rule's own.
func sourceText(source string) string {
	if source == "rule" {
		return ""
	}
	return " (" + strings.TrimPrefix(strings.TrimPrefix(originText(source), "from "), "an ") + ")"
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
