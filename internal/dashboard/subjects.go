package dashboard

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/tenants"
)

type subjectRow struct {
	Subject, Plan, State string
	Labels               []string
	Overrides            int
}

type subjectsView struct {
	Prefix   string
	Subjects []subjectRow
	Next     string
	Later    bool
}

func (d *dashboard) subjects(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	view := subjectsView{Prefix: query.Get("q"), Later: query.Get("after") != ""}
	subjects, next, err := d.Store.Subjects(r.Context(), v.actor(), tenants.SubjectFilter{Prefix: view.Prefix},
		tenants.Page{Limit: pageSize, After: query.Get("after")})
	if err != nil {
		return err
	}
	if next != "" {
		values := url.Values{}
		if view.Prefix != "" {
			values.Set("q", view.Prefix)
		}
		view.Next = withCursor("/subjects", values, next)
	}
	for _, s := range subjects {
		view.Subjects = append(view.Subjects, subjectRow{
			Subject: s.Subject, Plan: s.Plan, State: s.State.String(), Labels: labelTexts(s.Labels), Overrides: len(s.Overrides),
		})
	}
	v.frame.Title = "Subjects"
	return d.render(w, r, http.StatusOK, subjectsPage(v.frame, &view))
}

func labelTexts(labels map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, key+": "+labels[key])
	}
	return out
}

// subjectView is one customer on one screen.
type subjectView struct {
	Subject, Path     string
	Registered        bool
	State, Plan       string // as checks see them
	OwnPlan           bool
	Labels            []string
	BillingRef        string
	Limits            []limitView
	Hidden            []hiddenView
	Asked             []askedValue // values that some rules count by beside the subject
	Overrides         []overrideView
	Degraded, AnyRule bool
}

// limitView is what is left under one rule.
type limitView struct {
	Rule, Name, Origin, Note, Tone string
	Number                         string
	Unlimited, Uncounted           bool
	Remaining, Quota               int64
	Left                           int64 // of 1000
	Whole                          string
}

type hiddenView struct{ Rule, Why string }

type askedValue struct{ Field, Name, Value string }

type overrideView struct {
	Rule, Limit, Reason, By, State, Tone string
	Starts, Ends                         *moment
}

// subject shows any subject, registered or not: it needs no registration to have counters.
func (d *dashboard) subject(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/subjects/"))
	if err != nil || check.ValidName(name) != "" {
		return tenants.ErrNotFound
	}
	values, asked, err := countedValues(name, r.URL.Query())
	if err != nil {
		return err
	}
	view := subjectView{Subject: name, Path: subjectURL(name)}
	registered, err := d.Store.SubjectByName(r.Context(), v.actor(), name)
	switch {
	case err == nil:
		view.Registered, view.OwnPlan, view.BillingRef = true, registered.Plan != "", registered.BillingRef
		view.Labels = labelTexts(registered.Labels)
		for _, o := range registered.Overrides {
			view.Overrides = append(view.Overrides, overrideViewOf(&o, v.now))
		}
	case !errors.Is(err, tenants.ErrNotFound):
		return err
	}
	policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	view.fill(d.Checker.Inspect(r.Context(), policy, values), asked)
	v.frame.Title = name
	return d.render(w, r, http.StatusOK, subjectPage(v.frame, &view))
}

// countedValues reads the values that a rule may count by beside the subject: "resource" and
// "attributes.NAME".
func countedValues(subject string, query url.Values) (values check.Request, asked map[string]string, err error) {
	values, asked = check.Request{Subject: subject}, map[string]string{}
	for _, field := range slices.Sorted(maps.Keys(query)) {
		value := query.Get(field)
		name, isAttribute := strings.CutPrefix(field, "attributes.")
		if value == "" || field != "resource" && !isAttribute {
			continue
		}
		problem := check.ValidName(value)
		if isAttribute && !check.ValidAttributeName(name) {
			problem = "is no name of an attribute"
		}
		if problem != "" || len(values.Attributes) == check.MaxAttributes {
			return values, nil, &tenants.InvalidError{Fields: []check.FieldError{{Field: field, Message: nameOr(problem, "is one too many")}}}
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
		view.Hidden = append(view.Hidden, hiddenView{h.Rule.Slug, whyHidden(&h)})
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
		return "does not count by subject: others share its counter"
	case check.MissingValues:
		names := make([]string, len(h.Missing))
		for i, m := range h.Missing {
			names[i] = strings.TrimPrefix(m, "attributes.")
		}
		return "counts by " + strings.Join(names, ", ") + ", too: say which"
	}
	return string(h.Reason)
}

func limitViewOf(r *check.RuleDecision) limitView {
	l := limitView{
		Rule: r.Rule.Slug, Name: nameOr(r.Rule.Name, r.Rule.Slug), Origin: originText(r.Source), Unlimited: r.Unlimited,
		Uncounted: r.Uncounted, Remaining: r.Remaining, Quota: r.Quota,
	}
	l.Number = limitText(r.Rule, check.Limit{Limit: r.Limit, Burst: r.Burst, Unlimited: r.Unlimited})
	switch {
	case r.Unlimited:
		return l
	case !r.Allowed:
		l.Note, l.Tone = "denied now", "bad"
		if r.RetryAfterMS > 0 {
			l.Note = "denied for " + inWords(time.Duration(r.RetryAfterMS)*time.Millisecond)
		}
		if r.Penalized {
			l.Note += ", by a penalty"
		}
	}
	if r.Mode == check.Shadow {
		l.Note, l.Tone = strings.Replace("in shadow, "+l.Note, "in shadow, denied", "in shadow, would be denied", 1), "warn"
		l.Note = strings.TrimSuffix(l.Note, ", ")
	}
	if !r.Uncounted {
		l.Whole = "nothing used"
		if r.ResetAfterMS > 0 {
			l.Whole = "whole again in " + inWords(time.Duration(r.ResetAfterMS)*time.Millisecond)
		}
		l.Left = int64(1000 * float64(r.Remaining) / float64(max(r.Quota, 1)))
	}
	return l
}

func overrideViewOf(o *tenants.Override, now time.Time) overrideView {
	v := overrideView{
		Rule: o.Rule, Limit: plainLimit(o.Limit), Reason: o.Reason, By: o.CreatedBy, State: "in force", Tone: "good",
		Starts: momentOf(o.StartsAt), Ends: momentOf(o.ExpiresAt),
	}
	switch {
	case o.ExpiresAt != nil && !o.ExpiresAt.After(now):
		v.State, v.Tone = "over", ""
	case o.StartsAt != nil && o.StartsAt.After(now):
		v.State, v.Tone = "to come", "warn"
	}
	return v
}
