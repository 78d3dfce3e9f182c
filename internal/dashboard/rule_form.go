package dashboard

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
)

// The form of a rule, in the units that people speak in. A window is a number and a unit; what a
// rule counts by is boxes to tick and names of attributes. What its algorithm does not use is
// left out, whatever the form says of it.

// The units of a length of time in a form, and how a rule writes them.
var (
	durationUnits = []option{{"s", "seconds"}, {"m", "minutes"}, {"h", "hours"}, {"d", "days"}}
	shortUnits    = append([]option{{"ms", "milliseconds"}}, durationUnits...)
	calendarUnits = []option{{"day", "calendar day"}, {"week", "calendar week"}, {"month", "calendar month"}}
)

// unitName is a unit of time beside a number: "minute" after 1, "minutes" after any other.
func unitName(name, number string) string {
	if number == "1" {
		return strings.TrimSuffix(name, "s")
	}
	return name
}

type algorithmChoice struct {
	limit.Algorithm
	Title, Text string
}

// algorithmChoices are the algorithms with one sentence each, to choose from.
var algorithmChoices = []algorithmChoice{
	{limit.SlidingWindowCounter, "Sliding window counter", "Recommended"},
	{limit.SlidingWindowLog, "Sliding window log", "Exact, small limits"},
	{limit.SlidingWindowBuckets, "Sliding window buckets", "Near exact, large limits"},
	{limit.FixedWindow, "Fixed window", "By clock or calendar"},
	{limit.FixedWindowFirstHit, "Fixed window from the first hit", "Starts at first use"},
	{limit.TokenBucket, "Token bucket", "Bursts, steady average"},
	{limit.LeakyBucket, "Leaky bucket", "Fills with use, drains"},
	{limit.LeakyBucketQueue, "Leaky bucket queue", "Evenly spaced"},
}

// algorithmCurves are paths in a box of 88 by 28.
var algorithmCurves = map[limit.Algorithm]string{
	limit.SlidingWindowCounter: "M0 4C8 4 10 22 18 24L22 24C30 24 34 10 44 7C52 5 56 20 64 22C72 23 78 12 88 9",
	limit.SlidingWindowLog:     "M0 4H8V9H14V14H20V19H27V24H40V19H46V14H53V9H60V14H66V19H74V14H80V9H88",
	limit.SlidingWindowBuckets: "M0 4H11V14H22V24H33V19H44V9H55V14H66V22H77V14H88",
	limit.FixedWindow:          "M0 4L22 24H29V4L51 24H58V4L80 22H88V4",
	limit.FixedWindowFirstHit:  "M0 4H12L32 24H40V4H54L74 24H82V4H88",
	limit.TokenBucket:          "M0 4H10V22L40 4H50V22L80 4H88",
	limit.LeakyBucket:          "M0 24H10V6L40 24H50V6L80 24H88",
	limit.LeakyBucketQueue:     "M4 24V8M16 24V8M28 24V8M40 24V8M52 24V8M64 24V8M76 24V8M86 24V8",
}

// outageChoices say what a rule decides if Redis is unavailable.
var outageChoices = []option{
	{"local", "Count per instance, with a share of the limit"},
	{"allow", "Allow all checks"},
	{"deny", "Deny all checks"},
}

// consistencyChoices say where units are granted.
var consistencyChoices = []modeChoice{
	{"strict", "Strict", "Every check makes one round trip to Redis. No check is denied early."},
	{"leased", "Leased", "Each instance prefetches units of busy counters and grants them from memory. The limit is never exceeded; near it, some checks may be denied early."},
}

// ruleValues writes a rule into the fields of its form.
func ruleValues(r *limit.Rule) map[string]string {
	values := map[string]string{
		"slug": r.Slug, "name": r.Name, "description": r.Description, "resource": r.Resource,
		"algorithm": r.Algorithm.String(), "mode": r.Mode.String(), "on_unavailable": r.OnUnavailable.String(),
		"consistency": r.Consistency.String(), "limit": numberOrNone(r.Limit), "burst": numberOrNone(r.Burst),
	}
	values["window"], values["window_unit"] = splitDuration(r.Window.Duration, "m")
	if r.Window.Calendar != limit.NoCalendar {
		values["window"], values["window_unit"] = "1", r.Window.Calendar.String()
	}
	values["precision"], values["precision_unit"] = splitDuration(r.Precision, "s")
	values["penalty"], values["penalty_unit"] = splitDuration(r.Penalty, "m")
	var attributes []string
	for _, by := range r.By {
		if name, isAttribute := strings.CutPrefix(by, "attributes."); isAttribute {
			attributes = append(attributes, name)
		} else {
			values["by_"+by] = "on"
		}
	}
	values["attributes"] = strings.Join(attributes, ", ")
	return values
}

func numberOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return itoa(n)
}

// splitDuration takes the text of a length of time apart; unit is for one that is none.
func splitDuration(d limit.Duration, unit string) (number, unitOf string) {
	text := d.Text
	if text == "" && d.MS != 0 {
		text = itoa(d.MS) + "ms"
	}
	digits := strings.TrimRight(text, "msdh")
	if digits == "" {
		return "", unit
	}
	return digits, text[len(digits):]
}

// ruleOf reads a rule from its form, over what it was before, and writes down what is wrong with
// the fields. The slug is that of before, if it has one.
func ruleOf(f *form, before limit.Rule) limit.Rule {
	r := before
	if r.Slug == "" {
		r.Slug = f.Get("slug")
	}
	r.Name, r.Description, r.Resource = f.Get("name"), strings.ReplaceAll(f.Get("description"), "\r\n", "\n"), f.Get("resource")
	if r.Resource == "" {
		r.Resource = "*"
	}
	r.Algorithm = choice(f, "algorithm", limit.ParseAlgorithm)
	r.Mode = choice(f, "mode", limit.ParseMode)
	r.OnUnavailable = choice(f, "on_unavailable", limit.ParseOnUnavailable)
	if f.Get("consistency") != "" { // a form that was open when the service learned of it has none
		r.Consistency = choice(f, "consistency", limit.ParseConsistency)
	}
	r.Limit = f.whole("limit")
	r.Window = windowOf(f, r.Algorithm)
	r.Burst, r.Precision = 0, limit.Duration{}
	if r.Algorithm.Bucket() && f.Get("burst") != "" {
		if r.Burst = f.whole("burst"); r.Burst < 1 { // 0 means "not set" in a stored rule
			f.wrong("burst", "must be a whole number from 1 to "+grouped(limit.MaxLimit))
		}
	}
	if r.Algorithm == limit.SlidingWindowBuckets {
		r.Precision = durationOf(f, "precision")
	}
	r.Penalty = durationOf(f, "penalty")
	r.By = byOf(f, before.By)
	return r
}

// choice reads one of a few names; a form of ours has no others.
func choice[T any](f *form, name string, parse func(string) (T, error)) T {
	value, err := parse(f.Get(name))
	if err != nil {
		f.wrong(name, err.Error())
	}
	return value
}

func windowOf(f *form, algorithm limit.Algorithm) (w limit.Window) {
	unit := f.Get("window_unit")
	if _, err := limit.ParseCalendar(unit); err == nil {
		if n := f.Get("window"); n != "" && n != "1" {
			f.wrong("window", "must be 1 with a calendar unit")
		}
		if algorithm != limit.FixedWindow {
			f.wrong("window", "may use a calendar unit only with the algorithm “Fixed window”")
		}
		w, _ = limit.ParseWindow(unit)
		return w
	}
	if f.Get("window") == "" {
		f.wrong("window", "must be a whole number, such as 1")
		return w
	}
	w.Duration = durationOf(f, "window")
	return w
}

// durationOf reads a number and its unit; the zero value where there is no number.
func durationOf(f *form, name string) limit.Duration {
	text := digitsOf(f.Get(name))
	if text == "" {
		return limit.Duration{}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt32 {
		f.wrong(name, "must be a whole number, such as 1")
		return limit.Duration{}
	}
	d, err := limit.ParseDuration(itoa(n) + f.Get(name+"_unit"))
	if err != nil {
		f.wrong(name, err.Error())
	}
	return d
}

// byOf reads what a rule counts by. The order says which counters are meant, so one that names the
// same values keeps it.
func byOf(f *form, before []string) []string {
	by := []string{}
	for _, field := range []string{"subject", "resource"} {
		if f.Checked("by_"+field, false) {
			by = append(by, field)
		}
	}
	for _, name := range strings.FieldsFunc(f.Get("attributes"), func(c rune) bool { return c == ',' || c == ' ' || c == ';' }) {
		by = append(by, "attributes."+strings.TrimPrefix(name, "attributes."))
	}
	if sorted(by) == sorted(before) && len(before) > 0 {
		return before
	}
	return by
}

func sorted(texts []string) string { return strings.Join(slices.Sorted(slices.Values(texts)), "\x00") }

// validate writes down what the rule's own validation says, in the words and at the places of the
// form.
func (f *form) validate(r *limit.Rule) {
	for _, e := range r.Validate() {
		f.wrongOf(e)
	}
}

// wrongOf writes down an error of a rule's field.
func (f *form) wrongOf(e limit.FieldError) {
	field, message := e.Field, e.Message
	if i, nested := strings.CutPrefix(field, "by"); nested {
		field = "attributes"
		message = "must be attribute names, each 1 to 64 of A-Z, a-z, 0-9, _ . -"
		if strings.Contains(e.Message, "twice") {
			message = "must name each attribute once"
		} else if i == "" {
			message = "must be at most " + itoa(limit.MaxBy-2)
		}
	}
	f.wrong(field, message)
}

// places are the fields of the form that show what is wrong with them.
var places = []string{
	"slug", "name", "description", "resource", "algorithm", "limit", "window", "burst", "precision", "penalty", "attributes",
	"mode", "on_unavailable", "consistency",
}
