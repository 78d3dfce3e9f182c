package limit

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// monthRule returns a rule per month in a zone.
func monthRule(zone string, anchor Anchor) Rule {
	r := NewRule("r")
	r.Algorithm, r.Limit, r.Zone, r.Anchor = FixedWindow, 10, zone, anchor
	r.Window.Calendar = CalendarMonth
	return r
}

// Bounds contain the window of their instant and its closer neighbor, so that clocks may differ by
// half a window.
func TestBoundsAroundAnInstant(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia"} {
		zone, err := ParseZone(name)
		require.NoError(t, err)
		for unit := CalendarDay; unit <= CalendarYear; unit++ {
			for range 300 {
				windows, err := NewAnchoredWindows(unit, zone, 1000*r.Int64N(2_000_000_000))
				require.NoError(t, err)
				at := 40_000_000_000 + r.Int64N(2_000_000_000_000)
				b, want := windows.Around(at), windows.At(at)
				require.Equal(t, want, b.At(at))
				require.True(t, b.Contain(at))
				half := (want.EndMS - want.StartMS) / 2
				require.True(t, b.Contain(at+half-1) || b.Contain(at-half+1))
				require.Equal(t, windows.At(b.StartMS), Span{b.StartMS, b.EndMS})
				require.Equal(t, windows.At(b.EndMS), Span{b.EndMS, b.NextEndMS})
				far := at + 5*(want.EndMS-want.StartMS)
				require.Equal(t, windows.At(far), b.At(far), "the bounds know their windows")
				require.Equal(t, windows.Around(far), b.Around(far))
			}
		}
	}
}

// The bounds of a rule are computed again when they no longer contain the time, and not before.
func TestCycleKeepsItsBounds(t *testing.T) {
	for _, anchor := range []Anchor{AnchorCalendar, AnchorSubject} {
		rule := monthRule("Europe/Berlin", anchor)
		cycle, err := rule.Cycle()
		require.NoError(t, err)
		windows := cycle.Windows(dayMS * 40)
		at := int64(1_800_000_000_000)
		first := cycle.Bounds(dayMS*40, at)
		require.Same(t, first, cycle.Bounds(dayMS*40, at+dayMS))
		for range 1000 {
			at += dayMS / 3
			b := cycle.Bounds(dayMS*40, at)
			require.Equal(t, windows.At(at), b.At(at))
			require.True(t, b.Contain(at-dayMS) && b.Contain(at+dayMS))
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { cycle.Bounds(dayMS*40, at) }))
	}
	rule := monthRule("UTC", AnchorSubject)
	cycle, err := rule.Cycle()
	require.NoError(t, err)
	calendar := cycle.Windows(NoAnchor)
	require.Equal(t, calendar.At(dayMS*400), cycle.Bounds(NoAnchor, dayMS*400).At(dayMS*400), "a subject without an anchor")
}

// If there are more subjects than slots in the table of bounds, each subject still gets its own
// windows.
func TestAnchoredBoundsOfManySubjects(t *testing.T) {
	rule := monthRule("America/New_York", AnchorSubject)
	cycle, err := rule.Cycle()
	require.NoError(t, err)
	at := int64(1_800_000_000_000)
	for round := range 2 {
		for i := range int64(len(anchored) + len(anchored)/2) {
			anchorMS := 1_700_000_000_000 + i*7919
			b := cycle.Bounds(anchorMS, at)
			if i%1000 == int64(round) {
				windows := cycle.Windows(anchorMS)
				require.Equal(t, windows.At(at), b.At(at))
			}
		}
	}
}

func TestCycleFields(t *testing.T) {
	ok := monthRule("Europe/Berlin", AnchorSubject)
	require.Empty(t, ok.Validate())
	for field, change := range map[string]func(*Rule){
		"zone":   func(r *Rule) { r.Zone = "Europe/Nowhere" },
		"anchor": func(r *Rule) { r.By = []string{"resource"} },
	} {
		r := ok
		change(&r)
		errs := r.Validate()
		require.Len(t, errs, 1)
		require.Equal(t, field, errs[0].Field)
	}
	r := ok
	r.Window = Window{Duration: Duration{"1h", 3_600_000}}
	errs := r.Validate()
	require.Len(t, errs, 2, "both are for calendar windows")
	r.Window.Calendar, r.Window.Duration = CalendarYear, Duration{}
	require.Empty(t, r.Validate())
	year, err := ParseWindow("year")
	require.NoError(t, err)
	require.Equal(t, CalendarYear, year.Calendar)
}

// A zone has any number of names that the database accepts. They work, and take no memory.
func TestOddNamesOfZonesAreNotKept(t *testing.T) {
	for _, name := range []string{"Europe/./Berlin", "Europe//Berlin"} {
		if zone, err := zoneOf(name); err == nil { // it depends on the machine's database
			require.NotNil(t, zone)
		}
		_, kept := zones.Load(name)
		require.False(t, kept, name)
	}
	first, err := zoneOf("Europe/Berlin")
	require.NoError(t, err)
	again, err := zoneOf("Europe/Berlin")
	require.NoError(t, err)
	require.Same(t, first, again)
}
