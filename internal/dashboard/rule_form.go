package dashboard

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
)

// The form of a rule, in human units. A window is a number and a unit; what a rule counts by is a
// set of checkboxes and names of attributes. Fields that the algorithm does not use are ignored.

// The units of a duration in a form, and how a rule writes them.
var (
	durationUnits = []option{{"s", "seconds"}, {"m", "minutes"}, {"h", "hours"}, {"d", "days"}}
	shortUnits    = append([]option{{"ms", "milliseconds"}}, durationUnits...)
	calendarUnits = []option{{"day", "calendar day"}, {"week", "calendar week"}, {"month", "calendar month"}, {"year", "calendar year"}}
)

// unitName returns the unit of time for a number: "minute" for 1, "minutes" for any other.
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

// algorithmTitle returns the title of an algorithm.
func algorithmTitle(name string) string {
	for _, c := range algorithmChoices {
		if c.Algorithm.String() == name {
			return c.Title
		}
	}
	return name
}

// algorithmChoices are the algorithms with one sentence each.
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

// choice reads one of a few names; forms have no others.
func choice[T any](f *form, name string, parse func(string) (T, error)) T {
	value, err := parse(f.Get(name))
	if err != nil {
		f.wrong(name, limit.ProblemOf(err))
	}
	return value
}

func windowOf(f *form, algorithm limit.Algorithm) (w limit.Window) {
	unit := f.Get("window_unit")
	if _, err := limit.ParseCalendar(unit); err == nil {
		if n := f.Get("window"); n != "" && n != "1" {
			f.wrong("window", limit.MustBe("1 with a calendar unit"))
		}
		if algorithm != limit.FixedWindow {
			f.wrong("window", limit.Wrong("Choose another unit, or the algorithm “Fixed window”.", "may use a calendar unit only with the algorithm “Fixed window”"))
		}
		w, _ = limit.ParseWindow(unit)
		return w
	}
	if f.Get("window") == "" {
		f.wrong("window", wholeLength)
		return w
	}
	w.Duration = durationOf(f, "window")
	return w
}

// durationOf reads a number and its unit; the zero value if there is no number.
func durationOf(f *form, name string) limit.Duration {
	text := digitsOf(f.Get(name))
	if text == "" {
		return limit.Duration{}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt32 {
		f.wrong(name, wholeLength)
		return limit.Duration{}
	}
	d, err := limit.ParseDuration(itoa(n) + f.Get(name+"_unit"))
	if err != nil {
		f.wrong(name, limit.ProblemOf(err))
	}
	return d
}

// byOf reads what a rule counts by. The order is part of the counters' identity, so a rule with the
// same values keeps it.
func byOf(f *form, before []string) []string {
	by := []string{}
	for _, field := range []string{"subject", "resource"} {
		if f.Checked("by_"+field, false) {
			by = append(by, field)
		}
	}
	for _, name := range f.words("attributes", limit.MaxBy, func(c rune) bool { return c == ',' || c == ' ' || c == ';' }) {
		name = "attributes." + strings.TrimPrefix(name, "attributes.")
		if slices.Contains(by, name) {
			f.wrong(attributesField, limit.Wrong(limit.Duplicate.Fix, "must name each attribute once"))
		}
		by = append(by, name)
	}
	if sorted(by) == sorted(before) && len(before) > 0 {
		return before
	}
	return by
}

func sorted(texts []string) string { return strings.Join(slices.Sorted(slices.Values(texts)), "\x00") }

// validate adds the errors of the rule's validation, at the inputs of the form.
func (f *form) validate(r *limit.Rule) {
	for _, e := range r.Validate() {
		f.wrongOf(e)
	}
}

// wrongOf adds an error of a rule at its input.
func (f *form) wrongOf(e limit.FieldError) {
	if i, nested := strings.CutPrefix(e.Field, "by"); nested {
		p := limit.MustBe("attribute names, each 1 to 64 of A-Z, a-z, 0-9, _ . -")
		if i == "" {
			p = limit.Wrong("Remove attributes.", "must be at most %d", limit.MaxBy-2)
		}
		f.wrong(attributesField, p)
		return
	}
	f.add(e)
}

func numberOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return itoa(n)
}
