package dashboard

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// subjectAction changes a subject, and returns the message about it. Errors of the input are added
// to the form.
type subjectAction struct {
	right tenants.Right
	do    func(d *dashboard, ctx context.Context, s *subjectChange) (said string, err error)
}

// subjectChange is one action on one subject.
type subjectChange struct {
	*form
	visit   *visit
	subject string
	values  check.Request // select the counters
	reason  string
	undo    []string // fields of the form that undoes the action, as newUndo takes them; nil: none does
}

// actReset is the action of the reset form.
const actReset = "reset"

// resetAll is the choice of the reset form for all limits. No rule has this slug.
const resetAll = "*"

// doLink is the action that creates a customer link. It needs no reason.
const doLink = "link"

var subjectActions = map[string]subjectAction{
	actReset:          {tenants.MayReset, (*dashboard).resetSubject},
	"boost":           {tenants.MayBoost, (*dashboard).boostSubject},
	"override":        {tenants.MayEdit, (*dashboard).overrideSubject},
	"remove-override": {tenants.MayBoost, (*dashboard).removeOverride},
	"plan":            {tenants.MayEdit, (*dashboard).planSubject},
	"cancel-plan":     {tenants.MayEdit, (*dashboard).cancelPlan},
	doGrant:           {tenants.MayEdit, (*dashboard).grantCredits},
	doRevoke:          {tenants.MayEdit, (*dashboard).revokeCredits},
	"state":           {tenants.MayEdit, (*dashboard).stateSubject},
	"details":         {tenants.MayEdit, (*dashboard).detailSubject},
	"delete":          {tenants.MayEdit, (*dashboard).deleteSubject},
}

// actOnSubject executes a form of a subject's page.
func (d *dashboard) actOnSubject(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	name, err := subjectOf(r)
	if err != nil {
		return err
	}
	switch f.Get("do") {
	case doLink:
		return d.createLink(w, r, v, f, name)
	case "revoke-link":
		return d.revokeLink(w, r, v, f, name)
	}
	action, known := subjectActions[f.Get("do")]
	if !known {
		return errForm
	}
	if !v.actor().May(action.right) {
		return tenants.ErrForbidden
	}
	values, asked, err := countedValues(name, r.URL.Query())
	if err != nil {
		return err
	}
	if slices.Contains([]string{"boost", "override", doGrant}, f.Get("do")) && f.Get("rule") == "" {
		f.wrong("rule", isRequired)
	}
	change := &subjectChange{form: f, visit: v, subject: name, values: values, reason: f.reason()}
	status, said := http.StatusUnprocessableEntity, ""
	if !f.invalid() {
		said, err = action.do(d, tenants.WithReason(r.Context(), change.reason), change)
		if refused := f.refuse(err); refused != 0 {
			status, err = refused, nil
		}
	}
	switch {
	case errors.Is(err, check.ErrCountersUnavailable):
		f.problem = "Redis is unavailable. Some limits may have been reset. Try again."
		return d.showSubject(w, r, v, name, http.StatusServiceUnavailable, f)
	case err != nil:
		return err
	case f.invalid():
		return d.showSubject(w, r, v, name, status, f)
	}
	back := subjectView{Path: subjectURL(name), Query: askedQuery(asked)}
	if change.undo == nil {
		return d.done(w, r, back.Here(), said)
	}
	return d.doneWith(w, r, back.Here(), said, newUndo(back.Here(), change.undo...))
}

// overrideNow returns the override of the subject for a rule; nil if there is none, or if it has
// ended.
func (d *dashboard) overrideNow(ctx context.Context, s *subjectChange, rule string) (*tenants.Override, error) {
	registered, err := d.Store.SubjectByName(ctx, s.visit.actor(), s.subject)
	if errors.Is(err, tenants.ErrNotFound) {
		return nil, nil
	}
	for i := range registered.Overrides {
		o := &registered.Overrides[i]
		if o.Rule == rule && (o.ExpiresAt == nil || o.ExpiresAt.After(s.visit.now)) {
			return o, err
		}
	}
	return nil, err
}

// undoOverride makes the action undo what it does to the override of a rule: it sets the previous
// one again, or removes the new one.
func (s *subjectChange) undoOverride(rule string, before *tenants.Override) {
	switch {
	case before == nil:
		s.undo = []string{"do", "remove-override", "rule", rule, "reason", undoReason}
	case s.visit.actor().May(tenants.MayEdit):
		s.undo = overrideFields(before)
	}
}

// resetSubject resets the limits of the subject: those of the rules in the form, or all of them.
func (d *dashboard) resetSubject(ctx context.Context, s *subjectChange) (string, error) {
	rules := append(s.form.words("rules", limit.MaxRules, unicode.IsSpace), s.form.values["rule"]...)
	if len(rules) == 0 || slices.Contains(rules, "") {
		s.wrong("rule", limit.Wrong("Choose a limit, or all limits.", "is required"))
		return "", nil
	}
	if slices.Contains(rules, resetAll) {
		rules = nil // as Checker.Reset names all rules
	}
	policy, err := d.Policies.Get(ctx, s.visit.actor().TenantID())
	if err != nil {
		return "", err
	}
	attributes := map[string]string{}
	for _, a := range s.values.Attributes {
		attributes[a.Name] = a.Value
	}
	why := tenants.Reset{Subject: s.subject, Resource: s.values.Resource, Attributes: attributes, Reason: s.reason}
	var slugs []string
	err = d.Store.RecordReset(ctx, s.visit.actor(), why, func(ctx context.Context) ([]string, error) {
		var err error
		slugs, _, err = d.Checker.Reset(ctx, policy, rules, s.values)
		return slugs, err
	})
	var uncounted *check.UncountedError
	switch {
	case errors.As(err, &uncounted):
		s.wrong("rule", limit.Wrong("Choose a rule that is counted per subject.", "has no counter for this subject"))
		return "", nil
	case err != nil:
		return "", err
	case len(slugs) == 0:
		return "Nothing to reset: no rule is counted per subject.", nil
	}
	for i := range slugs {
		slugs[i] = d.ruleName(ctx, s, slugs[i])
	}
	return "Limits of " + s.subject + " reset: " + strings.Join(slugs, ", ") + ".", nil
}

// The multiples and durations of a boost.
var (
	boostFactors = []option{{"2", "2 times the limit"}, {"5", "5 times the limit"}, {"10", "10 times the limit"}, {"", "Other limit"}}
	boostTimes   = []option{{"1h", "1 hour"}, {"4h", "4 hours"}, {"1d", "1 day"}, {"7d", "7 days"}, {"30d", "30 days"}}
)

// boostSubject raises a limit of the subject for some time.
func (d *dashboard) boostSubject(ctx context.Context, s *subjectChange) (string, error) {
	lim, err := d.boosted(ctx, s)
	length, badLength := limit.ParseDuration(s.Get("for"))
	if badLength != nil || !slices.ContainsFunc(boostTimes, func(o option) bool { return o.Value == s.Get("for") }) {
		s.wrong("for", oneOfTheList)
	}
	if err != nil || s.invalid() {
		return "", err
	}
	ends := s.visit.now.Add(time.Duration(length.MS) * time.Millisecond)
	o := tenants.Override{Rule: s.Get("rule"), Limit: lim, Reason: s.reason, ExpiresAt: &ends}
	before, err := d.overrideNow(ctx, s, o.Rule)
	if err != nil {
		return "", err
	}
	s.undoOverride(o.Rule, before)
	if _, _, err = d.Store.PutOverride(ctx, s.visit.actor(), s.subject, o, tenants.Match{}); errors.Is(err, tenants.ErrNotFound) {
		s.wrong("rule", limit.Wrong("Choose another rule.", "no longer exists"))
		return "", nil
	}
	return "Limit of " + s.subject + " under " + d.ruleName(ctx, s, o.Rule) + " boosted to " + plainLimit(lim) + " for " + inWords(ends.Sub(s.visit.now)) + ".", err
}

// boosted returns the limit of a boost: a multiple of the current one, or another.
func (d *dashboard) boosted(ctx context.Context, s *subjectChange) (limit.Limit, error) {
	if s.Get("factor") == "" {
		return limit.Limit{Limit: s.integer("limit")}, nil
	}
	factor := s.integer("factor")
	if !slices.ContainsFunc(boostFactors, func(o option) bool { return o.Value == s.Get("factor") }) {
		s.wrong("factor", oneOfTheList)
		return limit.Limit{}, nil
	}
	policy, err := d.Policies.Get(ctx, s.visit.actor().TenantID())
	if err != nil {
		return limit.Limit{}, err
	}
	for _, r := range d.Checker.InspectRule(ctx, policy, s.Get("rule"), s.values).Rules {
		switch {
		case r.Unlimited:
			s.wrong("rule", limit.Wrong("Choose another rule.", "is already unlimited for this subject"))
			return limit.Limit{}, nil
		case r.Limit > math.MaxInt64/factor || r.Burst > math.MaxInt64/factor:
			s.wrong("factor", limit.Wrong("Choose a smaller factor.", "makes the limit too large"))
			return limit.Limit{}, nil
		default:
			return limit.Limit{Limit: r.Limit * factor, Burst: r.Burst * factor}, nil
		}
	}
	s.wrong("rule", limit.MustBe("a rule that is counted per subject"))
	return limit.Limit{}, nil
}

// overrideSubject sets a limit of the subject for one rule.
func (d *dashboard) overrideSubject(ctx context.Context, s *subjectChange) (string, error) {
	o := tenants.Override{
		Rule: s.Get("rule"), Reason: s.reason, StartsAt: s.instant("starts_at"), ExpiresAt: s.instant("expires_at"),
		Limit: limit.Limit{Unlimited: s.Checked("unlimited", false)},
	}
	if !o.Limit.Unlimited {
		o.Limit.Limit = s.integer("limit")
		if s.Get("burst") != "" {
			o.Limit.Burst = s.integer("burst")
		}
	}
	if s.invalid() {
		return "", nil
	}
	before, err := d.overrideNow(ctx, s, o.Rule)
	if err != nil {
		return "", err
	}
	s.undoOverride(o.Rule, before)
	_, _, err = d.Store.PutOverride(ctx, s.visit.actor(), s.subject, o, tenants.Match{})
	if errors.Is(err, tenants.ErrNotFound) {
		s.wrong("rule", limit.MustBe("one of the tenant's rules"))
		return "", nil
	}
	return "Override of " + s.subject + " under " + d.ruleName(ctx, s, o.Rule) + " set to " + plainLimit(o.Limit) + ".", err
}

// removeOverride deletes the subject's limit.
func (d *dashboard) removeOverride(ctx context.Context, s *subjectChange) (string, error) {
	rule := s.Get("rule")
	before, err := d.overrideNow(ctx, s, rule)
	if err != nil {
		return "", err
	}
	if before != nil && s.visit.actor().May(tenants.MayEdit) {
		s.undo = overrideFields(before)
	}
	err = d.Store.DeleteOverride(ctx, s.visit.actor(), s.subject, rule, tenants.Match{})
	return "Override of " + s.subject + " under " + d.ruleName(ctx, s, rule) + " removed.", err
}

// editSubject changes the stored fields of the subject, and registers it if necessary.
func (d *dashboard) editSubject(ctx context.Context, s *subjectChange, m tenants.Match, edit func(*tenants.Subject) error) error {
	_, err := d.Store.EditSubject(ctx, s.visit.actor(), s.subject, m, edit)
	if !errors.Is(err, tenants.ErrNotFound) || len(m.Versions) > 0 {
		return err
	}
	fresh := tenants.Subject{Subject: s.subject}
	if err := edit(&fresh); err != nil {
		return err
	}
	_, _, err = d.Store.PutSubject(ctx, s.visit.actor(), fresh, tenants.Match{})
	return err
}

// The messages about a changed state.
var stateSaid = map[check.SubjectState]string{
	check.Active:  " is active.",
	check.Blocked: " is blocked. Every check is denied.",
	check.Exempt:  " is exempt. Its rules count and deny nothing.",
}

func (d *dashboard) stateSubject(ctx context.Context, s *subjectChange) (string, error) {
	state, err := check.ParseSubjectState(s.Get("state"))
	if err != nil {
		s.wrong("state", limit.ProblemOf(err))
		return "", nil
	}
	err = d.editSubject(ctx, s, tenants.Match{}, func(in *tenants.Subject) error {
		if in.State != state {
			s.undo = []string{"do", "state", "state", in.State.String(), "reason", undoReason}
		}
		in.State = state
		return nil
	})
	return s.subject + stateSaid[state], err
}

func (d *dashboard) detailSubject(ctx context.Context, s *subjectChange) (string, error) {
	labels, anchor := s.labels(), s.instant("cycle_anchor")
	if s.invalid() {
		return "", nil
	}
	err := d.editSubject(ctx, s, s.match(), func(in *tenants.Subject) error {
		in.Labels, in.BillingRef, in.CycleAnchor = labels, s.Get("billing_ref"), anchor
		return nil
	})
	return "Saved.", err
}

func (d *dashboard) deleteSubject(ctx context.Context, s *subjectChange) (string, error) {
	err := d.Store.DeleteSubject(ctx, s.visit.actor(), s.subject, tenants.Match{})
	return "Registration of " + s.subject + " deleted. Its counters are kept.", err
}

// anchorValue returns a cycle anchor in the form of an input.
func anchorValue(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000")
}

// labels reads labels, one per line, as "name: value".
func (f *form) labels() map[string]string {
	labels := map[string]string{}
	for _, line := range f.lines("labels", tenants.MaxLabels) {
		name, value, ok := strings.Cut(line.Text, ":")
		name = strings.TrimSpace(name)
		if _, twice := labels[name]; !ok || twice {
			f.wrong("labels", limit.MustBe("one “name: value” per line, each name once"))
		}
		labels[name] = strings.TrimSpace(value)
	}
	return labels
}

// instant parses a time in the form of browsers; nil if there is none. It is UTC, like all times on
// pages.
func (f *form) instant(name string) *time.Time {
	text := f.Get(name)
	if text == "" {
		return nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02T15:04:05.999", "2006-01-02 15:04", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return &t
		}
	}
	f.wrong(name, limit.MustBe("a time such as 2026-12-31 18:00"))
	return nil
}

// ruleName returns the name of a rule for a message.
func (d *dashboard) ruleName(ctx context.Context, s *subjectChange, slug string) string {
	return d.ruleNames(ctx, s.visit.actor().TenantID()).Of(slug)
}
