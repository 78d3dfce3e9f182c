package limit

import (
	"fmt"
	"strings"
	"time"
)

// Anchors are in the years that RFC 3339 can represent, without the year 0.
const (
	MinAnchorMS int64 = -62_135_596_800_000 // 0001-01-01T00:00:00Z
	MaxAnchorMS int64 = 253_402_300_799_999 // 9999-12-31T23:59:59.999Z
)

// maxOffsetMS is greater than the offset of any zone from UTC. RFC 9636 limits offsets to between
// -25 h and 26 h.
const maxOffsetMS = 26 * 60 * 60 * 1000

// CalendarWindows are the consecutive windows of one calendar unit in one time zone.
//
// A boundary is a time on the zone's clock. The boundaries have numbers k, of any sign. Number k is
// the first one plus k days, 7k days, k months or 12k months. A month or year always counts from
// the first boundary itself: from 31 January the boundaries are 28 or 29 February, 31 March, 30
// April.
//
// A time on the clock becomes the first instant at which the clock shows it. If the clock jumps
// over it, it becomes the first instant after the jump. Two boundaries on one instant count as one:
// no window is empty.
//
// The bounds come from the time zone database that the process finds. They are exact as long as no
// zone jumps over a time and then shows it after all, which no zone of the database does.
//
// A value never changes. It is safe for concurrent use.
type CalendarWindows struct {
	zone *time.Location
	unit Calendar
	// Boundary 0 on the zone's clock.
	clock int64 // milliseconds since 1970-01-01 00:00 on that clock
	month int64 // the months since the year 0
	day   int64 // of the month, 1 to 31
	ofDay int64 // milliseconds since midnight on that clock

	schedule uint64 // Bounds.Schedule
}

// NewCalendarWindows returns the windows that begin at midnight in the zone: every day, every
// Monday, every 1st of a month or every 1 January. A nil zone is UTC. It returns an error if the
// unit is not day, week, month or year.
func NewCalendarWindows(unit Calendar, zone *time.Location) (CalendarWindows, error) {
	var monday int64
	if unit == CalendarWeek {
		monday = 4 * dayMS // 1970 began on a Thursday
	}
	return windowsFrom(unit, zone, monday)
}

// NewAnchoredWindows returns the windows that begin at the anchor's time on the zone's clock, and
// whole units before and after it. The anchor is an instant in milliseconds since 1970, from
// MinAnchorMS to MaxAnchorMS. It may be later than the instants of interest. A nil zone is UTC. It
// returns an error if the unit is not day, week, month or year, or if the anchor is out of range.
func NewAnchoredWindows(unit Calendar, zone *time.Location, anchorMS int64) (CalendarWindows, error) {
	if anchorMS < MinAnchorMS || anchorMS > MaxAnchorMS {
		return CalendarWindows{}, fmt.Errorf("anchor %d ms: must be an instant from the year 1 to the year 9999", anchorMS)
	}
	return windowsFrom(unit, zone, clockAt(zone, anchorMS))
}

func windowsFrom(unit Calendar, zone *time.Location, clock int64) (CalendarWindows, error) {
	if unit < CalendarDay || unit > CalendarYear {
		return CalendarWindows{}, fmt.Errorf("calendar unit %d: must be day, week, month or year", unit)
	}
	at := time.UnixMilli(clock).UTC()
	return CalendarWindows{
		zone: zone, unit: unit, clock: clock,
		month: monthOf(at), day: int64(at.Day()), ofDay: clock - floorDiv(clock, dayMS)*dayMS,
		schedule: scheduleOf(unit, zone, clock),
	}, nil
}

// Span is one window: the instants from StartMS on and before EndMS, in milliseconds since 1970.
type Span struct{ StartMS, EndMS int64 }

// Contains reports whether the instant t is in the window. As long as it is, the window need not be
// computed again.
func (s Span) Contains(t int64) bool { return s.StartMS <= t && t < s.EndMS }

// At returns the window that contains the instant t, from 1 to MaxInstantMS: from the last boundary
// at or before t to the first one after it. It allocates nothing.
func (w *CalendarWindows) At(t int64) Span {
	k := w.numberAt(clockAt(w.zone, t))
	end := w.boundary(k + 1)
	// If the clock was set back over a boundary, the boundary has passed although the clock shows
	// an earlier time. If the clock jumped over several boundaries, they are one instant.
	for end <= t {
		k++
		end = w.boundary(k + 1)
	}
	return Span{StartMS: w.boundary(k), EndMS: end}
}

// Next returns the window that begins where s ends. It allocates nothing.
func (w *CalendarWindows) Next(s Span) Span { return w.At(s.EndMS) }

// numberAt returns the number of the last boundary at or before a time on the zone's clock.
func (w *CalendarWindows) numberAt(clock int64) int64 {
	var k int64
	switch w.unit {
	case CalendarDay:
		return floorDiv(clock-w.clock, dayMS)
	case CalendarWeek:
		return floorDiv(clock-w.clock, 7*dayMS)
	case CalendarMonth:
		k = monthOf(time.UnixMilli(clock).UTC()) - w.month
	default:
		k = floorDiv(monthOf(time.UnixMilli(clock).UTC())-w.month, 12)
	}
	if w.clockOf(k) > clock {
		k--
	}
	return k
}

// clockOf returns boundary k on the zone's clock.
func (w *CalendarWindows) clockOf(k int64) int64 {
	switch w.unit {
	case CalendarDay:
		return w.clock + k*dayMS
	case CalendarWeek:
		return w.clock + k*7*dayMS
	case CalendarYear:
		k *= 12
	}
	months := w.month + k
	year := floorDiv(months, 12)
	first := time.Date(int(year), time.Month(months-12*year+1), 1, 0, 0, 0, 0, time.UTC)
	length := int64(first.AddDate(0, 1, -1).Day())
	return first.UnixMilli() + (min(w.day, length)-1)*dayMS + w.ofDay
}

// boundary returns the instant of boundary k: the first instant at which the zone's clock shows its
// time or a later one.
func (w *CalendarWindows) boundary(k int64) int64 {
	clock := w.clockOf(k)
	// No zone's clock shows the time as early as this. From here on, look at consecutive periods of
	// constant offset. The first one that reaches the time contains the instant.
	from := clock - maxOffsetMS
	for {
		offset, end, ends := stretch(w.zone, from)
		t := max(from, clock-offset)
		if !ends || t < end {
			return t
		}
		from = end
	}
}

// stretch returns the offset of the zone's clock from UTC at an instant, and an instant until which
// it does not change, if there is one. All are milliseconds.
func stretch(zone *time.Location, t int64) (offset, end int64, ends bool) {
	at := inZone(zone, t)
	_, seconds := at.Zone()
	_, until := at.ZoneBounds()
	if until.IsZero() {
		return int64(seconds) * 1000, 0, false
	}
	end = until.UnixMilli()
	if end <= t {
		// After a zone's last listed change, package time ends a period with the year, and assumes
		// 365 days for every year (tzset in zoneinfo.go). On the last day of a leap year, that end
		// is in the past. The period continues at least until the next midnight in UTC.
		end = floorDiv(t, dayMS)*dayMS + dayMS
	}
	return int64(seconds) * 1000, end, true
}

// clockAt returns the time of the zone's clock at an instant, in milliseconds since 1970-01-01
// 00:00 on that clock.
func clockAt(zone *time.Location, t int64) int64 {
	_, seconds := inZone(zone, t).Zone()
	return t + int64(seconds)*1000
}

func inZone(zone *time.Location, t int64) time.Time {
	if zone == nil {
		return time.UnixMilli(t).UTC()
	}
	return time.UnixMilli(t).In(zone)
}

// monthOf returns the number of months from January of the year 0 to the month of at.
func monthOf(at time.Time) int64 {
	year, month, _ := at.Date()
	return int64(year)*12 + int64(month) - 1
}

// floorDiv returns a / b, rounded down, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

var errZone = &Problem{
	Message: "must be an IANA time zone such as UTC, Europe/Berlin or America/New_York; " +
		"https://en.wikipedia.org/wiki/List_of_tz_database_time_zones lists the names",
	Fix: "Use the IANA name of a time zone, such as Europe/Berlin.",
}

// ParseZone returns the time zone with an IANA name such as "Europe/Berlin". It reads the system's
// time zone database or, if there is none, the one in the program, so keep the result. It returns
// an error if the database does not have the zone. "Local" and similar names depend on the machine
// and are invalid.
func ParseZone(name string) (*time.Location, error) {
	switch {
	case name == "", name == "Local", name == "localtime", name == "posixrules",
		strings.HasPrefix(name, "posix/"), strings.HasPrefix(name, "right/"):
		return nil, errZone
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, errZone
	}
	return zone, nil
}
