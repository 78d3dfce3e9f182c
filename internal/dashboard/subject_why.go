package dashboard

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/usage"
)

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

// slugsOf returns the rules of limits as one field of a form has them, for any number of limits.
func slugsOf(limits []limitView) string {
	slugs := make([]string, len(limits))
	for i := range limits {
		slugs[i] = limits[i].Rule
	}
	return strings.Join(slugs, " ")
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

// limitedFor is how long after a denial a subject is called limited: counters are those of one
// instant, and one that denies half of all checks is free in between.
const limitedFor = 5 * time.Minute

// LastDenial returns the latest denial, if it was a short time ago or its wait is not over, and
// nobody has changed or reset the subject since.
func (view *subjectView) LastDenial() *decisionRow {
	if len(view.Denied) == 0 {
		return nil
	}
	last := &view.Denied[0]
	if view.since(last.last) < limitedFor && last.decision.Code != check.SubjectBlocked || view.DeniedElsewhere() != nil && view.now.Before(last.until()) {
		return last
	}
	return nil
}

// since returns the time since a denial; more than any wait if somebody freed the subject then.
func (view *subjectView) since(at time.Time) time.Duration {
	if at.Before(view.Freed) {
		return math.MaxInt64
	}
	return view.now.Sub(at)
}

// Limited reports whether the subject is denied now by one of the limits on the page, or was denied
// a short time ago by any rule.
func (view *subjectView) Limited() bool {
	return view.State == "active" && (len(view.Denying()) > 0 || view.LastDenial() != nil)
}

// Unknown reports whether the page does not know whether the subject is denied.
func (view *subjectView) Unknown() bool {
	return view.State == "active" && view.Degraded && !view.Limited()
}

// FirstDenying is the slug of the rule that denies for the longest time, or else of the one that
// denied last; "" for none.
func (view *subjectView) FirstDenying() string {
	if denying := view.Denying(); len(denying) > 0 {
		return denying[0].Rule
	}
	if last := view.LastDenial(); last != nil && slices.ContainsFunc(view.Limits, func(l limitView) bool { return l.Rule == last.Rule }) {
		return last.Rule
	}
	return ""
}

// WhyLimited says which rules denied how many of the last checks.
func (view *subjectView) WhyLimited() string {
	var names []string
	times := int64(0)
	for i := range view.Denied {
		r := &view.Denied[i]
		if view.since(r.last) >= limitedFor {
			break
		}
		if name := nameOr(r.Name, "The service"); !slices.Contains(names, name) {
			names = append(names, name)
		}
		times += r.times
	}
	if len(names) == 0 {
		last := &view.Denied[0]
		return "Last denied at " + spoken(last.At, "clock-second") + " by " + last.Name + "."
	}
	if b := view.lastMinutes(); b != nil && b.Denied > 0 {
		return "Denied by " + listed(names) + view.sinceText() + ": " + grouped(b.Denied) + " of the last " + plural(b.Allowed+b.Denied, "check", "checks") + "."
	}
	return listed(names) + " denied " + plural(times, "check", "checks") + " in the last " + itoa(int64(limitedFor/time.Minute)) + " minutes."
}

// sinceText says when the present denials began, as in " since 14:05"; "" if that is not known.
func (view *subjectView) sinceText() string {
	if view.DeniedSince.IsZero() || !view.DeniedSince.After(view.Chart.From) {
		return ""
	}
	return " since " + spoken(view.DeniedSince, "clock")
}

// lastMinutes sums up the present minute and the one before; nil if they are not known.
func (view *subjectView) lastMinutes() *bar {
	c := &view.Chart
	n := len(c.Bars)
	if n < 2 || c.Grain != usage.Minute || c.Bars[n-2].Missing+c.Bars[n-1].Missing > 0 {
		return nil
	}
	before, now := &c.Bars[n-2], &c.Bars[n-1]
	return &bar{Start: before.Start, Allowed: before.Allowed + now.Allowed, Denied: before.Denied + now.Denied}
}

// WhyDenied says which limits deny, and when the next request is allowed.
func (view *subjectView) WhyDenied() string {
	denying := view.Denying()
	names := make([]string, len(denying))
	for i := range denying {
		names[i] = denying[i].Name
	}
	text := "Denied by " + listed(names) + view.sinceText() + "."
	if wait := denying[0].waitMS; wait > 0 {
		text += " Next request allowed in " + short(time.Duration(wait)*time.Millisecond) + "."
	}
	return text
}

// Demand says how much the subject sends, from the last whole minute; "" if that is not known.
func (view *subjectView) Demand() string {
	last := len(view.Chart.Bars) - 2
	if last < 0 || view.Chart.Grain != usage.Minute {
		return ""
	}
	b := &view.Chart.Bars[last]
	if b.Denied == 0 || b.Missing > 0 {
		return ""
	}
	return "Sent " + plural(b.Allowed+b.Denied, "check", "checks") + " in the last minute: " + grouped(b.Denied) + " denied."
}
