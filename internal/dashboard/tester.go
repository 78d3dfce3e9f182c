package dashboard

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	testerURL         = "/tester"
	attributeField    = "attributes." // prefix of a field for an attribute by which rules count
	maxTesterSkipped  = 50            // rules for other resources that are listed
	maxTesterSubjects = 20            // suggestions
)

// testerView is the form and, after it was sent, the result of every rule.
type testerView struct {
	Form       form
	Attributes []string // by which rules count
	Resources  []option // exact resources of rules
	Plans      []option
	Subjects   []option // suggested
	Verdict    *testerVerdict
}

// testerVerdict is a decision in words.
type testerVerdict struct {
	Subject, Headline, Tone string
	Details                 []string
	Degraded                bool
	Rules                   []testerRule
	Skipped                 []hiddenView // rules that were skipped
	Elsewhere               []hiddenView // rules for other resources
	MoreElsewhere           int
	Codes                   []codeSample
}

// testerRule is the result of one matching rule.
type testerRule struct {
	Slug, Name, Number, Origin, Sentence string
	Verdict, Tone                        string
	Decides                              bool
	Counted                              bool // Left and After are valid
	Left                                 int64
	LeftText, After                      string
}

// tester decides a check as a dry run, with the tenant's own rules and counters. It consumes
// nothing. The address contains the check, so that the page can be shared.
func (d *dashboard) tester(w http.ResponseWriter, r *http.Request, v *visit) error {
	policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	view := testerView{}
	view.offer(policy)
	if err := d.offerFromStore(r, v, &view); err != nil {
		return err
	}
	v.frame.Title = "Tester"
	query := r.URL.Query()
	d.slugsOfNames(r.Context(), v, &form{values: query})
	if !query.Has("subject") {
		return d.render(w, r, http.StatusOK, testerPage(v.frame, &view))
	}
	view.Form = form{values: query}
	request := view.Form.check(view.Attributes)
	if view.Form.invalid() {
		return d.render(w, r, http.StatusUnprocessableEntity, testerPage(v.frame, &view))
	}
	decisions, err := d.Checker.Check(r.Context(), policy, []check.Request{request})
	var unknown *check.UnknownPlanError
	if errors.As(err, &unknown) {
		view.Form.wrong("plan", limit.Wrong("Choose another plan.", "is not a plan of this tenant"))
		return d.render(w, r, http.StatusUnprocessableEntity, testerPage(v.frame, &view))
	}
	if err != nil {
		return err
	}
	view.Verdict = verdictOf(&decisions[0], d.planNames(r.Context(), v.actor()))
	view.Verdict.Codes = codeSamples(&request)
	return d.render(w, r, http.StatusOK, testerPage(v.frame, &view))
}

// offer collects the attributes and resources of rules.
func (view *testerView) offer(policy *check.Policy) {
	names, resources := map[string]bool{}, map[string]bool{}
	for rule := range policy.EachRule() {
		for _, name := range rule.Attributes() {
			names[name] = true
		}
		if !strings.HasSuffix(rule.Resource, "*") {
			resources[rule.Resource] = true
		}
	}
	view.Attributes, view.Resources = slices.Sorted(maps.Keys(names)), namedOnly(slices.Sorted(maps.Keys(resources)))
	view.Attributes = view.Attributes[:min(len(view.Attributes), limit.MaxAttributes)]
	view.Resources = view.Resources[:min(len(view.Resources), pageSize)]
}

func (d *dashboard) offerFromStore(r *http.Request, v *visit, view *testerView) error {
	plans, err := d.planOptions(r.Context(), v, "Plan of the subject")
	if err != nil {
		return err
	}
	if len(plans) > 1 {
		view.Plans = plans
	}
	view.Subjects, err = d.suggested(r, v)
	return err
}

// suggested returns registered subjects that begin with the typed text.
func (d *dashboard) suggested(r *http.Request, v *visit) (names []option, err error) {
	query := r.URL.Query()
	prefix := firstOf(query.Get("subject"), query.Get("q")) // of the page, and of a list of suggestions
	if prefix != "" && limit.ValidName(prefix) != nil {
		return nil, nil
	}
	subjects, _, err := d.Store.SubjectHeads(r.Context(), v.actor(), tenants.SubjectFilter{Prefix: prefix}, tenants.Page{Limit: maxTesterSubjects})
	if err != nil {
		return nil, err
	}
	for i := range subjects {
		names = append(names, subjectOption(&subjects[i]))
	}
	if prefix == "" {
		return names, nil
	}
	seen, err := d.seenSubjects(r.Context(), v.actor())
	for _, s := range matching(seen, prefix) {
		listed := slices.ContainsFunc(names, func(o option) bool { return o.Value == s.Name })
		if len(names) < maxTesterSubjects && !listed {
			names = append(names, option{s.Name, ""})
		}
	}
	return names, err
}

// subjectOption returns a subject to choose, with its label "name" as its name.
func subjectOption(s *tenants.Subject) option { return option{s.Subject, s.Labels["name"]} }

// testerSubjects answers the suggestions as the user types.
func (d *dashboard) testerSubjects(w http.ResponseWriter, r *http.Request, v *visit) error {
	names, err := d.suggested(r, v)
	if err != nil {
		return err
	}
	return d.render(w, r, http.StatusOK, suggestions(names))
}

// check reads the check of the form. Names are unchanged, including blanks.
func (f *form) check(attributes []string) check.Request {
	r := check.Request{Subject: f.values.Get("subject"), Resource: "default", Cost: 1, Plan: f.Get("plan"), DryRun: true, Explain: true}
	if r.Subject == "" {
		f.wrong("subject", isRequired)
	} else if problem := limit.ValidName(r.Subject); problem != nil {
		f.wrong("subject", problem)
	}
	if text := f.values.Get("resource"); text != "" {
		r.Resource = text
		if problem := limit.ValidName(text); problem != nil {
			f.wrong("resource", problem)
		}
	}
	if f.Get("cost") != "" {
		r.Cost = f.integer("cost")
		if r.Cost < 0 || r.Cost > limit.MaxFixedLimit {
			f.wrong("cost", limit.MustBe("from 0 to %s", grouped(limit.MaxFixedLimit)))
		}
	}
	for _, name := range attributes {
		if value := f.values.Get(attributeField + name); value != "" {
			f.attribute(&r, attributeField+name, name, value)
		}
	}
	for _, line := range f.lines("attributes", limit.MaxAttributes) {
		name, value, found := strings.Cut(line.raw, "=")
		if !found {
			f.wrong("attributes", limit.MustBe("lines of name=value"))
			continue
		}
		f.attribute(&r, "attributes", strings.TrimSpace(name), value)
	}
	return r
}

func (f *form) attribute(r *check.Request, field, name, value string) {
	problem := limit.ValidName(value)
	switch {
	case !limit.ValidAttributeName(name):
		f.wrong(field, limit.Wrong("Rename the attribute.", "must have names of 1 to 64 of A-Z, a-z, 0-9, _ . -"))
	case problem != nil:
		f.wrong(field, limit.Wrong("Correct the value of "+name+".", "must have values, each of which %s", problem.Message))
	case slices.ContainsFunc(r.Attributes, func(a check.Attribute) bool { return a.Name == name }):
		f.wrong(field, limit.Wrong(limit.Duplicate.Fix, "must contain %s only once", name))
	case len(r.Attributes) == limit.MaxAttributes:
		f.wrong(field, limit.Wrong("Remove attributes.", "must be at most %d in total", limit.MaxAttributes))
	default:
		r.Attributes = append(r.Attributes, check.Attribute{Name: name, Value: value})
	}
}

func verdictOf(d *check.Decision, plans planNames) *testerVerdict {
	v := &testerVerdict{Subject: d.Subject, Headline: "Allowed", Tone: "good", Degraded: d.Degraded}
	if !d.Allowed {
		v.Headline, v.Tone = "Denied", "bad"
	}
	v.Details = append(v.Details, whyDecided(d))
	if d.HasDelay && d.DelayMS > 0 {
		v.Details = append(v.Details, "Wait "+span(d.DelayMS)+" before you proceed: the rule is a queue.")
	}
	if d.Plan != "" {
		v.Details = append(v.Details, "Limits of plan "+plans.Of(d.Plan)+" apply, except where an override is set.")
	}
	for i := range d.Rules {
		v.Rules = append(v.Rules, testerRuleOf(d, i, plans))
	}
	slices.SortStableFunc(v.Rules, func(a, b testerRule) int { return b.rank() - a.rank() })
	for s := range d.EachSkipped() {
		switch s.Reason {
		case check.ResourceMismatch:
			if len(v.Elsewhere) == maxTesterSkipped {
				v.MoreElsewhere++
				continue
			}
			v.Elsewhere = append(v.Elsewhere, hiddenView{s.Rule.Slug, nameOr(s.Rule.Name, s.Rule.Slug), "is for " + resourceText(s.Rule.Resource)})
		default:
			v.Skipped = append(v.Skipped, hiddenView{s.Rule.Slug, nameOr(s.Rule.Name, s.Rule.Slug), whySkipped(&s)})
		}
	}
	return v
}

// rank sorts the deciding rule first, then denying rules.
func (r *testerRule) rank() (n int) {
	if r.Decides {
		n += 2
	}
	if r.Tone == "bad" {
		n++
	}
	return n
}

// whyDecided returns the reason of the decision as a sentence.
func whyDecided(d *check.Decision) string {
	if d.Code == check.SubjectBlocked {
		return "The subject is blocked. Every check is denied, regardless of the rules."
	}
	if d.Deciding < 0 {
		return "No enforced rule matches."
	}
	r := &d.Rules[d.Deciding]
	name := nameOr(r.Rule.Name, r.Rule.Slug)
	switch d.Code {
	case check.CostExceedsLimit:
		return "A cost of " + grouped(d.Cost) + " is never allowed: " + name + " allows at most " + grouped(r.MostCost()) + " units at once."
	case check.AttributeMissing:
		return "The check lacks " + d.Rules[d.Deciding].Missing + ", and " + name + " denies such checks."
	case check.CountersUnavailable:
		return "Redis is unavailable, and " + name + " denies all checks in that case."
	case check.NoCode:
		if d.Cost == 0 {
			return "A cost of 0 uses no units. The tightest rule is " + name + "."
		}
		return "Every matching rule allows the check. The tightest is " + name + "."
	}
	if r.Penalized {
		return name + " denies the check because of a penalty for an earlier denial. Retry after " + waitWords(r.RetryAfterMS) + "."
	}
	return name + " denies the check: " + plural(r.Remaining, "unit remains", "units remain") + ", and the cost is " + grouped(d.Cost) +
		". Retry after " + waitWords(r.RetryAfterMS) + "."
}

func waitWords(ms int64) string {
	if ms < 10_000 {
		return span(ms)
	}
	return inWords(time.Duration(ms) * time.Millisecond)
}

func testerRuleOf(d *check.Decision, i int, plans planNames) testerRule {
	r := &d.Rules[i]
	t := testerRule{
		Slug: r.Rule.Slug, Name: nameOr(r.Rule.Name, r.Rule.Slug), Origin: originText(r.Source, plans), Sentence: ruleSentence(r.Rule),
		Number:  limitText(r.Rule, limit.Limit{Limit: r.Limit, Burst: r.Burst, Unlimited: r.Unlimited}),
		Verdict: "allows", Decides: i == d.Deciding,
	}
	if !r.Allowed {
		t.Verdict, t.Tone = "denies", "bad"
		if r.Mode == limit.Shadow {
			t.Verdict, t.Tone = "shadow: would deny", "shadow"
		}
	} else if r.Mode == limit.Shadow {
		t.Verdict, t.Tone = "shadow: would allow", "shadow"
	}
	switch {
	case r.Unlimited:
		t.After = "Unlimited for this subject."
		return t
	case r.Missing != "":
		t.After = "Denies checks without " + r.Missing + "."
		return t
	case r.Uncounted:
		t.After = "Not counted: Redis is unavailable."
		return t
	}
	t.Counted, t.Left = true, int64(1000*float64(r.Remaining)/float64(max(r.Quota, 1)))
	t.LeftText = grouped(r.Remaining) + " of " + grouped(r.Quota) + " remaining"
	if d.Allowed && d.Cost > 0 {
		t.LeftText += " after this check"
	}
	switch {
	case r.CostExceeds:
		t.After = "The cost exceeds the limit."
	case !r.Allowed:
		t.After = "Retry after " + waitWords(r.RetryAfterMS) + "."
		if r.Penalized {
			t.After = "Penalty for another " + waitWords(r.RetryAfterMS) + "."
		}
	case r.ResetAfterMS > 0:
		t.After = "Fully available in " + waitWords(r.ResetAfterMS) + "."
	default:
		t.After = "Fully available."
	}
	if r.Overage > 0 {
		t.After += " Overage: " + plural(r.Overage, "unit", "units") + "."
	}
	if r.Warning {
		t.After += " Warning: more than " + r.WarnAt.Percent() + " used."
	}
	return t
}

func whySkipped(s *check.SkippedRule) string {
	switch s.Reason {
	case check.MissingAttribute:
		return "is counted per " + s.Attribute + ", which the check lacks"
	case check.ModeOff:
		return "is off"
	case check.BlockedSubject:
		return "is not evaluated: the subject is blocked"
	}
	return string(s.Reason)
}

func resourceText(pattern string) string {
	if prefix, isPrefix := strings.CutSuffix(pattern, "*"); isPrefix {
		return "resources that start with “" + prefix + "”"
	}
	return "“" + pattern + "”"
}
