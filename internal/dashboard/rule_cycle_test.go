package dashboard

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// The preview of a rule shows the window of now and the next four, for a given anchor, in the zone
// of the rule: through short months and through the change to summer time.
func TestNextWindows(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	month, err := limit.ParseWindow("month")
	require.NoError(t, err)
	r := limit.NewRule("reports")
	r.Algorithm, r.Limit, r.Window, r.Zone = limit.FixedWindow, 100, month, "Europe/Berlin"
	starts := func(f *form) (out []string) {
		next := windowsOf(f, &r, now)
		require.NotNil(t, next)
		for i, w := range next.Windows {
			if i > 0 {
				require.Equal(t, next.Windows[i-1].Ends, w.Starts)
			}
			out = append(out, w.Starts)
		}
		return out
	}
	require.Equal(t, []string{
		"Thu 1 Jan 2026 00:00 CET", "Sun 1 Feb 2026 00:00 CET", "Sun 1 Mar 2026 00:00 CET", "Wed 1 Apr 2026 00:00 CEST", "Fri 1 May 2026 00:00 CEST",
	}, starts(&form{values: url.Values{}}))

	r.Anchor = limit.AnchorSubject
	anchored := &form{values: url.Values{anchorField: {"2025-10-31T08:30"}}} // 09:30 in Berlin
	require.Equal(t, []string{
		"Sat 31 Jan 2026 09:30 CET", "Sat 28 Feb 2026 09:30 CET", "Tue 31 Mar 2026 09:30 CEST", "Thu 30 Apr 2026 09:30 CEST", "Sun 31 May 2026 09:30 CEST",
	}, starts(anchored))
	require.Equal(t, "a subject with the cycle anchor 31 Oct 2025, 08:30 UTC", windowsOf(anchored, &r, now).Whose)
	wrong := &form{values: url.Values{anchorField: {"soon"}}}
	windowsOf(wrong, &r, now)
	require.True(t, wrong.invalid())

	r.Anchor, r.Zone, r.Window = limit.AnchorCalendar, "", limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	require.Nil(t, windowsOf(&form{}, &r, now), "a duration has no calendar")
}
