package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Actions that one form undoes offer it: the block of a subject, a boost, the deletion of a rule,
// and the switch of a mode.
func TestUndo(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Editor).open("/subjects/eve")
	p.click("Block").fill("Reason", "spam")
	p.within("Denies every check of this subject").click("Block")
	p.sees("eve is blocked.").check()
	p.click("Undo").sees("eve is active.")
	p.click("Boost limit").fill("Reason", "a sale")
	p.within("Raises the limit of one rule").click("Boost limit")
	p.sees("boosted to 20").sees("0 of 20 used")
	for _, screen := range []func() *page{p.phone, p.desktop} {
		screen()
		require.True(t, mustEval[bool](p, `(button => button.scrollWidth <= button.clientWidth && button.offsetHeight < 48)(document.querySelector(".toast form button"))`), "the button is on one line")
	}
	p.click("Undo").sees("Override of eve under Orders removed.").sees("0 of 10 used")
	require.Equal(t, "fixed", mustEval[string](p, `getComputedStyle(document.querySelector(".toast")).position`), "nothing moves")
	p.click("Close message").seesNot("Override of eve under Orders removed.")
	p.open("/audit?kind=subject").sees("boosted Orders 10 to 20 until").seesNot("created the subject")

	p.open("/rules/orders").click("Shadow").sees("is in shadow.").click("Undo").sees("Rule “Orders” is enforced.")
	p.click("Delete rule").sees("Its counters are deleted").click("Delete rule")
	p.at("/rules").sees("Rule “Orders” deleted.").click("Undo")
	p.at("/rules/orders").sees("Rule “Orders” restored.").sees("Each subject can use 10 units")
}

// The audit trail undoes a change of a rule: the page stays, says what the rule is now, and can
// undo that, too.
func TestUndoFromAuditTrail(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Editor).open("/rules/orders/edit").sees("Save changes").fill("Limit", "5").click("Save changes").sees("Rule “Orders” saved.")
	p.open("/rules/orders").click("Shadow").sees("is in shadow.")
	p.open("/audit?kind=rule").sees("changed the rule Orders").check()
	p.within("enforce to shadow").click("Undo this change of Orders")
	p = p.within("")
	p.at("/audit?kind=rule").sees("Change of rule “Orders” undone: Mode shadow to enforce.")
	rule, err := w.store.RuleBySlug(t.Context(), w.actor, "orders")
	require.NoError(t, err)
	require.Equal(t, limit.Enforce, rule.Mode)
	require.Equal(t, int64(5), rule.Limit, "the other change stays")
	p.click("Undo").at("/audit?kind=rule").sees("Rule restored to its state of")
	rule, err = w.store.RuleBySlug(t.Context(), w.actor, "orders")
	require.NoError(t, err)
	require.Equal(t, limit.Shadow, rule.Mode)
	p.phone().open("/audit?kind=rule").check()
	w.as(tenants.Viewer).open("/audit?kind=rule").hasNot("Undo this change of Orders")
}

// A form with changes asks before the person leaves it. The draft of a new rule is kept, and comes
// back.
func TestLeavingTheRuleForm(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Editor).open("/rules/orders/edit").sees("Save changes").fill("Limit", "7")
	mustEval[bool](p, `(window.confirm = text => { window.asked = text; return false }, true)`)
	p.click("Subjects").at("/rules/orders/edit")
	require.Equal(t, "Leave without saving your changes?", mustEval[string](p, "window.asked"))
	mustEval[bool](p, `(window.confirm = () => true, true)`)
	p.click("Subjects").at("/subjects")

	p.open("/rules/new").sees("Steady").fill("Name", "Night jobs").sees("Draft saved at")
	require.Equal(t, "night-jobs", p.value("Slug"), "the slug follows the name")
	p.click("Subjects").at("/subjects").sees("Draft of the new rule kept.")
	p.open("/rules/new").sees("Draft restored.")
	require.Equal(t, "Night jobs", p.value("Name"))
	p.click("Discard draft").sees("Steady").seesNot("Draft restored.")
}

// An empty list says what belongs there and how to get it.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	p := newTenant(t).as(tenants.Owner)
	for path, text := range map[string]string{
		"/decisions?show=all":     "Each check of your application appears here",
		"/usage?by=rule":          "Usage counts the allowed and denied checks",
		"/rules":                  "A rule limits how many units a subject can use",
		"/plans":                  "A plan sets the limits of a tier.",
		"/routes":                 "A gateway such as nginx",
		"/subjects":               "Register a subject to give it a plan",
		"/requests":               "When a customer asks for a higher limit",
		"/billing":                "Connect Stripe or another billing system",
		"/billing/events":         "Events appear here as soon as a connected provider sends them.",
		"/metered":                "Weir records the units of a metered rule exactly",
		"/settings/notifications": "Create an endpoint to get notices",
	} {
		p.open(path).sees(text).check()
	}
}
