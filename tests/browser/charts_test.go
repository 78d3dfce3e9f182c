package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A chart shows where a rule was changed, and a click on a bar leads to its decisions.
func TestChartLeadsToItsCause(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	require.True(t, w.ask(key, "user_42", "requests"))
	p := w.as(tenants.Viewer).openUntil("/", "1 allowed")
	require.Contains(t, mustEval[string](p, `document.querySelector(".marks a").getAttribute("aria-label")`), "created the rule")
	require.Equal(t, "Requests", mustEval[string](p, `document.querySelector(".marks text").textContent`))
	p.check()
	p.click("Log scale").at("/?period=1h&scale=log").sees("Linear scale")

	box := mustEval[[]float64](p, `(() => {
		const bar = [...document.querySelectorAll(".plot .step")].findLast(step => step.querySelector(".allowed"));
		bar.scrollIntoView({block: "center", behavior: "instant"});
		const box = bar.querySelector(".slot").getBoundingClientRect();
		return [box.left + box.width / 2, box.top + box.height / 2];
	})()`)
	p.must(chromedp.Do(p.ctx, chromedp.MouseClickXY(box[0], box[1])), "click on the bar")
	p.sees("Recent denials of every instance").sees("user_42")
	require.Regexp(t, `Period \d+ [A-Z][a-z]+ \d{4}, \d\d:\d\d to `, mustEval[string](p, p.text()), "the time of the bar")
	require.True(t, strings.HasPrefix(mustEval[string](p, "location.search"), "?show=all&from="))
	p.check()
}

// A chart shows its numbers at the pointer. Drag zooms into a part of the time, and a button leads
// back.
func TestChartZoom(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/usage?period=7d").sees("All checks")
	places := mustEval[[]float64](p, `(() => {
		const bars = [...document.querySelectorAll(".plot .step .slot")];
		bars[0].scrollIntoView({block: "center", behavior: "instant"});
		return [bars[8], bars[14]].map(bar => bar.getBoundingClientRect()).flatMap(box => [box.left + box.width / 2, box.top + box.height / 2]);
	})()`)
	mouse := func(kind input.DispatchMouseEventType, x, y float64) {
		call(p, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: x, Y: y, Button: input.MouseButtonLeft, Buttons: 1, ClickCount: 1})
	}
	call(p, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: places[0], Y: places[1]})
	p.sees("Share denied").sees("Drag to zoom")
	mouse(input.DispatchMouseEventTypeMousePressed, places[0], places[1])
	mouse(input.DispatchMouseEventTypeMouseMoved, places[2], places[3])
	mouse(input.DispatchMouseEventTypeMouseReleased, places[2], places[3])
	p.sees("Reset zoom").check()
	require.Contains(t, mustEval[string](p, "location.search"), "period=custom")
	p.click("Reset zoom").has("Period Last 7 days").hasNot("Reset zoom")
	for _, path := range []string{"/", "/rules/api-requests", "/subjects/umbrella"} {
		p.open(path)
		require.Regexp(t, `^/usage\?.*period=custom`, mustEval[string](p, `document.querySelector("[data-plot] .plot").dataset.zoom`), path)
		p.click("Log scale").sees("Linear scale")
	}
}

// A finger on a bar shows its numbers, and leads to its decisions if it touches the bar again.
func TestChartTouched(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	require.True(t, w.ask(key, "user_42", "requests"))
	p := w.as(tenants.Viewer).phone().openUntil("/", "1 allowed").sees("user_42")
	tap := func() {
		place := mustEval[[]float64](p, `(() => {
			const bar = [...document.querySelectorAll(".plot .step")].findLast(step => step.querySelector(".allowed"));
			bar.scrollIntoView({block: "center", behavior: "instant"});
			const box = bar.querySelector(".slot").getBoundingClientRect();
			return [box.left + box.width / 2, box.top + box.height / 2];
		})()`)
		touch := func(kind input.DispatchTouchEventType, points ...*input.TouchPoint) {
			call(p, input.DispatchTouchEvent, input.DispatchTouchEventParams{Type: kind, TouchPoints: points})
		}
		touch(input.DispatchTouchEventTypeTouchStart, &input.TouchPoint{X: place[0], Y: place[1]})
		touch(input.DispatchTouchEventTypeTouchEnd)
	}
	tap()
	p.sees("Tap again for decisions")
	tap()
	p.sees("Recent denials of every instance").sees("user_42")
}

// On a phone the filters of a list are behind one button.
func TestFiltersOnAPhone(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).phone()
	for path, field := range map[string]string{"/decisions": "Resource", "/rules": "Algorithm", "/usage": "Group by", "/audit": "Actor", "/metered": "Month"} {
		p.open(path).hasNot(field)
		p.click("Filters").has(field).hasNot("Apply filters").check()
	}
	require.True(t, mustEval[bool](p.open("/plans"), `document.querySelector(".matrix").offsetWidth <= innerWidth`), "plans need no scrolling to the side")
}
