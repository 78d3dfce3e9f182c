package enginetest

import (
	"fmt"

	"weir/internal/limit"
)

// Bounds is one row of a file of calendar windows. It says which window of a unit, in a zone,
// contains an instant. Instants are milliseconds since 1970.
type Bounds struct {
	Window   string `json:"window"`    // day, week, month or year
	Zone     string `json:"zone"`      // an IANA name
	AnchorMS *int64 `json:"anchor_ms"` // null: calendar windows
	TimeMS   int64  `json:"t_ms"`
	StartMS  int64  `json:"start_ms"`
	EndMS    int64  `json:"end_ms"` // the first instant after the window
}

// RunBounds computes the window of a row and returns the differences. It does not use an engine,
// because engines get the bounds of windows as arguments. The failure's step is the number of the
// row, from 0.
func RunBounds(row int, b Bounds) []Failure {
	anchor := "calendar"
	if b.AnchorMS != nil {
		anchor = fmt.Sprint(*b.AnchorMS)
	}
	name := fmt.Sprintf("%s in %s from %s at %d", b.Window, b.Zone, anchor, b.TimeMS)
	windows, err := b.windows()
	if err != nil {
		return []Failure{{Case: name, Step: row, Field: "window", Want: "a known window", Got: err.Error()}}
	}
	got := windows.At(b.TimeMS)
	var failures []Failure
	field := func(field string, want, got int64) {
		if want != got {
			failures = append(failures, Failure{Case: name, Step: row, Field: field, Want: fmt.Sprint(want), Got: fmt.Sprint(got)})
		}
	}
	field("start_ms", b.StartMS, got.StartMS)
	field("end_ms", b.EndMS, got.EndMS)
	return failures
}

func (b Bounds) windows() (limit.CalendarWindows, error) {
	unit, err := limit.ParseCalendar(b.Window)
	if err != nil {
		return limit.CalendarWindows{}, fmt.Errorf("window %q %w", b.Window, err)
	}
	zone, err := limit.ParseZone(b.Zone)
	if err != nil {
		return limit.CalendarWindows{}, fmt.Errorf("zone %q %w", b.Zone, err)
	}
	if b.AnchorMS == nil {
		return limit.NewCalendarWindows(unit, zone)
	}
	return limit.NewAnchoredWindows(unit, zone, *b.AnchorMS)
}
