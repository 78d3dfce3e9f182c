package dashboard

import (
	"cmp"
	"slices"
	"time"

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

// limitedFor is how long after a denial by a rule that is not counted per subject alone a subject
// is called limited: its counter is not on the page, so it is not known whether it still denies.
const limitedFor = 5 * time.Minute

// Limited reports whether the subject is denied now, by one of the limits on the page or recently
// by another rule.
func (view *subjectView) Limited() bool {
	if view.State != "active" {
		return false
	}
	last := view.DeniedElsewhere()
	return len(view.Denying()) > 0 || last != nil && (view.now.Sub(last.At) < limitedFor || view.now.Before(last.until()))
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
	text := "Denied by " + listed(names)
	if !view.DeniedSince.IsZero() && view.DeniedSince.After(view.Chart.From) {
		text += " since " + spoken(view.DeniedSince, "clock")
	}
	text += "."
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
