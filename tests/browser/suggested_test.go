package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A field for a resource suggests one that was checked and that no rule names: in the rule form, in
// the tester and in the form of a route.
func TestFormsSuggestCheckedResources(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 5)
	w.ask(w.key(), "ada", "invoices:pdf")
	p := w.as(tenants.Editor).openUntil("/usage?by=resource", "invoices:pdf") // usage is written once a second
	for path, field := range map[string]string{"/rules/new": "Resource", "/tester": "Resource", "/routes/new": "Default resource"} {
		p.open(path).fill(field, "voices").suggests("invoices:pdf").press(kb.ArrowDown).press(kb.Enter).suggests()
		require.Equal(t, "invoices:pdf", mustEval[string](p, `document.activeElement.value`), path)
		p.fill(field, "") // so that the form can be left
	}
}

// A migration suggests the plans that it can move subjects to, and the tester takes a plan by its
// name, with scripts and without.
func TestMigrationsAndTesterSuggestPlans(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	for slug, name := range map[string]string{"pro": "Professional", "scale": "Scale"} {
		_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: slug, Name: name})
		require.NoError(t, err)
	}
	p := w.as(tenants.Editor).open("/plans/pro/versions")
	require.Equal(t, "pro", p.value("To"))
	p.fill("To", "sca").suggests("Scale scale").press(kb.ArrowDown).press(kb.Enter).suggests()
	require.Equal(t, "scale", p.value("To"))
	p.fill("To", "gold").press(kb.Tab).sees("Must be one of the listed options.")

	p = w.as(tenants.Editor).withoutScripts().open("/tester?subject=ada&plan=Professional")
	p.sees("Limits of plan Professional apply")
	p.open("/subjects?plan=Professional")
	require.Equal(t, "pro", p.value("Plan"))
}
