package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// suggests waits until the open list of suggestions has exactly these options; none: until no list
// is open.
func (p *page) suggests(options ...string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[[]string](p, `[...document.querySelectorAll(".suggested:popover-open [role=option]")].map(o => o.innerText.replace(/\s+/g, " ").trim())`)
		if err == nil && !slices.Equal(got, options) {
			err = fmt.Errorf("the suggestions are %q and not %q", got, options)
		}
		return err
	})
	p.settle()
	return p
}

// active returns the value of the active option of the field with the focus, or "".
func (p *page) active() string {
	p.t.Helper()
	return mustEval[string](p, `document.getElementById(document.activeElement.getAttribute("aria-activedescendant") ?? "")?.dataset.value ?? ""`)
}

// asks waits until the address has this parameter.
func (p *page) asks(parameter string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p, "location.search")
		if err == nil && !slices.Contains(strings.Split(strings.TrimPrefix(got, "?"), "&"), parameter) {
			err = fmt.Errorf("the address has no %q: %s", parameter, got)
		}
		return err
	})
	p.settle()
	return p
}

// namedRules creates rules with names that differ from their slugs.
func namedRules(w *world) {
	w.t.Helper()
	for slug, name := range map[string]string{"orders": "Purchases", "orders-eu": "Purchases, EU", "coffee": "Café"} {
		status, answer := w.post(w.key(), "/v1/rules", map[string]any{"slug": slug, "name": name, "resource": slug, "limit": 5, "window": "1h"})
		require.Equal(w.t, 201, status, "%s", answer)
	}
}

// A field suggests values by a part of their name or slug, whatever the case and the accents.
// Arrows move through the suggestions, Enter chooses one and applies the filter, and Escape keeps
// the text. A screen reader hears how many there are.
func TestCombobox(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	namedRules(w)
	p := w.as(tenants.Viewer)
	p.openUntil("/rules", "Café")
	p.click("Decisions").at("/decisions") // the field arrives with htmx
	p.fill("Rule", "ORD").suggests("Purchases orders", "Purchases, EU orders-eu").check()
	require.Equal(t, []string{"combobox", "list", "true", "true"}, mustEval[[]string](p, `(e => [e.role, e.ariaAutoComplete, e.ariaExpanded,
		String(document.getElementById(e.getAttribute("aria-controls")).role === "listbox")])(document.activeElement)`))
	require.Equal(t, "2 results.", mustEval[string](p, `document.getElementById("said").textContent`))
	require.Empty(t, p.active())
	require.Equal(t, "orders", p.press(kb.ArrowDown).active())
	p.check()
	require.Equal(t, "orders-eu", p.press(kb.End).active())
	require.Equal(t, "orders", p.press(kb.Home).active())
	require.Equal(t, "orders-eu", p.press(kb.ArrowDown).active())
	require.Empty(t, p.press(kb.ArrowDown).active(), "the text, after the last option")
	p.press(kb.Escape).suggests()
	require.Equal(t, []string{"ORD", "false"}, mustEval[[]string](p, `(e => [e.value, e.ariaExpanded])(document.activeElement)`))
	p.asks("rule=ORD") // a text is applied when its suggestions are closed

	p.fill("Rule", "cafe").suggests("Café coffee").press(kb.ArrowDown).press(kb.Enter).asks("rule=coffee").suggests()
	require.Equal(t, []string{"rule", "coffee", "combobox"}, mustEval[[]string](p, `(e => [e.name, e.value, e.role])(document.activeElement)`), "the focus stays")
	require.Equal(t, "orders-eu", p.press(kb.ArrowUp).suggests("Café coffee", "Purchases orders", "Purchases, EU orders-eu").active(), "all others, from the last")
	p.press(kb.Escape).suggests()
	p.fill("Rule", "orders-eu").asks("rule=orders-eu") // as typed, because it is complete
	require.False(t, mustEval[bool](p, `document.querySelector("[list]") !== null`), "the browser shows no list of its own")
}

// A pointer chooses, too: a mouse on a computer, and a finger on a phone. No card or drawer cuts
// the list off, and it stays within the screen.
func TestComboboxWithPointer(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	namedRules(w)
	p := w.as(tenants.Viewer)
	p.openUntil("/rules", "Café")
	p.open("/decisions").click("Rule").suggests("Café coffee", "Purchases orders", "Purchases, EU orders-eu").shot("combobox-light")
	p.theme("dark").shot("combobox-dark").theme("light")
	p.click("Purchases orders").asks("rule=orders").suggests()
	require.Equal(t, "orders", p.value("Rule"))

	tap := func(selector string) {
		t.Helper()
		at := mustEval[[]float64](p, `(e => { const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })(`+selector+`)`)
		call(p, input.DispatchTouchEvent, input.DispatchTouchEventParams{Type: input.DispatchTouchEventTypeTouchStart, TouchPoints: []*input.TouchPoint{{X: at[0], Y: at[1]}}})
		call(p, input.DispatchTouchEvent, input.DispatchTouchEventParams{Type: input.DispatchTouchEventTypeTouchEnd, TouchPoints: []*input.TouchPoint{}})
	}
	p.phone().open("/decisions").click("Filters")
	tap(`document.querySelector("[name=rule]")`)
	p.suggests("Café coffee", "Purchases orders", "Purchases, EU orders-eu").shot("combobox-phone").check()
	box := mustEval[[]float64](p, `(b => [b.left, b.top, innerWidth - b.right, innerHeight - b.bottom])(document.querySelector(".suggested").getBoundingClientRect())`)
	for _, space := range box {
		require.GreaterOrEqual(t, space, 0.0, "within the screen")
	}
	require.GreaterOrEqual(t, mustEval[int](p, `document.querySelector(".suggested [role=option]").offsetHeight`), 40, "as high as a finger needs")
	tap(`document.querySelectorAll(".suggested [role=option]")[0]`)
	p.asks("rule=coffee")
}

// Subjects are suggested by the server, with the name that their label has. A form is not sent by a
// choice. The editor of a rule suggests the time zones of the browser, also while the page is
// scrolled.
func TestComboboxInForms(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 5)
	_, _, err := w.store.PutSubject(t.Context(), w.actor, tenants.Subject{Subject: "acme-corp", Labels: map[string]string{"name": "Acme Corporation"}}, tenants.Match{})
	require.NoError(t, err)
	w.ask(w.key(), "acme-labs", "orders")
	p := w.as(tenants.Editor)
	p.openUntil("/subjects", "acme-labs")
	p.open("/tester").fill("Subject", "acm").suggests("Acme Corporation acme-corp", "acme-labs").check()
	p.press(kb.ArrowDown).press(kb.Enter).suggests().at("/tester")
	require.Equal(t, "acme-corp", p.value("Subject"))
	p.press(kb.Enter).sees("acme-corp").asks("subject=acme-corp")

	p.open("/subjects").fill("Subject", "acme-c").suggests("Acme Corporation acme-corp").press(kb.ArrowDown).press(kb.Enter).asks("q=acme-corp")

	p = demo(t).as(tenants.Editor).open("/rules/exports/edit")
	p.fill("Time zone", "amster").suggests("Europe/Amsterdam").press(kb.ArrowDown).press(kb.Enter).suggests()
	require.Equal(t, "Europe/Amsterdam", p.value("Time zone"))
	p.fill("Resource", "export").press(kb.Escape).suggests()
}

// Without scripts, the browser shows the suggestions of the page.
func TestComboboxWithoutScripts(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).withoutScripts().open("/usage")
	require.True(t, mustEval[bool](p, `[...document.querySelector("[name=rule]").list.options].some(o => o.value === "api-requests" && o.label === "API requests")`))
}
