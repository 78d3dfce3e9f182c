package enginetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// instant returns the milliseconds since 1970 of a time in RFC 3339.
func instant(tb testing.TB, text string) int64 {
	tb.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(tb, err)
	return at.UnixMilli()
}

// monthly returns the numbers of a rule with five units per month in a zone, from an anchor or,
// with "", by the calendar, at an instant.
func monthly(tb testing.TB, zone, anchor string, nowMS int64) limit.Numbers {
	tb.Helper()
	location, err := limit.ParseZone(zone)
	require.NoError(tb, err)
	windows, err := limit.NewCalendarWindows(limit.CalendarMonth, location)
	if anchor != "" {
		windows, err = limit.NewAnchoredWindows(limit.CalendarMonth, location, instant(tb, anchor))
	}
	require.NoError(tb, err)
	return limit.Numbers{Algorithm: limit.FixedWindow, Calendar: limit.CalendarMonth, Limit: 5, Bounds: windows.Around(nowMS)}
}

// scheduled returns a counter per month, alone or in a group with another.
func scheduled(tb testing.TB, grouped bool, key, zone, anchor string, nowMS int64) []engine.Counter {
	c := engine.Counter{Key: key, Numbers: monthly(tb, zone, anchor, nowMS)}
	if !grouped {
		return []engine.Counter{c}
	}
	c.ID, c.Grouped = "the-month", true
	other := engine.Counter{Key: key, ID: "an-hour--", Grouped: true, Numbers: limit.Numbers{
		Algorithm: limit.SlidingWindowCounter, Limit: 100, WindowMS: 3_600_000,
	}}
	return []engine.Counter{c, other}
}

// If the zone or the anchor changes, the usage of the open window is kept, and the window ends when
// the new one does. This holds whether a check is allowed, denied or of cost 0, and also after the
// instant at which the window would have ended before the change.
func testSchedule(t *testing.T, eng engine.Engine) {
	for _, grouped := range []bool{false, true} {
		key := Prefix() + "scheduled"
		at := instant(t, "2026-03-10T12:00:00Z")
		month := func(zone, anchor string, nowMS int64) []engine.Counter {
			return scheduled(t, grouped, key, zone, anchor, nowMS)
		}
		v := ask(t, eng, at, 4, month("UTC", "", at)...).Outcome.Verdicts[0]
		require.Equal(t, instant(t, "2026-04-01T00:00:00Z"), v.ResetMS)

		// A dry run returns the new end, and changes nothing.
		dry := &engine.Call{NowMS: at, Cost: 1, DryRun: true, Counters: month("Europe/Berlin", "2026-01-20T09:30:00+01:00", at)}
		eng.Evaluate(t.Context(), dry)
		require.NoError(t, dry.Err)
		require.Equal(t, instant(t, "2026-03-20T09:30:00+01:00"), dry.Outcome.Verdicts[0].ResetMS)
		require.Equal(t, instant(t, "2026-04-01T00:00:00Z"), ask(t, eng, at, 0, month("UTC", "", at)...).Outcome.Verdicts[0].ResetMS)

		// A denial changes the end to the new one.
		v = ask(t, eng, at+1, 2, month("America/New_York", "2026-02-05T00:00:00Z", at)...).Outcome.Verdicts[0]
		require.False(t, v.Allowed)
		require.EqualValues(t, 1, v.Remaining)
		end := instant(t, "2026-04-04T19:00:00-04:00")
		require.Equal(t, end, v.ResetMS)
		require.Equal(t, end-at-1, v.RetryAfterMS)
		// April begins in UTC, but the window does not end.
		april := instant(t, "2026-04-01T00:00:00Z")
		v = ask(t, eng, april, 2, month("America/New_York", "2026-02-05T00:00:00Z", april)...).Outcome.Verdicts[0]
		require.False(t, v.Allowed, "the returned wait is correct")
		require.True(t, ask(t, eng, april, 1, month("America/New_York", "2026-02-05T00:00:00Z", april)...).Outcome.Allowed)
		require.False(t, ask(t, eng, end-1, 1, month("America/New_York", "2026-02-05T00:00:00Z", end-1)...).Outcome.Allowed)
		v = ask(t, eng, end, 1, month("America/New_York", "2026-02-05T00:00:00Z", end)...).Outcome.Verdicts[0]
		require.True(t, v.Allowed)
		require.EqualValues(t, 4, v.Remaining)

		// An earlier end takes effect immediately, too.
		soon := end + 3_600_000
		v = ask(t, eng, soon, 1, month("UTC", "2026-01-05T01:00:00Z", soon)...).Outcome.Verdicts[0]
		require.EqualValues(t, 3, v.Remaining)
		require.Equal(t, instant(t, "2026-04-05T01:00:00Z"), v.ResetMS)
		// A clock that steps back, even into the previous window, changes no end.
		v = ask(t, eng, instant(t, "2026-03-30T00:00:00Z"), 1, month("UTC", "2026-01-05T01:00:00Z", instant(t, "2026-03-30T00:00:00Z"))...).Outcome.Verdicts[0]
		require.EqualValues(t, 2, v.Remaining)
		require.Equal(t, instant(t, "2026-04-05T01:00:00Z"), v.ResetMS)
	}
}

// Bounds that were computed with a wrong clock, by any difference, change no answer.
func testBoundsOff(t *testing.T, eng engine.Engine) {
	at := instant(t, "2026-03-10T12:00:00Z")
	for _, grouped := range []bool{false, true} {
		key := Prefix() + "bounds-are-off"
		for i, off := range []string{"2026-03-10T12:00:00Z", "2026-01-01T00:00:00Z", "2031-07-09T00:00:00Z", "1970-01-02T00:00:00Z"} {
			v := ask(t, eng, at, 1, scheduled(t, grouped, key, "Europe/Berlin", "", instant(t, off))...).Outcome.Verdicts[0]
			require.True(t, v.Allowed, off)
			require.EqualValues(t, 4-i, v.Remaining, off)
			require.Equal(t, instant(t, "2026-04-01T00:00:00+02:00"), v.ResetMS, off)
		}
		// Together with a counter that only the other script can decide.
		log := engine.Counter{Key: key + "log", Numbers: limit.Numbers{Algorithm: limit.SlidingWindowLog, Limit: 5, WindowMS: 1000}}
		v := ask(t, eng, at, 1, append(scheduled(t, grouped, key, "Europe/Berlin", "", instant(t, "2031-07-09T00:00:00Z")), log)...).Outcome.Verdicts
		require.EqualValues(t, 0, v[0].Remaining)
		require.EqualValues(t, 4, v[len(v)-1].Remaining)
	}
}
