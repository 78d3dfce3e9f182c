package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Forms suggest plans and rules by their names, as the filters do. A typed name stands for its
// slug, and a text that names nothing gets a message on leaving the field, in the words of the
// server.
func TestFormsSuggestPlansAndRules(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 5)
	for slug, name := range map[string]string{"pro": "Professional", "scale": "Scale"} {
		_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: slug, Name: name})
		require.NoError(t, err)
	}
	p := w.as(tenants.Editor)
	p.openUntil("/subjects/ada", "Orders")
	p.click("Change plan").fill("Plan", "profess").suggests("Professional pro").shot("named-plan")
	p.press(kb.ArrowDown).press(kb.Enter).suggests()
	require.Equal(t, "pro", p.value("Plan"))
	p.sees("Professional").fill("Plan", "gold").press(kb.Tab).sees("Must be one of the listed options.").check()
	p.fill("Reason", "asked for it").click("Change plan").sees("Must be one of the listed options.")
	p.fill("Plan", "scale").press(kb.Tab).seesNot("Must be one of the listed options.")
	p.fill("Plan", "PROFESSIONAL").press(kb.Tab)
	require.Equal(t, "pro", p.value("Plan"))
	p.within("Reason").click("Change plan")
	p.sees("Plan of ada changed to Professional.")

	p.open("/subjects/ada").click("Boost limit").fill("Rule", "ord").suggests("Orders: 5 per hour orders").press(kb.ArrowDown).press(kb.Enter)
	require.Equal(t, "orders", p.value("Rule"))
	p.sees("Orders: 5 per hour")
	p.fill("Rule", "").press(kb.Tab).sees("Choose a rule.")

	p.open("/subjects").fill("Plan", "prof").suggests("Professional pro").press(kb.ArrowDown).press(kb.Enter).asks("plan=pro").sees("ada")
}

// Without scripts the server does the same: it takes a name for a slug, and names the field of a
// text that names nothing.
func TestFormsSuggestPlansWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: "pro", Name: "Professional"})
	require.NoError(t, err)
	p := w.as(tenants.Editor).withoutScripts().open("/subjects/ada?open=plan")
	require.True(t, mustEval[bool](p, `[...document.querySelector("#plan-plan").list.options].some(o => o.value === "pro" && o.label === "Professional")`))
	submit := func(plan string) {
		t.Helper()
		p.fill("Plan", plan).fill("Reason", "asked for it").press(kb.Enter)
	}
	p.allow(422)
	submit("gold")
	p.sees("Nothing saved. Fix the highlighted fields.")
	p.open("/subjects/ada?open=plan")
	submit("professional")
	p.sees("Professional plan")
}
