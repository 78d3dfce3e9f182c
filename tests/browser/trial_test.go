package browser

import (
	"errors"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// focused waits until the expression about the element with the focus is true: a page that was
// swapped moves the focus a moment later.
func (p *page) focused(expression string) {
	p.t.Helper()
	p.eventually(func() error {
		there, err := eval[bool](p, expression)
		if err == nil && !there {
			err = errors.New("the focus is elsewhere: " + expression)
		}
		return err
	})
}

// limited returns a tenant with a rule of one unit per hour, an API key, and a subject that the
// rule denies.
func limited(t *testing.T, subject string) (w *world, key string) {
	t.Helper()
	w = newTenant(t)
	w.rule("requests", 1)
	key = w.key()
	require.Eventually(t, func() bool { return !w.ask(key, subject, "requests") }, patience, tick, "the second check is denied")
	return w, key
}

// An owner does the tasks of a first day with the keyboard alone: find and free a customer who is
// denied, invite a colleague, rotate a key, and delete and restore a rule.
func TestTasksWithTheKeyboard(t *testing.T) {
	t.Parallel()
	w, key := limited(t, "acme-corp")
	p := w.as(tenants.Owner).open("/")
	run := func(text string) *page {
		return p.press("k", chromedp.ModifierCtrl).fill("Search for a subject, rule, plan, page or action", text).press(kb.Enter)
	}
	run("acme-c").at("/subjects/acme-corp").sees("Denied by Requests")
	run("reset acme-corp").at("/subjects/acme-corp?open=reset").sees("Sets the used units to zero.")
	require.Equal(t, "requests", p.value("Limits"), "the rule that denies is chosen")
	p.focused(`document.activeElement.name === "rule"`)
	p.press(kb.Tab).press("they wrote in").press(kb.Enter).sees("acme-corp reset: Requests")
	require.True(t, w.ask(key, "acme-corp", "requests"))

	run("invite ann@trial.example").sees("Send invitation")
	p.focused(`document.activeElement.name === "email"`)
	require.Equal(t, "ann@trial.example", p.value("Email"))
	p.press(kb.Enter).sees("ann@trial.example is invited.")

	run("rotate tests").sees("How long the old key keeps working.")
	p.focused(`document.activeElement.name === "overlap"`)
	p.press(kb.Tab).press(kb.Enter).sees("The old key keeps working for 1 day.")

	run("delete requests").at("/rules/requests?open=delete-rule").sees("Delete the rule Requests?")
	p.focused(`document.activeElement.matches(".sheet button.danger")`)
	p.press(kb.Enter)
	p.at("/rules").sees("Rule “Requests” deleted.")
	run("restore deleted").at("/audit?kind=rule").sees("deleted the rule")
	mustEval[bool](p, `(document.querySelector("[aria-label^='Restore deleted rule']").focus(), true)`)
	p.press(kb.Enter).at("/rules/requests").sees("restored.")
}

// An editor creates one rule of each algorithm with the keyboard alone.
func TestEachKindOfRuleWithTheKeyboard(t *testing.T) {
	t.Parallel()
	p := newTenant(t).as(tenants.Editor)
	kinds := []string{"Sliding window counter", "Sliding window log", "Sliding window buckets", "Fixed window", "Fixed window from the first hit", "Token bucket", "Leaky bucket", "Leaky bucket queue"}
	for i, kind := range kinds {
		p.open("/rules/new").sees("Steady").fill("Name", kind)
		mustEval[bool](p, `(document.querySelector(".tilesof input:checked").focus(), true)`)
		for range i {
			p.press(kb.ArrowRight)
		}
		require.Contains(t, mustEval[string](p, `document.querySelector(".tilesof .option:has(:checked)").innerText`), kind)
		if kind == "Sliding window buckets" {
			p.fill("Precision", "10")
		}
		p.press(kb.Enter).sees("Rule “" + kind + "” created. It is in shadow")
	}
	p.open("/rules")
	for _, kind := range kinds {
		p.sees(kind)
	}
}

// Support answers a customer on a phone: who is denied and why, the reset, and the decision.
func TestTasksOnAPhone(t *testing.T) {
	t.Parallel()
	w, key := limited(t, "acme-corp")
	p := w.as(tenants.Support).phone().openUntil("/decisions", "acme-corp")
	mustEval[bool](p, `(document.querySelector("a[data-row]").click(), true)`)
	p.sees("acme-corp used 1 of 1 under Requests.").check()
	p.click("Open acme-corp").at("/subjects/acme-corp").sees("Denied by Requests")
	p.within("Denied by").fill("Reason", "they called").click("Reset 1 limit")
	p.sees("acme-corp reset: Requests").check()
	require.True(t, w.ask(key, "acme-corp", "requests"))
	for _, path := range []string{"/", "/decisions", "/usage", "/audit", "/rules", "/rules/requests", "/plans", "/subjects", "/subjects/acme-corp", "/tester", "/playground", "/keys", "/members", "/settings", "/sessions"} {
		p.open(path)
		require.LessOrEqual(t, mustEval[int](p, "document.documentElement.scrollWidth"), phoneWidth, "%s needs no scrolling to the side", path)
	}
}

// A chart leads from a spike to its cause, also when no instance remembers the decisions: to the
// most denied subjects of that time.
func TestSpikeLeadsToItsSubjects(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/?period=24h").sees("Most denied subjects").click("View as table")
	link := mustEval[string](p, `(a => a.pathname + a.search)([...document.querySelectorAll(".chart details tbody a")][3])`)
	p.open(link).sees("Decisions of this time are not kept any more.").check()
	p.click("View usage of this period").sees("By subject").sees("Denied")
	require.Equal(t, "denied", p.value("Sort subjects by"))
}
