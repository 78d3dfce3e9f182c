package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Buttons stay where they are while their forms are open, because these open in a drawer.
func TestActionButtonsStay(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Editor).open("/subjects/eve")
	const places = `JSON.stringify([...document.querySelectorAll("section[aria-label=Actions] > details > summary")].map(e => [e.offsetLeft, e.offsetTop]))`
	before := mustEval[string](p, places)
	for _, name := range []string{"Reset limits", "Boost limit", "Change plan", "Block"} {
		p.open("/subjects/eve").click(name).check()
		require.Equal(t, before, mustEval[string](p, places), name)
	}
	p.open("/subjects/eve").click("More actions").check().click("Exempt").sees("Its rules keep counting and deny nothing.")
	require.Equal(t, before, mustEval[string](p, places))
	p.open("/subjects/eve?open=override").sees("It takes precedence over the plan and the rule.")
}

// An address can open a form by its verb or by the state that it sets.
func TestOpenInTheAddress(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Editor)
	for _, open := range []string{"block", "blocked"} {
		p.open("/subjects/eve?open=" + open).sees("Denies every check of this subject, regardless of the rules.")
	}
}

// The rule form has the burst beside the limit, but only for an algorithm that needs it, and counts
// one minute in the singular.
func TestRuleFormDetails(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Editor).open("/rules/new").sees("Steady")
	const shown = `document.querySelector("[name=burst]").checkVisibility()`
	require.False(t, mustEval[bool](p, shown))
	p.click("Token bucket Bursts, steady average")
	require.True(t, mustEval[bool](p, shown+` && document.querySelector("[name=burst]").offsetTop === document.querySelector("[name=limit]").offsetTop`))
	const unit = `document.querySelector("[name=window_unit] option:checked").textContent.trim()`
	require.Equal(t, "minute", mustEval[string](p, unit))
	p.fill("Window", "2")
	require.Equal(t, "minutes", mustEval[string](p, unit))
	w.rule("orders", 10)
	p.open("/rules/orders").sees("10 per hour").seesNot("1 hours")
}

// The account menu, with the sign-out, is on the screen of a small laptop, also for the operator,
// who has the longest navigation.
func TestAccountMenuOnTheScreen(t *testing.T) {
	t.Parallel()
	p := demo(t).operator()
	p.height = 720
	p.must(p.screen(720), "set the screen of a laptop")
	p.open("/").sees("Instances")
	require.LessOrEqual(t, mustEval[int](p, `Math.round(document.querySelector(".who").getBoundingClientRect().bottom)`), 720)
	p.click("operator@weir.example owner").has("Sign out").check()
}

// The chart of a rule with one counter has its limit as a line. Other rules say why they have none,
// and a subject's page says when its checks were seen.
func TestLimitsOnCharts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	window, err := limit.ParseWindow("1h")
	require.NoError(t, err)
	_, err = w.store.CreateRule(t.Context(), w.actor, limit.Rule{Slug: "all", Name: "All", Resource: "*", Algorithm: limit.FixedWindow, Limit: 500, Window: window})
	require.NoError(t, err)
	p := w.as(tenants.Viewer).open("/rules/all").sees("Limit: 500 per hour").check()
	require.True(t, mustEval[bool](p, `!!document.querySelector(".limitline")`))
	w.rule("orders", 10)
	p.open("/rules/orders").sees("Each counter has its own limit")
	p.open("/subjects/eve").sees("First check").sees("Last check").sees("not known").check()
}
