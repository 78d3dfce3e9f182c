package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// A person creates a rule, sees invalid values and the effect while typing, tries it in shadow
// mode, restores a version, and deletes it.
func TestRuleWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.as(tenants.Editor).open("/rules").click("Create rule").sees("Steady")
	p.fill("Limit", "many").sees("Limit must be a whole number, such as 100.").seesNot("Slug must be 1 to 63")
	p.check()
	p.fill("Limit", "50").sees("Each subject can use 50 units in any minute on all resources.").check()
	p.phone().check()
	p.desktop().click("Create rule")
	p.at("/rules/api-requests").sees("Rule “API requests” created. It is in shadow").check()

	p.click("Enforce").sees("Rule “API requests” is enforced").check()
	p.click("Edit rule").sees("Burst").fill("Limit", "5").sees("can use 5 units").click("Save changes")
	p.sees("Rule “API requests” saved.")
	p.click("History").sees("Each subject can use 50 units").check()
	p.phone().check()
	p.desktop().within("Created").click("Restore this version")
	p = p.within("")
	p.at("/rules/api-requests").sees("can use 50 units in any minute on all resources. Requests over the limit are only reported")

	p.click("Delete rule").sees("Its counters are deleted").check()
	p.click("Delete rule").at("/rules").sees("Rule “API requests” deleted.").sees("No rules yet")
}

// The fields of every algorithm and of calendar windows, the mode, the advanced fields and the
// buttons are on one screen, and the buttons do not cover the field with the focus. Enter in the
// name of a new rule does not create it.
func TestRuleEditorOnOneScreen(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Editor)
	p.width, p.height = 1440, 900
	p.must(p.screen(p.height), "set the screen")
	fits := func(what string) {
		t.Helper()
		require.LessOrEqual(t, mustEval[float64](p, `document.querySelector("#rule-form > .buttons").offsetTop + document.querySelector("#rule-form > .buttons").offsetHeight`), 900.0, what)
	}
	p.open("/rules/exports/edit").sees("Next windows")
	fits("a calendar window")
	p.open("/rules/new").sees("Steady")
	for _, name := range []string{"Leaky bucket queue Evenly spaced", "Sliding window buckets Near exact, large limits", "Token bucket Bursts, steady average"} {
		p.click(name)
		fits(name)
	}
	p.click("Leaky bucket queue Evenly spaced").has("Queue").click("Token bucket Bursts, steady average").hasNot("Queue")
	p.height = 500
	p.must(p.screen(p.height), "set a low screen")
	mustEval[bool](p, `(document.querySelector("[name=mode]:checked").focus(), true)`)
	p.press(kb.Tab)
	require.True(t, mustEval[bool](p, `document.activeElement.matches("summary") &&
		document.activeElement.getBoundingClientRect().bottom <= document.querySelector("#rule-form > .buttons").getBoundingClientRect().top`), "the focus is above the buttons")
	p = newTenant(t).as(tenants.Editor).open("/rules/new").sees("Steady").fill("Name", "Night jobs").press(kb.Enter)
	require.Equal(t, "resource", mustEval[string](p, "document.activeElement.name"))
	p.at("/rules/new")
}

// Before a lower limit of a plan is saved, the page names who is over it, also one that is denied
// already, with the usage, the old number and the new one.
func TestPlanImpactNamesWhoIsOver(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("mails", 3)
	_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: "free", Name: "Free"})
	require.NoError(t, err)
	key := w.key()
	full, half := w.counted(key, "full", "mails"), w.counted(key, "half", "mails")
	w.ask(key, half, "mails")
	require.Eventually(t, func() bool { return !w.ask(key, full, "mails") }, patience, tick)
	p := w.as(tenants.Editor).openUntil("/usage?period=1h&by=subject", full)
	p.openUntil("/usage?period=1h&by=subject", half)
	p.open("/plans/free/limits/mails").choose("Kind of limit", "Limit").fill("Limit", "1").click("Preview impact")
	p.sees(half + ": 2 of 3 used, new limit 1 per hour").sees("Denied now, and with the new limit:").sees(full + ": 3 of 3 used, new limit 1 per hour").check()
}

// A plan limit is changed with the keyboard alone, in its table cell, and only after its impact was
// shown.
func TestPlansWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("mails", 10)
	p := w.as(tenants.Editor).open("/plans").click("Create plan").check()
	p.fill("Slug", "free").fill("Name", "Free").click("Create plan").at("/plans").sees("is the default")

	lim := func(want limit.Limit) {
		t.Helper()
		plan, err := w.store.PlanBySlug(t.Context(), w.actor, "free")
		require.NoError(t, err)
		require.Equal(t, want, plan.Limits["mails"])
	}
	p.click("Free, Mails: 10 per hour. Change").has("Limit of Free for Mails").check()
	p.fill("Limit of Free for Mails", "5").press(kb.Enter).sees("10 per hour → 5 per hour").check()
	lim(limit.Limit{})
	p.press(kb.Escape).seesNot("→").hasNot("Limit of Free for Mails")
	p.press(kb.Enter).fill("Limit of Free for Mails", "6").press(kb.Enter).sees("No affected subject sent a check")
	p.press(kb.Enter).sees("Mails in plan Free set to 6 per hour.").check()
	lim(limit.Limit{Limit: 6})

	p.click("Free, Mails: 6 per hour. Change").allow(422).fill("Limit of Free for Mails", "none").press(kb.Enter).sees("Limit must be a whole number")
	p.phone().open("/plans").check()
	w.as(tenants.Viewer).open("/plans").sees("6 per hour").hasNot("Create plan").check()
}
