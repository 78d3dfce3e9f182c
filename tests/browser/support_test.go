package browser

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// It takes at most four clicks, from the sign-in, to find out why a customer is denied and to reset
// their limits.
func TestSupportResetsLimitsInFourClicks(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 2)
	key := w.key()
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, time.Minute, time.Millisecond, "it is eventually denied")

	clicks := 0
	click := func(p *page, name string) *page {
		clicks++
		return p.click(name)
	}
	p := w.visitor().open("/login")
	p.fill("Email", w.person(tenants.Support)).fill("Password", password)
	click(p, "Sign in").sees("Overview")
	click(p, "Search or jump to... Ctrl K")
	p.fill("Search for a subject, rule, plan, page or action", "user_4").sees("user_4")
	p.fill("Search for a subject, rule, plan, page or action", "user_42").press(kb.Enter)
	p.at("/subjects/user_42").sees("Denied by")
	p.within("Denied by").fill("Reason", "they wrote in")
	click(p, "Reset 1 limit").sees("user_42 reset: Requests")
	require.LessOrEqual(t, clicks, 4)
	require.True(t, w.ask(key, "user_42", "requests"))
	p.check()
}

// A paid quota is not reset by accident: to help a customer, only the denying limits are reset, and
// the forms for boosts and resets preselect them.
func TestResetKeepsOtherLimits(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 2)
	w.rule("other", 100)
	key := w.key()
	require.True(t, w.ask(key, "user_42", "other"))
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, time.Minute, time.Millisecond)

	p := w.as(tenants.Support).open("/subjects/user_42").sees("limited").sees("1 of 100 used")
	p.click("Boost limit").check()
	require.Equal(t, "requests", mustEval[string](p, `document.getElementById("boost-rule").value`))
	p.press(kb.Escape).within("Denied by").fill("Reason", "they wrote in").click("Reset 1 limit")
	p.sees("Limits of user_42 reset: Requests.").sees("0 of 2 used").sees("1 of 100 used")

	// While nothing denies, no limits are preselected, also after the palette.
	const chosen = `(field => field.value || field.placeholder)(document.getElementById("reset-rule"))`
	p.open("/subjects/user_42?open=reset")
	require.Equal(t, "Choose limits", mustEval[string](p, chosen))
	p.within("Sets the used units to zero").fill("Reason", "they wrote in")
	require.False(t, mustEval[bool](p, `document.getElementById("reset-rule").form.checkValidity()`), "a choice is required")
	p.open("/plans").press("k", chromedp.ModifierCtrl).fill("Search for a subject, rule, plan, page or action", "reset user_42")
	p.sees("Reset limits of user_42").press(kb.Enter).at("/subjects/user_42?open=reset")
	require.Equal(t, "Choose limits", mustEval[string](p, chosen))
	p.choose("Limits", "All limits of this subject")
	p.within("Sets the used units to zero").fill("Reason", "they wrote in").click("Reset limits")
	p.sees("Limits of user_42 reset: ").sees("0 of 100 used")
}

// Support finds a customer who is not registered by a part of the name, and a misspelled name is
// not said to be active. The page of one that is denied says so.
func TestFindsBusySubjects(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 1)
	key := w.key()
	require.Eventually(t, func() bool { return !w.ask(key, "acme-corp", "requests") }, time.Minute, time.Millisecond)
	p := w.as(tenants.Support).open("/plans")
	const field = "Search for a subject, rule, plan, page or action"
	p.press("k", chromedp.ModifierCtrl).fill(field, "corp").sees("acme-corp").press(kb.Enter)
	p.at("/subjects/acme-corp").sees("limited").sees("Denied by Requests").seesNot("active")
	p.open("/subjects?q=acme").within("acme-corp").sees("limited")
	p.within("").open("/subjects/acme-crop").sees("No checks seen for acme-crop. Did you mean acme-corp?").seesNot("active").check()
	p.click("acme-corp").at("/subjects/acme-corp")
}

// The palette opens on every page with the keyboard, and opens the named page or runs the action.
func TestPalette(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 2)
	p := w.as(tenants.Editor).open("/plans")
	const field = "Search for a subject, rule, plan, page or action"
	p.press("k", chromedp.ModifierCtrl).fill(field, "ord").sees("Rule")
	p.check()
	p.press(kb.Escape).seesNot("Esc close")
	p.press("k", chromedp.ModifierCtrl).fill(field, "block eve").press(kb.Enter)
	p.at("/subjects/eve?open=blocked").sees("Denies every check of this subject")
	p.press("spam").press(kb.Enter) // the open form has the focus
	p.sees("eve is blocked. Every check is denied.").check()
	for slug, name := range map[string]string{"pro": "Pro", "free": "Free"} {
		status, answer := w.post(w.key(), "/v1/plans", map[string]any{"slug": slug, "name": name})
		require.Equal(t, 201, status, "%s", answer)
	}
	p.press("k", chromedp.ModifierCtrl).fill(field, "move eve to pro").sees("Change plan of eve to Pro").press(kb.Enter)
	p.at("/subjects/eve?open=plan&plan=pro").sees("Change plan").check()
	require.Equal(t, "pro", p.value("Plan"))
	p.phone().open("/subjects/eve").check()
}
