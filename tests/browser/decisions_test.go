package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A chosen decision says why it was made and what helps: beside the list, or above it on a phone.
// The keys j and k choose the next and the previous one.
func TestDecisionDetail(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	for _, subject := range []string{"first_user", "second_user"} {
		require.Eventually(t, func() bool { return !w.ask(key, subject, "requests") }, patience, tick, "the second check is denied")
	}
	p := w.as(tenants.Support).open("/decisions").sees("first_user").sees("second_user")
	open := func(p *page, subject string) {
		mustEval[bool](p, `(row => (row.querySelector("a[data-row]").click(), true))([...document.querySelectorAll("tbody tr")].find(row => row.textContent.includes("`+subject+`")))`)
		p.sees("Open " + subject)
	}
	open(p, "first_user")
	p.sees("first_user used 1 of 1 under Requests.").sees("told to wait").sees("Each subject can use 1 unit").has("Copy reason").has("Test again")
	p.check()
	p.theme("dark").check()
	p.theme("light")
	require.Equal(t, "first_user", mustEval[string](p, `document.querySelector("tr[aria-current] th").innerText.trim()`))
	for _, width := range []int{1280, 1440} {
		p.width = width
		p.must(p.screen(p.height), "set the width of the screen")
		require.LessOrEqual(t, mustEval[int](p, `Math.max(...[...document.querySelectorAll(".decided tbody tr")].map(row => row.offsetHeight))`), 38, "one line a row beside the details, at %d pixels", width)
		require.True(t, mustEval[bool](p, `(table => table.offsetWidth <= table.parentElement.offsetWidth)(document.querySelector(".decided"))`), "the table fits at %d pixels", width)
	}
	p.desktop().press("j").press("k") // from the older row there is one newer row at most
	require.Equal(t, 1, mustEval[int](p, `document.querySelectorAll("tr[aria-current]").length`))
	p.open("/decisions").sees("second_user").press("j").sees("Open second_user").press("j").sees("Open first_user").press("k").sees("Open second_user")
	p.press(kb.Escape).seesNot("Open second_user").at("/decisions")
	open(p, "first_user")
	p.click("Boost limit").at("/subjects/first_user?open=boost").sees("Raises the limit of one rule temporarily.")
	require.Equal(t, "requests", p.value("Rule"), "the rule that denies is chosen")
	p.phone().open("/decisions").sees("first_user")
	open(p, "first_user")
	p.check()
	p.click("Close decision").seesNot("Open first_user")

	p.desktop().open("/decisions?pick=gone-1").sees("No instance remembers this decision").check()
	viewer := w.as(tenants.Viewer).open("/decisions").sees("first_user")
	open(viewer, "first_user")
	viewer.hasNot("Boost limit").hasNot("Reset limits")
}

// The details of a decision need no script.
func TestDecisionDetailWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, patience, tick, "the second check is denied")
	p := w.as(tenants.Viewer).withoutScripts().openUntil("/decisions", "user_42")
	path := mustEval[string](p, `(a => a.pathname + a.search)(document.querySelector("a[data-row]"))`)
	p.open(path).sees("user_42 used 1 of 1 under Requests.")
	p.click("Open user_42").at("/subjects/user_42")
}

// The chart above the decisions shows the checks by minute, and a click on a bar shows its
// decisions.
func TestDecisionChart(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, patience, tick, "the second check is denied")
	p := w.as(tenants.Viewer).openUntil("/decisions", "1 allowed").sees("Checks in the last hour").sees("user_42")
	require.LessOrEqual(t, mustEval[int](p, `document.querySelector(".plot .drawing").clientHeight`), 100, "the chart is low")
	require.True(t, mustEval[bool](p, `[...document.querySelectorAll(".plot .step .denied")].length >= 1`))
	p.click("View as table")
	link := mustEval[string](p, `(a => a.pathname + a.search)([...document.querySelectorAll(".chart details tbody a")].at(-1))`)
	p.open(link).sees("user_42").check()
	require.Equal(t, 1, mustEval[int](p, `document.querySelectorAll(".plot .step.chosen").length`), "the chosen minute is marked")
}

// A row of the audit trail is one line, whatever it says, and its details open below it: with a
// click anywhere on it, and with the keyboard.
func TestAuditRows(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Editor).open("/subjects/eve").click("Boost limit")
	p.fill("Reason", "A sale that runs for the whole weekend, and that their account manager has agreed on with the team of operations")
	p.within("Raises the limit of one rule").click("Boost limit")
	p.sees("boosted to 20")
	p.open("/rules/orders/edit").sees("Save changes").fill("Limit", "5").click("Save changes").sees("Rule “Orders” saved.")
	for _, width := range []int{1280, 1440} {
		p.width = width
		p.must(p.screen(p.height), "set the width of the screen")
		p.open("/audit").sees("boosted Orders 10 to 20 until").sees("changed the rule Orders · Limit 10 to 5")
		require.LessOrEqual(t, mustEval[int](p, `Math.max(...[...document.querySelectorAll(".trail > li")].map(row => row.offsetHeight))`), 37, "%d pixels", width)
	}
	p.desktop().open("/audit").seesNot("from 127.0.0.1")
	mustEval[bool](p, `(row => {
		const box = row.getBoundingClientRect();
		document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2).click();
		return row.querySelector("details").open;
	})([...document.querySelectorAll(".trail > li")].find(row => row.textContent.includes("changed the rule")))`)
	p.sees("from 127.0.0.1").sees("rule orders").check()
	mustEval[bool](p, `(document.querySelectorAll(".trail summary")[1].focus(), true)`)
	p.press(kb.Enter)
	p.eventually(func() error {
		open, err := eval[int](p, `document.querySelectorAll(".trail details[open]").length`)
		if err == nil && open != 2 {
			err = fmt.Errorf("%d rows are open", open)
		}
		return err
	})
	p.theme("dark").check()
	p.theme("light").phone().open("/audit").sees("boosted Orders 10 to 20 until").check()
}
