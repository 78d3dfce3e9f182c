package limit

import (
	"fmt"
	"hash/fnv"
	"math"
	"path"
	"sync"
	"sync/atomic"
	"time"
)

// Anchor says where the windows of a calendar unit begin.
type Anchor uint8

// AnchorCalendar windows begin at midnight: every day, every Monday, every 1st of a month, or every
// 1 January. AnchorSubject windows begin at the subject's cycle anchor, and whole units before and
// after it. A subject without a cycle anchor has calendar windows.
const (
	AnchorCalendar Anchor = iota
	AnchorSubject
)

var anchorNames = Names[Anchor]{AnchorCalendar: "calendar", AnchorSubject: "subject"}

func (a Anchor) String() string { return anchorNames.Of(a) }

// ParseAnchor returns the anchor with a name such as "subject".
func ParseAnchor(s string) (Anchor, error) { return anchorNames.Parse(s) }

// Bounds are two consecutive calendar windows. An instance computes them in advance, and the engine
// chooses one of them by its own clock, so an instance with a wrong clock does not decide wrongly.
// A Bounds value never changes.
type Bounds struct {
	StartMS   int64 // of the first window; 0 if it begins before 1970
	EndMS     int64 // of the first window; the start of the second
	NextEndMS int64 // of the second window
	windows   CalendarWindows
}

// Around returns the window of an instant and the closer one of its neighbors, so that a clock may
// be wrong by half a window in either direction.
func (w *CalendarWindows) Around(t int64) *Bounds {
	b := &Bounds{windows: *w}
	s := w.At(t)
	if t-s.StartMS < s.EndMS-t && s.StartMS > 1 {
		before := w.At(s.StartMS - 1)
		b.StartMS, b.EndMS, b.NextEndMS = before.StartMS, s.StartMS, s.EndMS
	} else {
		b.StartMS, b.EndMS, b.NextEndMS = s.StartMS, s.EndMS, w.Next(s).EndMS
	}
	b.StartMS = max(b.StartMS, 0)
	return b
}

// Around returns the bounds for another instant.
func (b *Bounds) Around(t int64) *Bounds { return b.windows.Around(t) }

// Contain reports whether one of the two windows contains an instant.
func (b *Bounds) Contain(t int64) bool { return b.StartMS <= t && t < b.NextEndMS }

// Serve reports whether the bounds can be used for an instant instead of the result of Around.
func (b *Bounds) Serve(t int64) bool {
	return t >= b.EndMS-(b.EndMS-b.StartMS)/2 && t < b.EndMS+(b.NextEndMS-b.EndMS)/2
}

// At returns the window that contains an instant. It allocates nothing. The twin is
// calendar_window in fixed_value.lua.
func (b *Bounds) At(t int64) Span {
	switch {
	case !b.Contain(t):
		return b.windows.At(t)
	case t < b.EndMS:
		return Span{StartMS: b.StartMS, EndMS: b.EndMS}
	}
	return Span{StartMS: b.EndMS, EndMS: b.NextEndMS}
}

// Windows returns the windows of which the bounds are two.
func (b *Bounds) Windows() CalendarWindows { return b.windows }

// Zone returns the time zone of the windows.
func (w *CalendarWindows) Zone() *time.Location {
	if w.zone == nil {
		return time.UTC
	}
	return w.zone
}

// First returns boundary 0: the time on the zone's clock, as a time in UTC.
func (w *CalendarWindows) First() time.Time { return time.UnixMilli(w.clock).UTC() }

// Schedule identifies the unit, the zone and the anchor of the windows. It is the same in all
// processes.
func (b *Bounds) Schedule() uint64 { return b.windows.schedule }

// scheduleOf computes the Schedule of windows.
func scheduleOf(unit Calendar, zone *time.Location, clock int64) uint64 {
	h := fnv.New64a()
	name := "UTC"
	if zone != nil {
		name = zone.String()
	}
	fmt.Fprintf(h, "%d %s %d", unit, name, clock)
	return h.Sum64()
}

// Cycle is the schedule of a rule's windows, with the current bounds. It is safe for concurrent
// use.
type Cycle struct {
	unit     Calendar
	zone     *time.Location
	anchor   Anchor
	calendar CalendarWindows
	current  atomic.Pointer[Bounds] // of calendar
}

// Cycle returns the schedule of the rule's windows, and nil for a rule whose window is a duration.
// The error means that the time zone does not exist.
func (r *Rule) Cycle() (*Cycle, error) {
	if r.Window.Calendar == NoCalendar {
		return nil, nil
	}
	zone, err := zoneOf(r.Zone)
	if err != nil {
		return nil, FieldProblem("zone", ProblemOf(err))
	}
	c := &Cycle{unit: r.Window.Calendar, zone: zone, anchor: r.Anchor}
	if c.calendar, err = NewCalendarWindows(c.unit, zone); err != nil {
		return nil, err
	}
	return c, nil
}

// NoAnchor means that a subject has no cycle anchor.
const NoAnchor int64 = math.MinInt64

// Bounds returns the bounds around an instant for a subject with this cycle anchor, or NoAnchor. It
// allocates nothing while the bounds are valid.
func (c *Cycle) Bounds(anchorMS, t int64) *Bounds {
	if c.anchor == AnchorSubject && anchorMS != NoAnchor {
		return anchored.bounds(c, anchorMS, t)
	}
	if b := c.current.Load(); b != nil && b.Serve(t) {
		return b
	}
	b := c.calendar.Around(t)
	c.current.Store(b)
	return b
}

// Windows returns the windows of a subject with this cycle anchor, or NoAnchor.
func (c *Cycle) Windows(anchorMS int64) CalendarWindows {
	if c.anchor == AnchorSubject && anchorMS != NoAnchor {
		if w, err := NewAnchoredWindows(c.unit, c.zone, anchorMS); err == nil {
			return w
		}
	}
	return c.calendar
}

// anchored has the most recently used bounds of anchored windows, for all rules and subjects.
// Bounds depend only on unit, zone and anchor.
var anchored boundsCache

// boundsCache is a table of a fixed size: about 4 MiB when it is full. Each hash has a few slots,
// and new bounds replace older ones.
type boundsCache [1 << 15]atomic.Pointer[anchoredBounds]

type anchoredBounds struct {
	Bounds
	anchorMS int64
}

const placesEach = 4

func (a *boundsCache) bounds(c *Cycle, anchorMS, t int64) *Bounds {
	const odd = 0x9e3779b97f4a7c15
	h := (uint64(anchorMS) ^ c.calendar.schedule) * odd
	h = (h ^ h>>29) * odd
	first := h >> 32 % uint64(len(a)) / placesEach * placesEach
	free := first + h%placesEach
	for i := first; i < first+placesEach; i++ {
		b := a[i].Load()
		switch {
		case b == nil:
			free = i
		case b.anchorMS == anchorMS && b.windows.unit == c.unit && b.windows.zone == c.zone:
			if b.Serve(t) {
				return &b.Bounds
			}
			b = &anchoredBounds{*b.Around(t), anchorMS}
			a[i].Store(b)
			return &b.Bounds
		}
	}
	windows := c.Windows(anchorMS)
	b := &anchoredBounds{*windows.Around(t), anchorMS}
	a[free].Store(b)
	return &b.Bounds
}

// zones has the time zones of rules, by name, because reading one from the database allocates some
// kilobytes. There are about 600. A zone can have any number of further names, such as
// "Europe/./Berlin", and others where file names ignore case. So only clean names are kept, and no
// more than mostZones.
var (
	zones     sync.Map
	zonesKept atomic.Int64
)

const mostZones = 1000

// zoneOf returns the time zone of a rule; "" is UTC.
func zoneOf(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	if zone, known := zones.Load(name); known {
		return zone.(*time.Location), nil
	}
	zone, err := ParseZone(name)
	if err != nil {
		return nil, err
	}
	if zonesKept.Load() < mostZones && path.Clean(name) == name {
		if kept, known := zones.LoadOrStore(name, zone); known {
			return kept.(*time.Location), nil
		}
		zonesKept.Add(1)
	}
	return zone, nil
}
