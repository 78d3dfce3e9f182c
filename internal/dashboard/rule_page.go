package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

type fact struct {
	Name, Value string
	Mono        bool
}

type planNumber struct{ Plan, Name, Limit string }

type ruleView struct {
	ruleRow
	Form                *form // of a refused form
	Version             int64
	Description, Outage string
	Lease               []string
	Allowing            []string // names of plans that allow requests over the limit, other than the rule
	Facts               []fact
	Warnings            []string
	Plans               []planNumber
	Limit               string // the rule's own
	Changed             moment
	Goes                []string // what is deleted with the rule
	Kept                []string // why it cannot be deleted
	LastHour            string   // what the rule did in the last hour
	Ask                 string   // the mode that the address asks to switch to; "": none
}

func (d *dashboard) rule(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showRule(w, r, v, &form{}, http.StatusOK)
}

// showRule shows a rule, also after a form of its page was refused.
func (d *dashboard) showRule(w http.ResponseWriter, r *http.Request, v *visit, f *form, status int) error {
	slug := chi.URLParam(r, "slug")
	rule, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	plans, _, err := d.Store.PlansFor(r.Context(), v.actor(), []string{slug}, tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return err
	}
	reach, err := d.Store.RuleReach(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	days, err := d.lastDay(r, v, []string{slug})
	if err != nil {
		return err
	}
	view := ruleView{
		ruleRow: rowOf(&rule.Rule), Form: f, Version: rule.Version, Description: rule.Description, Outage: outageSentence(rule.OnUnavailable),
		Lease: leaseSentences(&rule.Rule, d.Instances()),
		Facts: ruleFacts(&rule.Rule), Limit: limitText(&rule.Rule, ownLimit(&rule.Rule)), Changed: moment{rule.UpdatedAt},
		Goes: goesWith(reach, d.planNames(r.Context(), v.actor())), Kept: keptBy(reach), Warnings: warningTexts(&rule.Rule, d.Instances()),
	}
	if view.LastHour, err = d.lastHour(r.Context(), v, &rule.Rule); err != nil {
		return err
	}
	query := r.URL.Query()
	if mode, err := limit.ParseMode(query.Get("mode")); err == nil && mode != rule.Mode && v.frame.May.Edit {
		view.Ask = mode.String()
	}
	view.Day = days[slug]
	if err := d.compareWithLimit(r.Context(), v.actor(), view.Day, &rule.Rule); err != nil {
		return err
	}
	view.Day.Title = "Decisions in the last 24 hours"
	view.Day.Log = query.Get("scale") == scaleLog
	view.Day.Scale = otherScale(ruleURL(slug), query, view.Day.Log)
	view.Day.Zoom = zoomFrom(ruleURL(slug), url.Values{"period": {"24h"}, "rule": {slug}})
	view.Day.Decisions = "/decisions?" + url.Values{"show": {"all"}, "rule": {slug}}.Encode()
	if view.Day.Marks, err = d.marks(r.Context(), v.actor(), view.Day.stretch, tenants.AuditFilter{Kind: "rule", Target: slug}); err != nil {
		return err
	}
	for _, p := range plans {
		if lim, ok := p.Limits[rule.Slug]; ok {
			view.Plans = append(view.Plans, planNumber{p.Slug, nameOr(p.Name, p.Slug), limitText(&rule.Rule, lim)})
			if lim.Overage == limit.OverageAllow && rule.Overage != limit.OverageAllow && rule.Mode == limit.Enforce {
				view.Allowing = append(view.Allowing, nameOr(p.Name, p.Slug))
			}
		}
	}
	v.frame.Title = view.Name
	return d.render(w, r, status, rulePage(v.frame, &view))
}

// compareWithLimit adds the line of the rule's limit to its chart, if all checks share one counter
// with a window no longer than a bar. Otherwise the sum of all checks cannot be compared with the
// limit, and a sentence says why.
func (d *dashboard) compareWithLimit(ctx context.Context, a tenants.Actor, c *chart, rule *limit.Rule) error {
	window := rule.Window.MS
	text := limitText(rule, ownLimit(rule))
	switch {
	case len(rule.By) > 0:
		c.Source = "Each counter has its own limit (" + text + "), so no line shows it here. The page of a subject has its line."
		return nil
	case window <= 0 || window > c.Grain.Duration().Milliseconds():
		c.Source = "The limit is " + text + ". Its window is longer than a bar, so no line shows it here."
		return nil
	}
	scale := func(units int64) int64 { return perWindow(units, window, c.Grain) }
	if window != c.Grain.Duration().Milliseconds() {
		text += ", " + grouped(scale(rule.Limit)) + " per " + c.Grain.String()
	}
	parts, err := d.limitParts(ctx, a, c.stretch, rule.Slug, rule.Limit, scale)
	c.Limit = &limitLine{Text: "Limit: " + text, Parts: parts}
	return err
}

// warningTexts returns the warnings of a rule as sentences.
func warningTexts(r *limit.Rule, instances int) (out []string) {
	for _, warning := range r.Warnings(instances) {
		out = append(out, sentence(warning.Message))
	}
	return out
}

// goesWith describes what is deleted with a rule.
func goesWith(reach tenants.RuleReach, plans planNames) (out []string) {
	if n := int64(len(reach.Plans)); n > 0 {
		names := make([]string, n)
		for i, slug := range reach.Plans {
			names[i] = plans.Of(slug)
		}
		out = append(out, plural(n, "plan loses its limit for this rule: ", "plans lose their limit for this rule: ")+strings.Join(names, ", ")+".")
	}
	if reach.Overrides > 0 {
		out = append(out, countText(reach.Overrides, "subject override is deleted.", "subject overrides are deleted."))
	}
	return append(out, "Its counters are deleted. Its usage and its history are kept.")
}

// keptBy describes what must be settled before a rule can be deleted.
func keptBy(reach tenants.RuleReach) (out []string) {
	if reach.Credits > 0 {
		out = append(out, countText(reach.Credits, "subject has unspent credits for this rule. Revoke them", "subjects have unspent credits for this rule. Revoke them")+" on the pages of the subjects, or switch the rule off.")
	}
	if reach.Sold {
		out = append(out, "A price grants credits for this rule. Remove its mapping on the billing page.")
	}
	return out
}

// countText formats a count that stops at tenants.MostCounted.
func countText(n int64, one, many string) string {
	if n > tenants.MostCounted {
		return "More than " + plural(tenants.MostCounted, one, many)
	}
	return plural(n, one, many)
}

func ownLimit(r *limit.Rule) limit.Limit {
	return limit.Limit{Limit: r.Limit, Burst: r.Burst, WarnAt: r.WarnAt, Overage: r.Overage}
}

// setRuleMode changes the mode to enforce, shadow or off.
func (d *dashboard) setRuleMode(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	mode := choice(f, "mode", limit.ParseMode)
	if f.invalid() {
		return errForm
	}
	slug, before := chi.URLParam(r, "slug"), mode
	rule, err := d.Store.EditRule(r.Context(), v.actor(), slug, f.match(), func(r *limit.Rule) error {
		before, r.Mode = r.Mode, mode
		return nil
	})
	if err != nil {
		return d.refusedOnRule(w, r, v, f, err)
	}
	was := rule.Rule
	was.Mode = before
	did, err := d.lastHour(r.Context(), v, &was)
	if err != nil {
		return err
	}
	name := nameOr(rule.Name, rule.Slug)
	said := map[limit.Mode]string{
		limit.Enforce: "Rule “" + name + "” is enforced.",
		limit.Shadow:  "Rule “" + name + "” is in shadow. It reports what it would deny and denies nothing.",
		limit.Off:     "Rule “" + name + "” is off. It neither counts nor denies.",
	}[mode]
	if before == mode {
		return d.done(w, r, ruleURL(slug), said)
	}
	back := newUndo(ruleURL(slug)+"/mode", "mode", before.String(), "version", itoa(rule.Version))
	return d.doneWith(w, r, ruleURL(slug), said+" "+did, back)
}

// lastHour says what a rule did in the last hour, in its mode.
func (d *dashboard) lastHour(ctx context.Context, v *visit, rule *limit.Rule) (string, error) {
	s := stretchUntil(v.now, usage.Minute, 60)
	report, err := d.Store.Usage(ctx, v.actor(), tenants.UsageQuery{Grain: s.Grain, From: s.From, To: s.To, Rule: rule.Slug})
	if err != nil {
		return "", err
	}
	var sum usage.Counts
	for i := range report.Items {
		sum.Add(report.Items[i].Counts)
	}
	checks := func(n int64) string { return plural(n, "check", "checks") + " in the last hour." }
	switch rule.Mode {
	case limit.Enforce:
		return "It denied " + checks(sum.Denied), nil
	case limit.Shadow:
		if sum.Denied > 0 { // while it was enforced
			return "It denied " + checks(sum.Denied), nil
		}
		return "It would have denied " + checks(sum.ShadowDenied), nil
	}
	return "It was off: it counted nothing.", nil
}

func (d *dashboard) deleteRule(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "slug")
	reach, err := d.Store.RuleReach(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	name := d.ruleNames(r.Context(), v.actor().TenantID()).Of(slug)
	if err := d.Store.DeleteRule(r.Context(), v.actor(), slug, f.match()); err != nil {
		return d.refusedOnRule(w, r, v, f, err)
	}
	said := "Rule “" + name + "” deleted."
	if len(reach.Plans) > 0 || reach.Overrides > 0 {
		said += " Undo restores it without its plan limits and overrides."
	}
	return d.doneWith(w, r, "/rules", said, newUndo(ruleURL(slug)+"/restore", "deleted", "1"))
}

// refusedOnRule shows a rule again, with the errors of the form on its page.
func (d *dashboard) refusedOnRule(w http.ResponseWriter, r *http.Request, v *visit, f *form, err error) error {
	if errors.Is(err, tenants.ErrPreconditionFailed) {
		f.problem = "Nothing changed. Somebody else changed this rule after you opened the page. The page shows the current rule: review it, then try again."
		return d.showRule(w, r, v, f, http.StatusPreconditionFailed)
	}
	status := f.refuse(err)
	if status == 0 {
		return err
	}
	for _, e := range f.stray() {
		f.problem += sentence(e.Field+" "+e.Message) + " " + e.FormFix()
	}
	return d.showRule(w, r, v, f, status)
}

// AllowedBy names the plans with which requests over the limit are allowed.
func (v *ruleView) AllowedBy() string {
	plans := "plan "
	if len(v.Allowing) > 1 {
		plans = "plans "
	}
	return "With the " + plans + listed(v.Allowing) + ", they are allowed, and the excess is counted."
}
