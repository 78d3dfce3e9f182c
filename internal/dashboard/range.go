package dashboard

import (
	"net/url"
	"time"

	"weir/internal/limit"
)

// custom is the value of the field "period" for a period between two times.
const custom = "custom"

// rangeView is the picker of a period: a button with suggestions and two fields in its menu.
type rangeView struct {
	Form    *form
	Text    string // the period in words
	Choices []rangeChoice
	Value   string // of the field "period" for the two fields; "": the page has no such field
	Period  string // the present value of that field
}

// rangeChoice is a suggested period.
type rangeChoice struct {
	Name, Path string
	Current    bool
}

// namedRange is a period of the calendar, in UTC. A zero To is the present.
type namedRange struct {
	Name     string
	From, To time.Time
}

// calendarRanges returns the usual periods of the calendar.
func calendarRanges(now time.Time) []namedRange {
	day := now.UTC().Truncate(24 * time.Hour)
	month := time.Date(day.Year(), day.Month(), 1, 0, 0, 0, 0, time.UTC)
	return []namedRange{
		{"Today", day, time.Time{}}, {"Yesterday", day.AddDate(0, 0, -1), day},
		{"This month", month, time.Time{}}, {"Last month", month.AddDate(0, -1, 0), month},
	}
}

// texts returns the bounds in the form of an address; "" for a zero one.
func (n *namedRange) texts() (from, to string) {
	from = n.From.Format(minuteForm)
	if !n.To.IsZero() {
		to = n.To.Format(minuteForm)
	}
	return from, to
}

// rangeText describes the period of two fields.
func rangeText(f *form) string {
	from, to := instantOf(f, "from"), instantOf(f, "to")
	switch {
	case from.IsZero() && to.IsZero():
		return "Any time"
	case to.IsZero():
		return "Since " + spoken(from, "minute")
	case from.IsZero():
		return "Until " + spoken(to, "minute")
	case to.After(from) && to.Sub(from) < 24*time.Hour:
		return spoken(from, "minute") + " to " + spoken(to, "clock")
	}
	return spoken(from, "minute") + " to " + spoken(to, "minute")
}

// withBounds returns the values of a form with other bounds, which nobody zoomed into; "" for none.
func withBounds(values url.Values, from, to string) url.Values {
	out := copied(values)
	out.Del(zoomedFrom)
	for field, text := range map[string]string{"from": from, "to": to} {
		out.Del(field)
		if text != "" {
			out.Set(field, text)
		}
	}
	return out
}

// choose adds a suggestion. If it is the present period, its name is the text of the button.
func (view *rangeView) choose(name, path string, current bool) {
	if current {
		view.Text = name
	}
	view.Choices = append(view.Choices, rangeChoice{name, path, current})
}

// usageRange returns the picker of the usage page.
func usageRange(f *form, now time.Time) *rangeView {
	view := &rangeView{Form: f, Value: custom, Period: f.Get("period")}
	choose := func(name, period, from, to string) {
		path := usageAddress(withBounds(f.values, from, to), func(values url.Values) { values.Set("period", period) })
		view.choose(name, path, f.Get("period") == period && f.Get("from") == from && f.Get("to") == to)
	}
	for _, p := range periods {
		choose("Last "+p.Name, p.Value, "", "")
	}
	for _, n := range calendarRanges(now) {
		from, to := n.texts()
		choose(n.Name, custom, from, to)
	}
	if view.Text == "" {
		view.Text = rangeText(f)
	}
	return view
}

// recentPeriod is a period that ends now.
type recentPeriod struct {
	Value, Name string
	length      time.Duration
}

// trailPeriods are those of lists that Postgres stores.
var trailPeriods = []recentPeriod{
	{"1h", "Last hour", time.Hour}, {"24h", "Last 24 hours", 24 * time.Hour}, {"7d", "Last 7 days", 7 * 24 * time.Hour}, {"30d", "Last 30 days", 30 * 24 * time.Hour},
}

// listSpan is the part of the time that a list shows. A zero From or To is no bound. Length is not
// zero if the span is a recent period: then From moves with the time.
type listSpan struct {
	From, To time.Time
	Length   time.Duration
}

// spanOf returns the span in the address: a recent period by name, or two bounds. Errors are added
// to the form.
func spanOf(f *form, periods []recentPeriod) (s listSpan) {
	name := f.Get("period")
	if name == "" || name == custom {
		s.From, s.To = instantOf(f, "from"), instantOf(f, "to")
		if !s.From.IsZero() && !s.To.IsZero() && !s.From.Before(s.To) {
			f.wrong("to", limit.Wrong("Use a later end, or an earlier start.", "must be after from"))
		}
		return s
	}
	for _, p := range periods {
		if p.Value == name {
			s.Length = p.length
			return s
		}
	}
	f.wrong("period", oneOfTheList)
	return s
}

// bounds returns the bounds at a time; nil for none.
func (s listSpan) bounds(now time.Time) (from, to *time.Time) {
	if s.Length > 0 {
		s.From = now.Add(-s.Length)
	}
	if !s.From.IsZero() {
		from = &s.From
	}
	if !s.To.IsZero() {
		to = &s.To
	}
	return from, to
}

// Any reports whether the span has no bounds.
func (s listSpan) Any() bool { return s == listSpan{} }

// listRange returns the picker of a list. The address of the page with other values is that of
// address.
func listRange(f *form, periods []recentPeriod, calendar []namedRange, address func(url.Values) string) *rangeView {
	view := &rangeView{Form: f, Value: custom, Period: f.Get("period")}
	choose := func(name, period, from, to string) {
		values := withBounds(f.values, from, to)
		values.Set("period", period)
		values.Del("after")
		present := f.Get("period")
		if present == custom {
			present = ""
		}
		view.choose(name, address(values), present == period && (period != "" || f.Get("from") == from && f.Get("to") == to))
	}
	choose("Any time", "", "", "")
	for _, p := range periods {
		choose(p.Name, p.Value, "", "")
	}
	for _, n := range calendar {
		from, to := n.texts()
		choose(n.Name, "", from, to)
	}
	if view.Text == "" {
		view.Text = rangeText(f)
	}
	return view
}
