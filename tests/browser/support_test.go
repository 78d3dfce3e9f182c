package browser

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Ten seconds are enough to find out why a customer is blocked and to free them: from the sign-in
// to the freed customer it takes at most four clicks.
func TestSupportFreesACustomerInFourClicks(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("requests", 2)
	key := w.key()
	require.Eventually(t, func() bool { return !w.ask(key, "user_42", "requests") }, time.Minute, time.Millisecond, "it is denied in the end")

	clicks := 0
	click := func(p *page, name string) *page {
		clicks++
		return p.click(name)
	}
	p := w.nobody().open("/login")
	p.fill("Email", w.person(tenants.Support)).fill("Password", password)
	click(p, "Sign in").sees("Overview")
	click(p, "Search or jump to... Ctrl K")
	p.fill("Search for a subject, rule, plan, page or action", "user_4").sees("user_4")
	p.fill("Search for a subject, rule, plan, page or action", "user_42").press(kb.Enter)
	p.at("/subjects/user_42").sees("Denied by")
	p.within("Denied by").fill("Reason", "they wrote in")
	click(p, "Reset 1 limit").sees("user_42 reset: requests")
	require.LessOrEqual(t, clicks, 4)
	require.True(t, w.ask(key, "user_42", "requests"))
	p.check()
}

// A paid quota is not given away: what frees a customer resets the denying limits alone, and boosts
// and resets begin with them.
func TestFreeingKeepsOtherLimits(t *testing.T) {
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
	p.sees("Limits of user_42 reset: requests.").sees("0 of 2 used").sees("1 of 100 used")
}

// The palette opens from anywhere by the keyboard and leads to what is named, or does it.
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
	p.press("spam").press(kb.Enter) // the focus is in the form that is open
	p.sees("eve is blocked. Every check is denied.").check()
	p.phone().open("/subjects/eve").check()
}
