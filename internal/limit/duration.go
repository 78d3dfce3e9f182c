package limit

import (
	"math"
	"strconv"
)

// Duration is a length of time in text form. The text is stored, so that a value is read back as it
// was written ("60s").
type Duration struct {
	Text string // "" for none
	MS   int64  // whole milliseconds
}

func (d Duration) String() string { return d.Text }

var errDuration = MustBe("a duration: a whole number and one of ms, s, m, h, d, such as 500ms, 10s, 1m, 1h or 30d")

var durationUnits = map[string]int64{"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": dayMS}

// ParseDuration parses a positive duration such as "500ms", "10s", "1m", "1h" or "30d".
func ParseDuration(s string) (Duration, error) {
	digits := 0
	for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
		digits++
	}
	unit, known := durationUnits[s[digits:]]
	if !known || digits == 0 || s[0] == '0' {
		return Duration{}, errDuration
	}
	n, err := strconv.ParseInt(s[:digits], 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return Duration{}, errDuration
	}
	return Duration{Text: s, MS: n * unit}, nil
}

// Calendar is a unit of the calendar that a fixed window can follow.
type Calendar uint8

// Weeks begin on Monday 00:00, months on the 1st, years on 1 January.
const (
	NoCalendar Calendar = iota
	CalendarDay
	CalendarWeek
	CalendarMonth
	CalendarYear
)

var calendarNames = Names[Calendar]{CalendarDay: "day", CalendarWeek: "week", CalendarMonth: "month", CalendarYear: "year"}

func (c Calendar) String() string { return calendarNames.Of(c) }

// ParseCalendar returns the unit with a name such as "month".
func ParseCalendar(s string) (Calendar, error) { return calendarNames.Parse(s) }

// Window is a rule's window: a duration, or a calendar unit.
type Window struct {
	Duration
	Calendar Calendar // if set, MS is 0
}

// LongestMS returns the length of the window, of a calendar unit the greatest length.
func (w Window) LongestMS() int64 {
	switch w.Calendar {
	case CalendarDay:
		return dayMS
	case CalendarWeek:
		return 7 * dayMS
	case CalendarMonth:
		return 31 * dayMS
	case CalendarYear:
		return 366 * dayMS
	}
	return w.MS
}

// ParseWindow parses a duration, or one of day, week, month and year.
func ParseWindow(s string) (Window, error) {
	if c, err := ParseCalendar(s); err == nil {
		return Window{Duration: Duration{Text: s}, Calendar: c}, nil
	}
	d, err := ParseDuration(s)
	if err != nil {
		return Window{}, MustBe("a duration such as 10s, 1m, 1h or 30d, or with fixed_window one of day, week, month, year")
	}
	return Window{Duration: d}, nil
}
