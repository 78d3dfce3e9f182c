package browser

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Times are those of the browser's zone, with UTC when pointed at. A time in a field of a form is
// local, too, and is sent in UTC.
func TestLocalTime(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 1)
	key := w.key()
	require.True(t, w.ask(key, "ada", "orders"))
	require.False(t, w.ask(key, "ada", "orders"))
	p := w.as(tenants.Editor)
	const zone = "Asia/Kolkata" // 5.5 hours ahead of UTC all year
	call(p, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: zone})
	place, err := time.LoadLocation(zone)
	require.NoError(t, err)

	shown := func(selector, layout string) {
		t.Helper()
		p.eventually(func() error {
			_, err := eval[string](p, `document.querySelector(`+quote(selector)+`).dateTime`)
			return err
		})
		got := mustEval[[]string](p, `(e => [e.dateTime, e.textContent, e.title])(document.querySelector(`+quote(selector)+`))`)
		at, err := time.Parse(time.RFC3339Nano, got[0])
		require.NoError(t, err)
		require.Equal(t, at.In(place).Format(layout), got[1], selector)
		require.Contains(t, got[2], at.UTC().Format("15:04"), selector)
		require.Contains(t, got[2], "UTC", selector)
	}
	p.openUntil("/decisions?show=all", "ada")
	shown(".decided time", "15:04:05")
	p.sees("Time (GMT+5:30)")
	require.Equal(t, time.Now().In(place).Format("2006"), mustEval[string](p, `document.querySelector(".decided [data-day]").innerText.trim().slice(-4)`))
	p.open("/audit")
	shown(".trail time", "15:04:05")
	p.open("/keys")
	shown("td time", "2 Jan 2006, 15:04")
	p.open("/subjects/ada").sees("Denied by Orders")
	shown(".card.chart time[data-local]", "15:04:05")
	require.NotRegexp(t, `\d\d:\d\d UTC`, mustEval[string](p, p.text()), "no sentence has UTC")

	p.open("/usage?period=custom&from=2026-01-05T00:00&grain=day").sees("Since 5 Jan 2026, 05:30")
	mustEval[bool](p, `document.querySelector(".range details").open = true`)
	require.Equal(t, "2026-01-05T05:30", p.value("From (GMT+5:30)"))
	require.Contains(t, mustEval[string](p, `document.getElementById("range-text").innerText`), "5 Jan 2026, 05:30")
	mustEval[string](p, `document.getElementById("f-from").value = "2026-01-06T05:30"`)
	p.click("Apply period").sees("Since 6 Jan 2026, 05:30")
	require.Equal(t, "2026-01-06T00:00", mustEval[string](p, `new URLSearchParams(location.search).get("from")`), "it is sent in UTC")
}
