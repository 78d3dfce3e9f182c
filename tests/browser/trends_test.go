package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Each row of the overview's lists and of the list of rules has its course and its change against
// the period before, on a computer; a phone has the course on the overview only.
func TestTrends(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/?period=24h").sees("Most denied subjects").sees("Rules that deny most")
	const rows = `[...document.querySelectorAll(".trends tbody tr")]`
	require.GreaterOrEqual(t, mustEval[int](p, rows+`.length`), 4)
	require.True(t, mustEval[bool](p, rows+`.every(row => row.querySelector(".bars .denied").getBoundingClientRect().width > 0)`), "each row has its course")
	require.True(t, mustEval[bool](p, rows+`.every(row => /%|new|x$/.test(row.querySelector(".changed").textContent.trim()))`), "each row has its change")
	require.True(t, mustEval[bool](p.phone().open("/?period=24h").sees("Rules that deny most"), rows+`.every(row => row.offsetHeight <= 44)`), "one line each")

	p = p.desktop().open("/rules").sees("Last 24 hours").sees("Change")
	require.Regexp(t, `%|new|x$`, mustEval[string](p, `document.querySelector("a[href='/rules/login-attempts']").closest("tr").querySelector(".changed").textContent.trim()`))
	p.check()
}

// The preview of a rule draws the tenant's own last hours first, by the time of day. In shadow,
// what would be denied has the colour of shadow.
func TestReplayPicture(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Editor).open("/rules/new").sees("Replay of the last 3 hours")
	require.Greater(t, mustEval[int](p, `document.querySelectorAll(".replay .allowed").length`), 60, "every two minutes have a column")
	require.Regexp(t, `^\d\d:\d\d$|^\d\d? [A-Z][a-z]{2}$`, mustEval[string](p, `document.querySelector(".replay text[data-at]").textContent`), "midnight has its date")
	p.fill("Limit", "2").sees(") would be denied").has("Create rule")
	p.eventually(func() error {
		_, err := eval[bool](p, `document.querySelector(".replay .shadowed").getBoundingClientRect().height > 0`)
		return err
	})
	require.Zero(t, mustEval[int](p, `document.querySelectorAll(".replay .denied").length`))
	p.click("Enforce").sees("Requests over the limit are denied.")
	p.eventually(func() error {
		_, err := eval[bool](p, `document.querySelector(".replay .denied").getBoundingClientRect().height > 0`)
		return err
	})
	p.check()
}

// A notice with an icon is as high as its text: the drawer of a refused form has no empty space.
func TestNoticesHaveNoVoid(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Owner).open("/billing").click("Map price").fill("Price or product ID", "price_1SWk4hProMonthly").choose("Plan", "Free")
	p.allow(422).click("Map price").sees("Nothing saved.")
	void := mustEval[float64](p, `(() => {
		const box = document.querySelector(".sheet .band.bad"), text = box.querySelector("p").getBoundingClientRect();
		return box.getBoundingClientRect().bottom - text.bottom;
	})()`)
	require.LessOrEqual(t, void, 14.0)
	colour := `(selector => getComputedStyle(document.querySelector(selector)).color)`
	require.Equal(t, mustEval[string](p, colour+`(".create .action > summary")`), mustEval[string](p, colour+`(".create .action > summary .i")`), "the icon of a primary button has its colour")
	p.check()
}
