package browser

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The period of a list is chosen from suggestions or between two times, and stands in the address.
func TestRangePicker(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/usage")
	p.click("Period Last 24 hours").check()
	p.click("Last 7 days").sees("Usage")
	require.Equal(t, "7d", mustEval[string](p, `new URLSearchParams(location.search).get("period")`))
	p.click("Period Last 7 days").click("Yesterday").has("Period Yesterday")
	p.click("Period Yesterday").click("Apply period").has("Period Yesterday")
	require.Equal(t, "custom", mustEval[string](p, `new URLSearchParams(location.search).get("period")`))
}

// Lists with a short memory offer short periods, and an invalid period is named beside its field.
func TestPeriodsOfLists(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Admin).open("/decisions?show=all")
	p.click("Period Any time").sees("Last 6 hours").seesNot("Last 30 days").check()
	p.click("Last 15 minutes").has("Period Last 15 minutes")
	require.Equal(t, "?period=15m&show=all", mustEval[string](p, "location.search"))
	p.choose("Show", "Denied only").has("Period Last 15 minutes") // other filters keep it
	p.openFor("/decisions?from=2026-01-02T00:00&to=2026-01-01T00:00", 422).sees("Must be after from").check()
	p.openFor("/decisions?period=1y", 422).sees("Filters not applied.").sees("Must be one of the listed options").check()
	p.phone().open("/decisions").click("Filters").click("Period Any time").check()

	p.desktop().open("/settings/security").click("Period Any time").check()
	p.click("Last 7 days").has("Period Last 7 days").sees("Signed in")
	p.openFor("/settings/security?period=custom&from=2026-01-02T00:00&to=2026-01-01T00:00", 422).sees("Must be after from").check()
	require.True(t, mustEval[bool](p.open("/audit"), `[...document.querySelectorAll("#actor-names option")].some(o => o.value === "demo@weir.example")`))
}

// A filter applies as it is chosen, and stands in the address.
func TestFiltersApplyAsChosen(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/decisions").choose("Show", "All checks").sees("remaining")
	require.Contains(t, mustEval[string](p, "location.search"), "show=all")
	p.open("/rules").choose("Mode", "Shadow").sees("Searches (trial)").seesNot("Login attempts")
	require.Contains(t, mustEval[string](p, "location.search"), "mode=shadow")
	for path, fields := range map[string][]string{"/usage": {"rule", "plan", "resource", "subject"}, "/decisions": {"rule", "resource", "subject"}, "/audit": {"actor", "target"}} {
		for _, field := range fields {
			require.Equal(t, "combobox", mustEval[string](p.open(path), `document.querySelector("[name=`+field+`]").role`), "%s suggests values of %s", path, field)
		}
	}
}

// On a phone the filters of subjects are behind one button. A decision has two lines, which name
// its resource and its repeats, and its details have the reason.
func TestListsOnAPhone(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).phone()
	p.open("/subjects").hasNot("Label").click("Filters").has("Label").check()
	p.open("/decisions?show=all").sees("umbrella").check()
	const highest = `Math.max(...[...document.querySelectorAll(".decided tbody tr:not(.day)")].map(row => row.offsetHeight))`
	require.LessOrEqual(t, mustEval[int](p, highest), 64, "the height of two lines")
	const hidden = `[...document.querySelectorAll(".decided tbody :is(td.asked, td.repeats:not(:empty), td.again:not(:empty), td.time, .verdict-cell)")].filter(cell => cell.offsetHeight === 0).length`
	require.Zero(t, mustEval[int](p, hidden), "the resource, the repeats and the wait are shown")
	const cut = `[...document.querySelectorAll(".decided tbody td.wide")].some(td => td.scrollWidth > td.clientWidth)`
	require.False(t, mustEval[bool](p.desktop().open("/decisions?show=all").sees("umbrella"), cut), "a reason is cut on a computer")
}

// A text filters when nobody types any more, and keeps the focus.
func TestFiltersApplyAsTyped(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer)
	p.open("/audit").fill("Target", "order-bursts")
	p.eventually(func() error {
		got, err := eval[string](p, "location.search")
		if err == nil && !strings.Contains(got, "target=order-bursts") {
			err = errors.New("the filter is not in the address: " + got)
		}
		return err
	})
	p.settle()
	require.Equal(t, "target", mustEval[string](p, "document.activeElement.name"))
	p.open("/usage?period=7d&rule=api-requests").fill("Rule", "order-bursts").sees("Checks of rule Bursts of orders")
}

// While an answer takes long, a line at the top and the content say so.
func TestBusy(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/plans")
	mustEval[bool](p, `(() => {
		const send = XMLHttpRequest.prototype.send;
		XMLHttpRequest.prototype.send = function (...sent) { window.release = () => send.apply(this, sent); };
		document.querySelector('.nav a[href="/rules"]').click();
		return true;
	})()`)
	const waits = `document.documentElement.classList.contains("waiting") && document.getElementById("content").getAttribute("aria-busy") === "true"`
	require.True(t, mustEval[bool](p, waits))
	require.Equal(t, "/plans", mustEval[string](p, "location.pathname"))
	mustEval[bool](p, `release() ?? true`)
	p.at("/rules").sees("Bursts of orders")
	require.False(t, mustEval[bool](p, `document.documentElement.classList.contains("waiting") || document.querySelector("[aria-busy]") !== null`))
}
