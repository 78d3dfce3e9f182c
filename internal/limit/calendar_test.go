package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // the zones must not depend on the machine

	"github.com/stretchr/testify/require"
)

// calendarZones have different kinds of clocks: without changes, with half-hour and three-quarter
// offsets, with changes at midnight, of half an hour and around Ramadan, with a skipped day, and
// with a negative summer time.
var calendarZones = []string{
	"UTC", "Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Johannesburg", "Africa/Juba",
	"America/Argentina/Buenos_Aires", "America/Asuncion", "America/Caracas", "America/Chicago",
	"America/Godthab", "America/Havana", "America/Los_Angeles", "America/Mexico_City", "America/New_York",
	"America/Santiago", "America/Sao_Paulo", "America/Scoresbysund", "America/St_Johns", "Antarctica/Troll",
	"Asia/Amman", "Asia/Beirut", "Asia/Gaza", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Pyongyang",
	"Asia/Tehran", "Asia/Tokyo", "Atlantic/Azores", "Australia/Eucla", "Australia/Lord_Howe", "Australia/Sydney",
	"Europe/Berlin", "Europe/Dublin", "Europe/London", "Europe/Volgograd", "Pacific/Apia", "Pacific/Auckland",
	"Pacific/Chatham", "Pacific/Kiritimati",
}

var calendarUnits = []Calendar{CalendarDay, CalendarWeek, CalendarMonth, CalendarYear}

func zoneNamed(tb testing.TB, name string) *time.Location {
	tb.Helper()
	zone, err := ParseZone(name)
	require.NoError(tb, err, name)
	return zone
}

// clockOffsets are the offsets of a zone's clock from UTC. They are found by reading the clock
// every hour and, between two hours that differ, by bisection to the second.
type clockOffsets []struct {
	from, until int64 // milliseconds
	offset      int64 // milliseconds
}

func scanOffsets(zone *time.Location, from, until int64) (found clockOffsets) {
	look := func(sec int64) int64 {
		_, offset := time.Unix(sec, 0).In(zone).Zone()
		return int64(offset) * 1000
	}
	start, offset := from/1000, look(from/1000)
	for sec := start; sec < until/1000; sec += 3600 {
		next := look(sec + 3600)
		if next == offset {
			continue
		}
		before, after := sec, sec+3600
		for after-before > 1 {
			if middle := (before + after) / 2; look(middle) == offset {
				before = middle
			} else {
				after = middle
			}
		}
		found = append(found, struct{ from, until, offset int64 }{start * 1000, after * 1000, offset})
		start, offset = after, next
	}
	return append(found, struct{ from, until, offset int64 }{start * 1000, 1 << 60, offset})
}

// instant is the literal definition: the first instant that shows the time, or else the end of the
// jump over it.
func (c clockOffsets) instant(clock int64) int64 {
	for _, s := range c {
		if t := clock - s.offset; s.from <= t && t < s.until {
			return t
		}
	}
	for i := 1; i < len(c); i++ {
		if jump := c[i].from; jump+c[i-1].offset <= clock && clock < jump+c[i].offset {
			return jump
		}
	}
	panic("the time is outside of the compared years")
}

// boundaries returns all instants from the first year to the last at which windows begin. It uses
// the dates of package time instead of arithmetic, and tries every day.
func (c clockOffsets) boundaries(unit Calendar, anchor *time.Time, firstYear, lastYear int) []int64 {
	var found []int64
	var clock time.Duration // of the day
	if anchor != nil {
		clock = anchor.Sub(time.Date(anchor.Year(), anchor.Month(), anchor.Day(), 0, 0, 0, 0, time.UTC))
	}
	for date := time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC); date.Year() <= lastYear; date = date.AddDate(0, 0, 1) {
		if begins(unit, anchor, date) {
			found = append(found, c.instant(date.Add(clock).UnixMilli()))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// begins reports whether a window begins on a date.
func begins(unit Calendar, anchor *time.Time, date time.Time) bool {
	month, day, weekday := time.January, 1, time.Monday
	if anchor != nil {
		month, day, weekday = anchor.Month(), anchor.Day(), anchor.Weekday()
	}
	last := date.AddDate(0, 0, 1).Day() == 1
	thatDay := date.Day() == day || last && date.Day() < day
	switch unit {
	case CalendarDay:
		return true
	case CalendarWeek:
		return date.Weekday() == weekday
	case CalendarMonth:
		return thatDay
	}
	return date.Month() == month && thatDay
}

// Ten years of windows, in forty zones and from five hundred anchors, have the same bounds as a
// search through every day.
func TestCalendarWindowsForTenYears(t *testing.T) {
	const firstYear, lastYear = 2018, 2028
	from := time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	until := time.Date(lastYear, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	r := rand.New(rand.NewPCG(7, 12))
	anchors, windows := 0, 0
	for _, name := range calendarZones {
		zone := zoneNamed(t, name)
		offsets := scanOffsets(zone, from-400*dayMS, until+800*dayMS)
		compare := func(w CalendarWindows, boundaries []int64, anchor any) {
			for i, start := range boundaries[:len(boundaries)-1] {
				want := Span{start, boundaries[i+1]}
				if start < from || want.EndMS > until {
					continue
				}
				windows++
				for _, at := range []int64{want.StartMS, want.EndMS - 1, want.StartMS + r.Int64N(want.EndMS-want.StartMS)} {
					if got := w.At(at); got != want {
						t.Fatalf("%s in %s from %v at %d: got %v, want %v", w.unit, name, anchor, at, got, want)
					}
				}
			}
		}
		for _, unit := range calendarUnits {
			w, err := NewCalendarWindows(unit, zone)
			require.NoError(t, err)
			compare(w, offsets.boundaries(unit, nil, firstYear, lastYear), "calendar")
		}
		for i := range 13 {
			at := anchorFor(r, i, offsets)
			_, seconds := time.UnixMilli(at).In(zone).Zone()
			clock := time.UnixMilli(at).UTC().Add(time.Duration(seconds) * time.Second)
			unit := calendarUnits[(i+anchors/13)%4]
			w, err := NewAnchoredWindows(unit, zone, at)
			require.NoError(t, err)
			compare(w, offsets.boundaries(unit, &clock, firstYear, lastYear), at)
			anchors++
		}
	}
	require.Equal(t, 520, anchors)
	require.Greater(t, windows, 300_000)
}

// anchorFor returns anchors at difficult times: around clock changes, on the last days of months,
// far before and after the compared years, and anywhere.
func anchorFor(r *rand.Rand, i int, offsets clockOffsets) int64 {
	switch i % 4 {
	case 0:
		change := offsets[r.IntN(len(offsets))]
		return change.from + r.Int64N(3*3_600_000) - 3_600_000
	case 1:
		month := time.Date(2018+r.IntN(10), time.Month(1+r.IntN(12)), 29+r.IntN(3), 0, 0, 0, 0, time.UTC)
		return month.UnixMilli() + r.Int64N(dayMS)
	case 2:
		return r.Int64N(4_000_000_000_000)
	}
	return time.Date(2020, 2, 29, 0, 0, 0, 0, time.UTC).UnixMilli() + r.Int64N(dayMS)
}

// Single cases: clock changes on a boundary, short months, leap days, and instants before the
// anchor.
func TestCalendarWindowsOnOddDays(t *testing.T) {
	anchor := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		unit              Calendar
		zone              string
		anchor            *string
		at, starts, until string
	}{
		"the clock jumps over midnight": {CalendarDay, "America/Havana", nil,
			"2025-03-09T12:00:00-04:00", "2025-03-09T01:00:00-04:00", "2025-03-10T00:00:00-04:00"},
		"midnight occurs twice": {CalendarDay, "America/Havana", nil,
			"2025-11-02T00:30:00-05:00", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00"},
		"the day begins, and the clock goes back to the previous day": {CalendarDay, "America/Sao_Paulo", nil,
			"2019-02-16T23:30:00-03:00", "2019-02-16T00:00:00-02:00", "2019-02-17T00:00:00-03:00"},
		"half an hour forward": {CalendarDay, "Australia/Lord_Howe", anchor("2024-01-10T02:15:00+11:00"),
			"2024-10-06T12:00:00+11:00", "2024-10-06T02:30:00+11:00", "2024-10-07T02:15:00+11:00"},
		"half an hour back, the first of two": {CalendarDay, "Australia/Lord_Howe", anchor("2024-01-10T01:45:00+11:00"),
			"2024-04-07T12:00:00+10:30", "2024-04-07T01:45:00+11:00", "2024-04-08T01:45:00+10:30"},
		"a skipped day is not a window": {CalendarDay, "Pacific/Apia", nil,
			"2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		"and the day before it": {CalendarDay, "Pacific/Apia", nil,
			"2011-12-29T23:59:59.999-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		"31 January, then the last of February": {CalendarMonth, "UTC", anchor("2023-01-31T10:00:00Z"),
			"2023-03-01T00:00:00Z", "2023-02-28T10:00:00Z", "2023-03-31T10:00:00Z"},
		"leap February": {CalendarMonth, "UTC", anchor("2023-01-31T10:00:00Z"),
			"2024-03-01T00:00:00Z", "2024-02-29T10:00:00Z", "2024-03-31T10:00:00Z"},
		"a year from a leap day": {CalendarYear, "UTC", anchor("2024-02-29T10:00:00Z"),
			"2026-01-01T00:00:00Z", "2025-02-28T10:00:00Z", "2026-02-28T10:00:00Z"},
		"four years from a leap day": {CalendarYear, "UTC", anchor("2024-02-29T10:00:00Z"),
			"2028-02-29T10:00:00Z", "2028-02-29T10:00:00Z", "2029-02-28T10:00:00Z"},
		"before the anchor": {CalendarMonth, "UTC", anchor("2030-08-31T10:00:00Z"),
			"2025-02-10T00:00:00Z", "2025-01-31T10:00:00Z", "2025-02-28T10:00:00Z"},
		"a week before the anchor": {CalendarWeek, "UTC", anchor("2030-08-31T10:00:00Z"),
			"2025-02-10T00:00:00Z", "2025-02-08T10:00:00Z", "2025-02-15T10:00:00Z"},
		"weeks begin on Monday": {CalendarWeek, "Asia/Kathmandu", nil,
			"2025-06-18T00:00:00+05:45", "2025-06-16T00:00:00+05:45", "2025-06-23T00:00:00+05:45"},
		"the year of the zone, not of UTC": {CalendarYear, "Pacific/Kiritimati", nil,
			"2025-12-31T12:00:00Z", "2026-01-01T00:00:00+14:00", "2027-01-01T00:00:00+14:00"},
		"the last day of a leap year": {CalendarDay, "Europe/Berlin", nil,
			"2040-12-31T12:00:00+01:00", "2040-12-31T00:00:00+01:00", "2041-01-01T00:00:00+01:00"},
		"the evening of the last day of a leap year": {CalendarDay, "America/Los_Angeles", nil,
			"2044-12-31T23:59:59.999-08:00", "2044-12-31T00:00:00-08:00", "2045-01-01T00:00:00-08:00"},
		"an anchor before 1970": {CalendarMonth, "Europe/Berlin", anchor("1912-03-31T08:00:00+01:00"),
			"2025-02-28T08:00:00+01:00", "2025-02-28T08:00:00+01:00", "2025-03-31T08:00:00+02:00"},
	} {
		t.Run(name, func(t *testing.T) {
			ms := func(s string) int64 {
				at, err := time.Parse(time.RFC3339Nano, s)
				require.NoError(t, err)
				return at.UnixMilli()
			}
			zone := zoneNamed(t, c.zone)
			w, err := NewCalendarWindows(c.unit, zone)
			if c.anchor != nil {
				w, err = NewAnchoredWindows(c.unit, zone, ms(*c.anchor))
			}
			require.NoError(t, err)
			got := w.At(ms(c.at))
			show := func(t int64) string { return time.UnixMilli(t).In(zone).Format(time.RFC3339Nano) }
			require.Equal(t, ms(c.starts), got.StartMS, "starts %s", show(got.StartMS))
			require.Equal(t, ms(c.until), got.EndMS, "ends %s", show(got.EndMS))
			require.Equal(t, got.EndMS, w.Next(got).StartMS)
			require.True(t, got.Contains(got.StartMS) && got.Contains(got.EndMS-1))
			require.False(t, got.Contains(got.StartMS-1) || got.Contains(got.EndMS))
		})
	}
}

func TestCalendarWindowsRefuse(t *testing.T) {
	for _, unit := range []Calendar{NoCalendar, CalendarYear + 1} {
		_, err := NewCalendarWindows(unit, time.UTC)
		require.ErrorContains(t, err, "must be day, week, month or year")
	}
	for _, anchor := range []int64{MinAnchorMS - 1, MaxAnchorMS + 1} {
		_, err := NewAnchoredWindows(CalendarDay, time.UTC, anchor)
		require.ErrorContains(t, err, "must be an instant from the year 1 to the year 9999")
	}
	for _, anchor := range []int64{MinAnchorMS, MaxAnchorMS} {
		w, err := NewAnchoredWindows(CalendarMonth, nil, anchor)
		require.NoError(t, err)
		require.True(t, w.At(MaxInstantMS).Contains(MaxInstantMS))
	}
	for _, name := range []string{"", "Local", "localtime", "posix/Europe/Berlin", "right/Europe/Berlin", "posixrules",
		"Europe/Nowhere", "../etc/passwd", "/etc/localtime", "Berlin"} {
		_, err := ParseZone(name)
		require.ErrorContains(t, err, "must be an IANA time zone", name)
	}
}

// A check that needs a new window must not allocate memory for it.
func TestCalendarWindowsAllocateNothing(t *testing.T) {
	zone := zoneNamed(t, "Europe/Berlin")
	for _, unit := range calendarUnits {
		w, err := NewAnchoredWindows(unit, zone, 1_706_695_200_000)
		require.NoError(t, err)
		at := int64(1_750_000_000_000)
		require.Zero(t, testing.AllocsPerRun(100, func() { at = w.Next(w.At(at)).StartMS }), unit)
	}
}

// FuzzCalendarWindows verifies the properties of the window of any instant, and compares its bounds
// with a search through every day.
func FuzzCalendarWindows(f *testing.F) {
	f.Add(uint8(0), uint8(11), false, int64(0), int64(1_741_496_400_000))                // Havana jumps over midnight
	f.Add(uint8(2), uint8(30), true, int64(1_580_389_259_000), int64(1_798_635_659_000)) // Lord Howe, the end of a month
	f.Add(uint8(3), uint8(32), true, int64(1_709_164_800_000), int64(2_240_521_200_000)) // Berlin, a leap day, the last day of 2040
	f.Add(uint8(1), uint8(36), true, int64(4_000_000_000_000), int64(1_325_239_200_000)) // Apia skipped a day
	f.Add(uint8(2), uint8(3), true, int64(-2_000_000_000_000), int64(3_600_000_000_000)) // El Aaiun, month of fasting
	f.Add(uint8(2), uint8(33), true, MinAnchorMS, MaxInstantMS)                          // Dublin, the last possible instant
	f.Add(uint8(0), uint8(18), true, int64(1_162_098_060_000), int64(1_162_100_000_000)) // St John's, changes a minute after midnight
	f.Fuzz(func(t *testing.T, u, z uint8, anchored bool, anchor, at int64) {
		zone := zoneNamed(t, calendarZones[int(z)%len(calendarZones)])
		unit := calendarUnits[u%4]
		at = 1 + (at&(1<<62-1))%MaxInstantMS
		w, err := NewCalendarWindows(unit, zone)
		if anchored {
			w, err = NewAnchoredWindows(unit, zone, anchor)
			if anchor < MinAnchorMS || anchor > MaxAnchorMS {
				require.Error(t, err)
				return
			}
		}
		require.NoError(t, err)
		got := w.At(at)
		require.True(t, got.Contains(at))
		require.Equal(t, got, w.At(got.StartMS))
		require.Equal(t, got, w.At(got.EndMS-1))
		require.Equal(t, got.EndMS, w.Next(got).StartMS)
		if got.StartMS > 0 {
			require.Equal(t, got.StartMS, w.At(got.StartMS-1).EndMS)
		}
		longest := map[Calendar]int64{CalendarDay: 1, CalendarWeek: 7, CalendarMonth: 31, CalendarYear: 366}[unit]
		require.LessOrEqual(t, got.EndMS-got.StartMS, (longest+2)*dayMS)

		if at < 1200*dayMS || at > MaxInstantMS-1200*dayMS {
			return
		}
		offsets := scanOffsets(zone, at-1200*dayMS, at+1200*dayMS)
		var clock *time.Time
		if anchored {
			_, seconds := time.UnixMilli(anchor).In(zone).Zone()
			c := time.UnixMilli(anchor).UTC().Add(time.Duration(seconds) * time.Second)
			clock = &c
		}
		year := time.UnixMilli(at).UTC().Year()
		var want Span
		for _, b := range offsets.boundaries(unit, clock, year-2, year+2) {
			if b <= at {
				want.StartMS = b
			} else {
				want.EndMS = b
				break
			}
		}
		require.Equal(t, want, got)
	})
}
