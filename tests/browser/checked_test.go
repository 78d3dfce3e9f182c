package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The forms of rules and routes say what is wrong with a field on leaving it, and on sending,
// without a request, in the words of the server.
func TestRuleAndRouteFormsCheckFields(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Editor).open("/rules/new")
	p.fill("Slug", "My Rule").press(kb.Tab).sees("Must be 1 to 63 of a-z, 0-9 and -.")
	p.fill("Limit", "many").press(kb.Tab).sees("Must be a whole number, such as 100.")
	p.fill("Limit", "0").press(kb.Tab).sees("Must be a whole number from 1 to 1000000000 with sliding_window_counter.").check()
	p.fill("Limit", "1 000").press(kb.Tab).seesNot("with sliding_window_counter")
	p.click("Create rule").at("/rules/new")
	require.Equal(t, "true", mustEval[string](p, `document.activeElement.getAttribute("aria-invalid")`), "the first invalid field has the focus")

	p.open("/routes/new").click("Create route").sees("Enter the slug, for example edge.").sees("Enter the subject sources").at("/routes/new")
}

// Empty fields of filters do not stand in the address, and a resource is suggested that no rule
// names, because it was checked.
func TestFiltersLeaveEmptyFieldsOut(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/decisions")
	p.choose("Show", "All checks")
	require.NotRegexp(t, `=(&|$)`, mustEval[string](p, "location.search"))
	p = demo(t).as(tenants.Viewer).withoutScripts().open("/subjects")
	p.fill("Label", "name: x").press(kb.Enter).at("/subjects?label=name%3A+x")
}

// The address of a tested check has no empty parameters, with scripts and without. Sent without a
// subject, the form without scripts says so.
func TestTesterLeavesEmptyFieldsOut(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 5)
	for _, p := range []*page{w.as(tenants.Viewer), w.as(tenants.Viewer).withoutScripts()} {
		p.open("/tester").fill("Subject", "ada").press(kb.Enter).at("/tester?subject=ada")
	}
}

// The cost of a route and the window of a rule are checked on leaving them, in the words of the
// server.
func TestCostsAndWindowsAreChecked(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Editor).open("/routes/new")
	p.fill("Cost", "-1").press(kb.Tab).sees("Must be a whole number from 0 to").check()
	p.fill("Cost", "2").press(kb.Tab).seesNot("Must be a whole number from 0 to")
	p.fill("Cost", "") // so that the form can be left
	p.open("/rules/new").fill("Window", "soon").press(kb.Tab).sees("Must be a whole number, such as 1.").check()
	p.fill("Window", "5").press(kb.Tab).seesNot("Must be a whole number, such as 1.")
}
