package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// Everything can be done with the keyboard: "?" lists the shortcuts, "g" and a letter go to a page,
// "/" searches, and the palette runs the actions of rules and of this browser.
func TestShortcuts(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 2)
	p := w.as(tenants.Editor).open("/plans")
	p.goes("r", "/rules").sees("Orders")
	p.press("?").sees("Keyboard shortcuts").check()
	p.theme("dark").check()
	p.theme("light").press(kb.Escape).seesNot("Show the shortcuts")
	p.press("/")
	require.Equal(t, "search", mustEval[string](p, `document.activeElement.type`))
	p.press("g").press("p") // typed into the field
	p.at("/rules")
	p.open("/plans").press("/").sees("Esc close").press(kb.Escape)

	const field = "Search for a subject, rule, plan, page or action"
	p.press("k", chromedp.ModifierCtrl).fill(field, "shadow orders").press(kb.Enter)
	p.at("/rules/orders?mode=shadow").sees("to shadow?").check()
	p.press(kb.Enter).sees("is in shadow.").check()
	p.click("Undo")
	p.sees("is enforced. It would have denied").check()
	p.press("k", chromedp.ModifierCtrl).fill(field, "dark theme").press(kb.Enter)
	p.eventually(func() error { return p.themed("dark") })
	p.press("k", chromedp.ModifierCtrl).fill(field, "delete orders").press(kb.Enter)
	p.at("/rules/orders?open=delete-rule").sees("Delete the rule Orders?").check()
}

// goes presses "g" and the letter until the page has this path: a browser that stalls between the
// two keys takes them for unrelated ones.
func (p *page) goes(letter, path string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p, "location.pathname")
		if err == nil && got != path {
			p.press("g").press(letter)
			err = fmt.Errorf("the page is at %s and not at %s", got, path)
		}
		return err
	})
	return p.at(path)
}

// themed requires that the page has this theme.
func (p *page) themed(want string) error {
	got, err := eval[string](p, `document.documentElement.dataset.theme ?? ""`)
	if err == nil && got != want {
		err = fmt.Errorf("the theme is %q and not %q", got, want)
	}
	return err
}

// The shortcuts of one key can be turned off.
func TestShortcutsOff(t *testing.T) {
	t.Parallel()
	p := newTenant(t).as(tenants.Viewer).open("/plans")
	p.press("?").sees("Keyboard shortcuts")
	p.click("Use shortcuts without Ctrl in this browser")
	p.press(kb.Escape).press("g").press("r")
	p.open("/audit").press("g").press("r").press("?").seesNot("Keyboard shortcuts").at("/audit")
}

// The operator creates a quota for one tenant, after a look at who would be over it, in shadow.
func TestNewQuota(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	p := w.operator().open("/tenants/" + w.tenant.Slug)
	p.open("/tenants/" + w.tenant.Slug + "/quota").sees("Enter the number of checks").check()
	one := "Only " + w.tenant.Name
	p.fill("Checks", "1000000").sees(one + " can send 1,000,000 checks per month.")
	p.click("All tenants Every tenant has this quota. Plans of the operator’s tenant can change it by tier.").sees("Each tenant can send 1,000,000 checks per month.")
	p.click(one + " No other tenant is limited by it.").sees(one + " can send 1,000,000 checks per month.")
	p.sees("No tenant is over it").theme("dark").check()
	p.theme("light").phone().check()
	p.desktop().fill("Reason", "a trial").click("Create quota").at("/tenants/" + w.tenant.Slug).sees("created in shadow")
}
