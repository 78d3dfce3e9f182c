package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// reachable are the elements of a page that the keyboard must reach, identified by the beginning of
// their markup: elements that update themselves are replaced while Tab moves on.
const reachable = `[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
	.filter(e => e.checkVisibility({visibilityProperty: true}) && !e.disabled && e.tabIndex >= 0 && !e.closest("dialog:not([open]), [inert]"))
	.map(e => e.outerHTML.slice(0, 160))`

// noteFocus makes the page note each element that gets the focus, and whether the focus is visible.
// Tab reaches one radio button of a group, and arrows reach the others.
const noteFocus = `window.focused = []; document.addEventListener("focusin", ({target: e}) => {
	const style = getComputedStyle(e);
	const all = e.type === "radio" ? [...document.getElementsByName(e.name)] : [e];
	focused.push({elements: all.map(o => o.outerHTML.slice(0, 160)),
		seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none"});
	})`

// A keyboard reaches everything, in order, with a visible focus.
func TestKeyboard(t *testing.T) {
	for _, path := range []string{"/", "/rules", "/rules/api-requests/edit", "/plans", "/subjects/globex"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p := demo(t).as(tenants.Owner).open(path)
			for attempt := 1; ; attempt++ { // an update of the page while Tab moves on may hide an element
				missed := p.missedByTab()
				if len(missed) == 0 {
					break
				}
				require.Less(t, attempt, 4, "Tab does not reach %s", missed)
				p.open(path)
			}
		})
	}
}

// missedByTab presses Tab as often as it takes to reach every element, and returns those that it
// did not reach.
func (p *page) missedByTab() (missed []string) {
	p.t.Helper()
	want := mustEval[[]string](p, reachable)
	mustEval[struct{}](p, noteFocus)
	p.press(strings.Repeat(kb.Tab, len(want)+5))
	reached := map[string]bool{}
	for _, now := range mustEval[[]struct {
		Elements []string
		Seen     bool
	}](p, "focused") {
		require.True(p.t, now.Seen, "the focus on %s is not visible", now.Elements)
		for _, element := range now.Elements {
			reached[element] = true
		}
	}
	for _, element := range want {
		if !reached[element] {
			missed = append(missed, element)
		}
	}
	return missed
}

// Users of screen readers can skip the navigation of each page.
func TestSkipLink(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/rules")
	p.press(kb.Tab)
	require.Equal(t, "Skip to content", mustEval[string](p, "document.activeElement.textContent"))
	top := mustEval[float64](p, "document.activeElement.getBoundingClientRect().top")
	require.GreaterOrEqual(t, top, 0.0, "it is visible while it has the focus")
	p.press(kb.Enter)
	require.Equal(t, "content", mustEval[string](p, "document.activeElement.id"))
	p.press(kb.Tab)
	require.True(t, mustEval[bool](p, `document.activeElement.closest("main") !== null`), "the focus continues from there")
}

// The service enforces roles. The dashboard also hides what a role may not do.
func TestViewersSeeNothingToChange(t *testing.T) {
	t.Parallel()
	own := []string{"sessions", "account"} // pages that every member may change
	p := demo(t).as(tenants.Viewer)
	for _, l := range looks {
		if l.as == operator || l.as == "" || slices.Contains(own, l.name) {
			continue
		}
		p.watch.begin(403)
		got := p.visit(l.path)
		require.Contains(t, []int{200, 403}, got, l.path)
		forms := mustEval[[]string](p, `[...document.querySelectorAll("main form[method=post], main dialog form")].filter(f => f.method === "post").map(f => f.outerHTML.slice(0, 200))`)
		require.Empty(t, forms, fmt.Sprintf("%s offers a change to a viewer", l.path))
	}
}
