package dashboard

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// subjectView shows one customer on one page.
type subjectView struct {
	Subject, Path     string
	Query             string // the requested values, as in the address
	Registered        bool
	Version           int64
	State, Plan       string // as checks see them
	OwnPlan           string // slug, "": none
	Plans             []option
	Labels            []string
	LabelLines        string
	BillingRef        string
	CycleAnchor       *time.Time
	NextPlan          string // slug; "": no change is scheduled
	NextPlanAt        *time.Time
	Limits            []limitView
	Hidden            []hiddenView
	All               bool         // show every limit
	Asked             []askedValue // values besides the subject that some rules count by
	Overrides         []overrideView
	Denied            []decisionRow // recent denials, newest first
	Watching          watching      // whose denials these are
	Trail             []trailLine
	Degraded, AnyRule bool

	sentForms
	Unseen bool         // nothing is known about the subject
	Meant  *seenSubject // with a similar name; nil if there is none
	open   string       // the action whose form is open at the start

	Customer customerView
}

// Here returns the address of the page with the counters that it shows.
func (view *subjectView) Here() string {
	if view.Query == "" {
		return view.Path
	}
	return view.Path + "?" + view.Query
}

// mostLimits is how many limits, and how many rules that do not apply, are shown by default.
const mostLimits = 100

// Shown returns the limits to show: if there are many, those with the least left. more is the
// number of the others.
func (view *subjectView) Shown() (shown []limitView, more int) {
	if view.All || len(view.Limits) <= mostLimits {
		return view.Limits, 0
	}
	shown = slices.Clone(view.Limits)
	slices.SortStableFunc(shown, func(a, b limitView) int { return cmp.Compare(a.rank(), b.rank()) })
	return shown[:mostLimits], len(shown) - mostLimits
}

// rank orders limits by what is left of them, in thousandths.
func (l *limitView) rank() int64 {
	switch {
	case l.Denies:
		return -1
	case l.Unlimited:
		return 1001
	}
	return l.Left
}

// ShownHidden returns the rules to show that do not apply.
func (view *subjectView) ShownHidden() (shown []hiddenView, more int) {
	if view.All || len(view.Hidden) <= mostLimits {
		return view.Hidden, 0
	}
	return view.Hidden[:mostLimits], len(view.Hidden) - mostLimits
}

// WithAll returns the address of the page with every limit.
func (view *subjectView) WithAll() string {
	if view.Query == "" {
		return view.Path + "?show=all"
	}
	return view.Path + "?" + view.Query + "&show=all"
}

// Live returns the address of the live part.
func (view *subjectView) Live() string {
	here := view.Here()
	if view.All {
		here = view.WithAll()
	}
	if !strings.Contains(here, "?") {
		return here + "?fragment=limits"
	}
	return here + "&fragment=limits"
}

// Denying returns the limits that deny the subject now, longest wait first.
func (view *subjectView) Denying() (out []limitView) {
	for _, l := range view.Limits {
		if l.Denies {
			out = append(out, l)
		}
	}
	slices.SortStableFunc(out, func(a, b limitView) int { return cmp.Compare(b.waitMS, a.waitMS) })
	return out
}

// DeniedElsewhere returns the last denial by a rule that does not count by the subject alone, if
// that is the latest denial: the numbers below do not show it.
func (view *subjectView) DeniedElsewhere() *decisionRow {
	if len(view.Denied) == 0 {
		return nil
	}
	last := &view.Denied[0]
	if slices.ContainsFunc(view.Hidden, func(h hiddenView) bool { return h.Rule == last.Rule }) {
		return last
	}
	return nil
}

// RuleOptions returns the rules under which the subject has a limit.
func (view *subjectView) RuleOptions() (out []option) {
	for _, l := range view.Limits {
		out = append(out, option{l.Rule, l.Name + ": " + l.Number})
	}
	return out
}

type trailLine struct {
	At                moment
	Who, What, Reason string
}

// limitView is the state of one limit.
type limitView struct {
	Rule, Name, Origin, Note, Tone string
	Number                         string
	Unlimited, Uncounted           bool
	Remaining, Quota, Overage      int64
	Left                           int64 // of 1000
	Whole                          string
	Denies                         bool // it would deny a check of cost 1 now
	waitMS                         int64
}

// formName is the form that ?open= names: a state or the verb that sets it.
func formName(open string) string {
	switch open {
	case "block":
		return "blocked"
	case "unblock":
		return "active"
	}
	return open
}

// FirstDenying is the slug of the rule that denies for the longest time, or "".
func (view *subjectView) FirstDenying() string {
	if denying := view.Denying(); len(denying) > 0 {
		return denying[0].Rule
	}
	return ""
}

// WhyDenied says which limits deny, and when the next request is allowed.
func (view *subjectView) WhyDenied() string {
	denying := view.Denying()
	names := make([]string, len(denying))
	for i := range denying {
		names[i] = denying[i].Name
	}
	text := "Denied by " + listed(names) + "."
	if wait := denying[0].waitMS; wait > 0 {
		text += " Next request allowed in " + short(time.Duration(wait)*time.Millisecond) + "."
	}
	return text
}

// Used returns the usage in thousandths of the limit.
func (l *limitView) Used() int64 { return 1000 - l.Left }

// UsedText returns the same in words.
func (l *limitView) UsedText() string {
	return grouped(max(l.Quota-l.Remaining, 0)+l.Overage) + " of " + grouped(l.Quota) + " used"
}

// Over returns the class of the part of the meter beyond its mark: "" if the limit denies nothing.
func (l *limitView) Over() string {
	switch {
	case l.Denies:
		return "denied"
	case l.Tone == "shadow" && l.waitMS > 0:
		return "shadow"
	}
	return ""
}

type hiddenView struct{ Rule, Name, Why string }

// NameOf returns the name of a rule by its slug.
func (view *subjectView) NameOf(slug string) string {
	for i := range view.Limits {
		if view.Limits[i].Rule == slug {
			return view.Limits[i].Name
		}
	}
	for _, h := range view.Hidden {
		if h.Rule == slug {
			return h.Name
		}
	}
	return slug
}

type askedValue struct{ Field, Name, Value string }

type overrideView struct {
	Rule, Limit, Reason, By, State, Tone string
	Starts, Ends                         *moment
	Removable                            bool // by this person
}

// subject shows any subject, registered or not, because counters need no registration.
func (d *dashboard) subject(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, err := subjectOf(r)
	if err != nil {
		return err
	}
	return d.showSubject(w, r, v, name, http.StatusOK, &form{})
}

// subjectOf returns the subject in the path.
func subjectOf(r *http.Request) (string, error) {
	name, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/subjects/"))
	if err != nil || limit.ValidName(name) != nil {
		return "", tenants.ErrNotFound
	}
	return name, nil
}

// showSubject shows a subject's page, including a refused form. With fragment=limits it returns
// only the live part.
func (d *dashboard) showSubject(w http.ResponseWriter, r *http.Request, v *visit, name string, status int, f *form) error {
	query := r.URL.Query()
	values, asked, err := countedValues(name, query)
	if err != nil {
		return err
	}
	policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	view := subjectView{Subject: name, Path: subjectURL(name), Query: askedQuery(asked), All: query.Get("show") == "all", sentForms: sentForms{f}, open: formName(query.Get("open"))}
	view.fill(d.Checker.Inspect(r.Context(), policy, values), asked)
	if query.Get("fragment") == "limits" {
		return d.render(w, r, status, liveLimits(v.frame, &view))
	}
	if err := d.readSubject(r.Context(), v, &view); err != nil {
		return err
	}
	if err := d.lookFor(r.Context(), v, &view); err != nil {
		return err
	}
	if view.Customer, err = d.readCustomer(r, v, name); err != nil {
		return err
	}
	v.frame.Title = name
	return d.render(w, r, status, subjectPage(v.frame, &view))
}

// lookFor finds out whether an unregistered subject without usage was ever seen, and otherwise
// which similar one may be meant.
func (d *dashboard) lookFor(ctx context.Context, v *visit, view *subjectView) error {
	if view.Registered || slices.ContainsFunc(view.Limits, func(l limitView) bool { return l.Used() > 0 && !l.Unlimited && !l.Uncounted }) {
		return nil
	}
	seen, err := d.seenSubjects(ctx, v.actor())
	if err != nil {
		return err
	}
	if view.Unseen = !slices.ContainsFunc(seen, func(s seenSubject) bool { return s.Name == view.Subject }); view.Unseen {
		view.Meant = similar(seen, view.Subject)
	}
	return nil
}

// readSubject reads the stored subject into its view.
func (d *dashboard) readSubject(ctx context.Context, v *visit, view *subjectView) error {
	registered, err := d.Store.SubjectByName(ctx, v.actor(), view.Subject)
	switch {
	case err == nil:
		view.Registered, view.OwnPlan, view.Version = true, registered.Plan, registered.Version
		view.CycleAnchor, view.NextPlan, view.NextPlanAt = registered.CycleAnchor, registered.NextPlan, registered.NextPlanAt
		view.BillingRef, view.Labels, view.LabelLines = registered.BillingRef, labelTexts(registered.Labels), labelLines(registered.Labels)
		for _, o := range registered.Overrides {
			view.Overrides = append(view.Overrides, overrideViewOf(&o, v))
		}
	case !errors.Is(err, tenants.ErrNotFound):
		return err
	}
	if view.Plans, err = d.planOptions(ctx, v, "Default plan"); err != nil {
		return err
	}
	view.Denied, view.Watching = d.recentDenials(ctx, v.actor().TenantID(), view.Subject, mostSubjectDenied)
	entries, _, err := d.Store.Audit(ctx, v.actor(), tenants.AuditFilter{Kind: "subject", Target: view.Subject}, tenants.Page{Limit: mostSubjectAudit})
	names := d.ruleNames(ctx, v.actor().TenantID())
	for i := range entries {
		e := &entries[i]
		what := subjectVerb(e, fieldChanges(e.Before, e.After), names)
		if what == "" {
			what = auditVerb(e)
		}
		view.Trail = append(view.Trail, trailLine{At: moment{e.At}, Who: e.ActorName, What: strings.TrimSuffix(strings.TrimSuffix(what, " for"), " of"), Reason: e.Reason})
	}
	return err
}

// mostSubjectDenied is how many recent denials a subject's page shows.
const mostSubjectDenied = 10

// mostSubjectAudit is how many rows of the trail a subject's page shows.
const mostSubjectAudit = 10

// askedQuery returns the requested values in the form for an address.
func askedQuery(asked map[string]string) string {
	values := url.Values{}
	for field, value := range asked {
		values.Set(field, value)
	}
	return values.Encode()
}

// labelLines returns the labels in the form for editing: one per line.
func labelLines(labels map[string]string) string { return strings.Join(labelTexts(labels), "\n") }

// countedValues reads the values besides the subject that a rule may count by: "resource" and
// "attributes.NAME".
func countedValues(subject string, query url.Values) (values check.Request, asked map[string]string, err error) {
	values, asked = check.Request{Subject: subject}, map[string]string{}
	for _, field := range slices.Sorted(maps.Keys(query)) {
		value := query.Get(field)
		name, isAttribute := strings.CutPrefix(field, "attributes.")
		if value == "" || field != "resource" && !isAttribute {
			continue
		}
		problem := limit.ValidName(value)
		switch {
		case isAttribute && !limit.ValidAttributeName(name):
			return values, nil, invalidField(field, limit.Wrong("Rename the attribute.", "is not a valid attribute name"))
		case problem != nil:
			return values, nil, invalidField(field, problem)
		case len(values.Attributes) == limit.MaxAttributes:
			return values, nil, invalidField(field, limit.Wrong("Remove attributes.", "exceeds the number of attributes"))
		}
		asked[field] = value
		if isAttribute {
			values.Attributes = append(values.Attributes, check.Attribute{Name: name, Value: value})
		} else {
			values.Resource = value
		}
	}
	return values, asked, nil
}

func (view *subjectView) fill(limits check.SubjectLimits, asked map[string]string) {
	view.State, view.Plan, view.Degraded = limits.State.String(), limits.Plan, limits.Degraded
	view.AnyRule = len(limits.Rules)+len(limits.Hidden) > 0
	for i := range limits.Rules {
		view.Limits = append(view.Limits, limitViewOf(&limits.Rules[i]))
	}
	fields := map[string]bool{}
	for field := range asked {
		fields[field] = true
	}
	for _, h := range limits.Hidden {
		view.Hidden = append(view.Hidden, hiddenView{h.Rule.Slug, nameOr(h.Rule.Name, h.Rule.Slug), whyHidden(&h)})
		for _, field := range h.Missing {
			fields[field] = true
		}
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		view.Asked = append(view.Asked, askedValue{field, strings.TrimPrefix(field, "attributes."), asked[field]})
	}
}

func whyHidden(h *check.HiddenRule) string {
	switch h.Reason {
	case check.ModeOff:
		return "is off"
	case check.ResourceMismatch:
		return "is not for this resource"
	case check.NotBySubject:
		return "is not counted per subject: subjects share its counter"
	case check.MissingValues:
		names := make([]string, len(h.Missing))
		for i, m := range h.Missing {
			names[i] = strings.TrimPrefix(m, "attributes.")
		}
		return "is also counted per " + strings.Join(names, ", ") + ": enter a value to see it"
	}
	return string(h.Reason)
}

func limitViewOf(r *check.RuleDecision) limitView {
	l := limitView{
		Rule: r.Rule.Slug, Name: nameOr(r.Rule.Name, r.Rule.Slug), Origin: originText(r.Source), Unlimited: r.Unlimited,
		Uncounted: r.Uncounted, Remaining: r.Remaining, Quota: r.Quota, Overage: r.Overage,
	}
	l.Number = limitText(r.Rule, limit.Limit{Limit: r.Limit, Burst: r.Burst, Unlimited: r.Unlimited})
	switch {
	case r.Unlimited:
		return l
	case !r.Allowed:
		l.Denies, l.waitMS = r.Mode == limit.Enforce, r.RetryAfterMS
		l.Note, l.Tone = "Denying", "bad"
		if r.RetryAfterMS > 0 {
			l.Note = "Denying for " + short(time.Duration(r.RetryAfterMS)*time.Millisecond)
		}
		if r.Penalized {
			l.Note += ", penalty"
		}
	}
	if r.Mode == limit.Shadow {
		l.Note, l.Tone = strings.Replace("Shadow, "+l.Note, "Shadow, Denying", "Shadow, would deny", 1), "shadow"
		l.Note = strings.TrimSuffix(l.Note, ", ")
	}
	if !r.Uncounted {
		l.Whole = "Fully available"
		if r.ResetAfterMS > 0 {
			l.Whole = "Fully available in " + short(time.Duration(r.ResetAfterMS)*time.Millisecond)
		}
		l.Left = int64(1000 * float64(r.Remaining) / float64(max(r.Quota, 1)))
	}
	if l.Note == "" && r.Overage > 0 {
		l.Note, l.Tone = "Overage "+grouped(r.Overage), "warn"
	}
	if l.Note == "" && r.Warning {
		l.Note, l.Tone = "Warning, beyond "+r.WarnAt.Percent(), "warn"
	}
	if l.Note == "" && l.Left <= 200 && !r.Uncounted && l.Left > 0 {
		l.Note, l.Tone = "Near limit", "warn"
	}
	return l
}

func overrideViewOf(o *tenants.Override, visit *visit) overrideView {
	now := visit.now
	v := overrideView{
		Rule: o.Rule, Limit: plainLimit(o.Limit), Reason: o.Reason, By: o.CreatedBy, State: "active", Tone: "good",
		Starts: momentOf(o.StartsAt), Ends: momentOf(o.ExpiresAt),
		Removable: visit.frame.May.Edit || visit.frame.May.Boost && o.ExpiresAt != nil,
	}
	switch {
	case o.ExpiresAt != nil && !o.ExpiresAt.After(now):
		v.State, v.Tone = "over", ""
	case o.StartsAt != nil && o.StartsAt.After(now):
		v.State, v.Tone = "scheduled", "warn"
	}
	return v
}
