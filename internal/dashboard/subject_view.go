package dashboard

import (
	"cmp"
	"context"
	"maps"
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
	plans             planNames
	Next              []tenants.ScheduledPlan // scheduled changes of the plan
	NextPlanAt        *time.Time              // of the one that the form replaces; nil: there is none
	Grace             []tenants.GracePeriod   // after failed payments
	Limits            []limitView
	Hidden            []hiddenView
	All               bool         // show every limit
	Asked             []askedValue // values besides the subject that some rules count by
	Overrides         []overrideView
	Credits           []creditView
	Denied            []decisionRow // recent denials, newest first
	AllDenied         bool          // there may be more of them
	Watching          watching      // whose denials these are
	Trail             []trailLine
	Degraded, AnyRule bool

	sentForms
	Tab         string
	Period      period
	Chart       chart
	Log         bool // logarithmic scales
	now         time.Time
	DeniedSince time.Time // when the present denials began; zero if that is not known
	Freed       time.Time // the last change or reset of the subject: earlier denials say nothing any more
	Totals      []subjectTotal
	Metered     []subjectMetered

	Seen   *subjectSeen // nil: read after the page
	Unseen bool         // nothing is known about the subject
	Meant  *seenSubject // with a similar name; nil if there is none
	open   string       // the action whose form is open at the start

	chosenPlan string // the plan that the address names for the form for another plan; "" for none

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

// rows returns how many limits the page names: in its tables, and in the choices of its forms.
func (view *subjectView) rows() int { return len(view.Limits) + len(view.Hidden) }

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
	fragment := "fragment=limits"
	if view.Unseen {
		fragment += "&unseen=1"
	}
	if !strings.Contains(here, "?") {
		return here + "?" + fragment
	}
	return here + "&" + fragment
}

// RuleOptions returns the rules under which the subject has a limit.
func (view *subjectView) RuleOptions() (out []option) {
	for _, l := range view.Limits {
		out = append(out, option{l.Rule, l.Name + ": " + l.Number})
	}
	return out
}

// ResetOptions returns the choices of the reset form. Without a limit that denies, none is chosen:
// a reset that nobody chose would give away paid quota.
func (view *subjectView) ResetOptions() []option {
	options := append(view.RuleOptions(), option{resetAll, "All limits of this subject"})
	if view.FirstDenying() == "" {
		return append([]option{{"", "Choose limits"}}, options...)
	}
	return options
}

// CreditOptions returns those of the rules for which credits can be granted.
func (view *subjectView) CreditOptions() (out []option) {
	for _, l := range view.Limits {
		if l.Spends {
			out = append(out, option{l.Rule, l.Name + ": " + l.Number})
		}
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
	Credits                        string
	Spends                         bool // checks can spend credits beyond the limit
	Whole                          string
	Denies                         bool // it would deny a check of cost 1 now
	waitMS                         int64
}

// Used returns the usage in thousandths of the limit.
func (l *limitView) Used() int64 { return 1000 - l.Left }

// UsedText returns the same in words.
func (l *limitView) UsedText() string { return l.UsedCount() + " used" }

// UsedCount is the same for a column with the title "Used".
func (l *limitView) UsedCount() string {
	return grouped(max(l.Quota-l.Remaining, 0)+l.Overage) + " of " + grouped(l.Quota)
}

// Source says where the limit comes from in few words: "plan free". It is "" for the rule itself.
func (l *limitView) Source() string {
	if text := strings.TrimPrefix(l.Origin, "from "); text != "the rule" {
		return "· " + strings.TrimPrefix(text, "an ")
	}
	return ""
}

// State is the note without the time, which the last column has.
func (l *limitView) State() string {
	state, _, _ := strings.Cut(l.Note, " for ")
	return state
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

// PlanName returns the name of the plan.
func (view *subjectView) PlanName() string { return view.plans.Of(view.Plan) }

// AfterGrace returns the name of the plan after a grace period.
func (view *subjectView) AfterGrace(g tenants.GracePeriod) string {
	return nameOr(view.plans.Of(g.FallbackPlan), "the default plan")
}

// OverPath returns the address of what the subject would be over with another plan.
func (view *subjectView) OverPath() string { return view.Path + "?fragment=over" }

// FirstPlan returns the plan that the form for another one starts with: the one that the address
// names, if it exists, or else the plan of the subject.
func (view *subjectView) FirstPlan() string {
	if view.choosesPlan() {
		return view.chosenPlan
	}
	return view.OwnPlan
}

// OverTrigger says when the form shows what the subject would be over: when somebody chooses a
// plan, and from the start if the address names one.
func (view *subjectView) OverTrigger() string {
	if view.choosesPlan() {
		return "load, change from:#plan-plan"
	}
	return "change from:#plan-plan"
}

func (view *subjectView) choosesPlan() bool {
	return view.chosenPlan != "" && slices.ContainsFunc(view.Plans, func(o option) bool { return o.Value == view.chosenPlan })
}

// nextPlan is a scheduled change of the plan.
type nextPlan struct{ Text, EventPath string } // EventPath "": the subject itself is scheduled

// NextPlans returns the scheduled changes in words.
func (view *subjectView) NextPlans() (out []nextPlan) {
	for _, n := range view.Next {
		name := view.plans.Of(n.NextPlan)
		if n.NextPlan == n.Plan {
			name += ", newest version,"
		}
		out = append(out, nextPlan{name + " at " + spoken(n.At, "minute"), planEventPath(n.Event)})
	}
	return out
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

// opensMore reports whether an action of the menu is open.
func (view *subjectView) opensMore(ctx context.Context) bool {
	for _, do := range []string{"override", doLink, "details", "delete"} {
		if view.open == do || view.Sent(do).invalid() {
			return true
		}
	}
	for _, state := range []string{"exempt", "active"} {
		if state != "active" || view.State == "exempt" { // otherwise the button is outside of the menu
			if view.open == state || view.SentFor("state", "state", state).invalid() {
				return true
			}
		}
	}
	for _, name := range []string{"Set override", "Exempt", "Copy customer link", "Edit details", "Delete registration"} {
		if opens(ctx, actionName(name)) {
			return true
		}
	}
	return false
}

// SeenPath returns the address of the part that says when checks were seen.
func (view *subjectView) SeenPath() string { return view.Path + "?fragment=seen" }

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

func (view *subjectView) fill(limits check.SubjectLimits, asked map[string]string) {
	view.State, view.Plan, view.Degraded = limits.State.String(), limits.Plan, limits.Degraded
	view.AnyRule = len(limits.Rules)+len(limits.Hidden) > 0
	for i := range limits.Rules {
		view.Limits = append(view.Limits, limitViewOf(&limits.Rules[i], view.plans))
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
		name, _ := limit.AttributeOf(field)
		view.Asked = append(view.Asked, askedValue{field, name, asked[field]})
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
			names[i], _ = limit.AttributeOf(m)
		}
		return "is also counted per " + strings.Join(names, ", ") + ": enter a value to see it"
	}
	return string(h.Reason)
}

func limitViewOf(r *check.RuleDecision, plans planNames) limitView {
	l := limitView{
		Rule: r.Rule.Slug, Name: nameOr(r.Rule.Name, r.Rule.Slug), Origin: originText(r.Source, plans), Unlimited: r.Unlimited,
		Uncounted: r.Uncounted, Remaining: r.Remaining, Quota: r.Quota, Overage: r.Overage,
		Spends: r.Rule.SpendsCredits(),
	}
	if r.HasCredits && !r.Degraded {
		l.Credits = plural(r.Credits, "credit", "credits") + " left"
		if r.Unopened { // this read has them opened
			l.Credits = "credits not read yet: reload the page"
		}
	}
	l.Number = limitText(r.Rule, limit.Limit{Limit: r.Limit, Burst: r.Burst, Unlimited: r.Unlimited})
	switch {
	case r.Unlimited:
		return l
	case r.Uncounted:
		l.Note, l.Tone = "Not known", "warn"
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
		l.Whole = "now"
		if r.ResetAfterMS > 0 {
			l.Whole = "in " + short(time.Duration(r.ResetAfterMS)*time.Millisecond)
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
