package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
)

// Somebody makes a rule, is told while typing what is wrong and what it would do, tries it in
// shadow, goes back to what it was, and deletes it.
func TestRuleWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Editor).open("/rules").click("Make the first rule").sees("A steady stream")
	p.fill("Limit, in units", "many").sees("Limit must be a whole number, such as 100.").seesNot("Slug must be 1 to 63")
	p.check()
	p.fill("Limit, in units", "50").sees("Each subject may use 50 units in any minute on all resources.").check()
	p.phone().check()
	p.desktop().click("Make the rule")
	p.at("/rules/api-requests").sees("The rule API requests is made. It is enforced from now on.").check()

	p.click("Shadow").sees("API requests is in shadow now").check()
	p.click("Edit").sees("A burst").fill("Limit, in units", "5").sees("may use 5 units").click("Save the changes")
	p.sees("The rule API requests is changed.")
	p.click("History").sees("Each subject may use 50 units").check()
	p.phone().check()
	p.desktop().within("Made").click("Restore this")
	p = p.within("")
	p.at("/rules/api-requests").sees("may use 50 units in any minute on all resources. More is denied.")

	p.click("Delete").sees("Its counters are forgotten").check()
	p.click("Delete the rule").at("/rules").sees("The rule api-requests is deleted.").sees("No rules yet")
}

// A number of the pricing page is changed with the keyboard alone, in its place, and never before
// it was said whom that concerns.
func TestPlansWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("mails", 10)
	p := w.as(tenants.Editor).open("/plans").click("Make the first plan").check()
	p.fill("Slug", "free").fill("Name", "Free").click("Make the plan").at("/plans").sees("is the default")

	limit := func(want check.Limit) {
		t.Helper()
		plan, err := w.store.PlanBySlug(t.Context(), w.actor, "free")
		require.NoError(t, err)
		require.Equal(t, want, plan.Limits["mails"])
	}
	p.click("Free, Mails: 10 per hour. Change").has("Limit of Free for Mails").check()
	p.fill("Limit of Free for Mails", "5").press(kb.Enter).sees("10 per hour → 5 per hour").check()
	limit(check.Limit{})
	p.press(kb.Escape).seesNot("→").hasNot("Limit of Free for Mails")
	p.press(kb.Enter).fill("Limit of Free for Mails", "6").press(kb.Enter).sees("Nobody whom it concerns has asked anything")
	p.press(kb.Enter).sees("Free gives Mails 6 per hour now.").check()
	limit(check.Limit{Limit: 6})

	p.click("Free, Mails: 6 per hour. Change").allow(422).fill("Limit of Free for Mails", "none").press(kb.Enter).sees("Limit must be a whole number")
	p.phone().open("/plans").check()
	w.as(tenants.Viewer).open("/plans").sees("6 per hour").hasNot("New plan").check()
}
