package browser

import (
	"fmt"
	"slices"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// reachable are the elements of a page that a keyboard must reach, each as its markup begins. They
// have no other mark: what keeps itself up to date is replaced while Tab goes by.
const reachable = `[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
	.filter(e => e.checkVisibility({visibilityProperty: true}) && !e.disabled && e.tabIndex >= 0 && !e.closest("dialog:not([open]), [inert]"))
	.map(e => e.outerHTML.slice(0, 160))`

// focused is what has the focus, nothing outside the page, and whether one sees that it has it. Of
// a group of radio buttons one is reached by Tab, and the others from there by arrows.
const focused = `(e => {
	if (e === document.body || e === document.documentElement) return {elements: [], seen: true};
	const style = getComputedStyle(e);
	const all = e.type === "radio" ? [...document.getElementsByName(e.name)] : [e];
	return {elements: all.map(o => o.outerHTML.slice(0, 160)),
		seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none"};
	})(document.activeElement)`

// Who uses no mouse reaches everything, in an order, and sees where they are.
func TestKeyboard(t *testing.T) {
	for _, path := range []string{"/", "/rules", "/rules/api-requests/edit", "/plans", "/subjects/globex"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p := demo(t).as(tenants.Owner).open(path)
			want := mustEval[[]string](p, reachable)
			reached := map[string]bool{}
			for range 2*len(want) + 5 {
				p.press(kb.Tab)
				now := mustEval[struct {
					Elements []string
					Seen     bool
				}](p, focused)
				if len(now.Elements) == 0 {
					break
				}
				require.True(t, now.Seen, "one does not see that the focus is on %s", now.Elements)
				for _, element := range now.Elements {
					reached[element] = true
				}
			}
			for _, element := range want {
				require.True(t, reached[element], "Tab does not reach %s", element)
			}
		})
	}
}

// Users of screen readers must not hear the navigation again on each page.
func TestSkipLink(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).open("/rules")
	p.press(kb.Tab)
	require.Equal(t, "Skip to content", mustEval[string](p, "document.activeElement.textContent"))
	top := mustEval[float64](p, "document.activeElement.getBoundingClientRect().top")
	require.GreaterOrEqual(t, top, 0.0, "it is seen while it has the focus")
	p.press(kb.Enter)
	require.Equal(t, "content", mustEval[string](p, "document.activeElement.id"))
	p.press(kb.Tab)
	require.True(t, mustEval[bool](p, `document.activeElement.closest("main") !== null`), "and continues from there")
}

// Roles are enforced by the service; here, nobody is shown what they may not do.
func TestViewersSeeNothingToChange(t *testing.T) {
	t.Parallel()
	own := []string{"sessions", "account"} // what everybody has
	p := demo(t).as(tenants.Viewer)
	for _, l := range looks {
		if l.as == operator || l.as == "" || slices.Contains(own, l.name) {
			continue
		}
		p.watch.begin(403)
		got := p.visit(l.path)
		require.Contains(t, []int{200, 403}, got, l.path)
		forms := mustEval[[]string](p, `[...document.querySelectorAll("main form[method=post], main dialog form")].filter(f => f.method === "post").map(f => f.outerHTML.slice(0, 200))`)
		require.Empty(t, forms, fmt.Sprintf("%s offers a viewer to change something", l.path))
	}
}
