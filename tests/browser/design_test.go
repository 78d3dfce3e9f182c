package browser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The typeface is our own, the sizes are those of the design, and a whole row leads to its page.
func TestTypeAndRows(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Support).open("/subjects").sees("user_42")
	require.True(t, mustEval[bool](p, `document.fonts.ready.then(() => [...document.fonts].some(f => f.family.includes("Inter") && f.status === "loaded"))`))
	const style = `(s => { const c = getComputedStyle(document.querySelector(s)); return c.fontSize + "/" + c.lineHeight + " " + c.fontWeight })`
	require.Equal(t, "14px/20px 400", mustEval[string](p, style+`("body")`))
	require.Equal(t, "13px/20px 400", mustEval[string](p, style+`("tbody td")`))
	require.Equal(t, "14px/20px 500", mustEval[string](p, style+`("main button")`))
	require.Contains(t, mustEval[string](p, `getComputedStyle(document.querySelector("td.num")).fontVariantNumeric`), "tabular-nums")
	require.Equal(t, "none", mustEval[string](p, `getComputedStyle(document.querySelector("tbody th a")).textDecorationLine`), "no underline until the row is pointed at")
	mustEval[bool](p, `(row => {
		const box = row.getBoundingClientRect();
		document.elementFromPoint(box.right - 30, box.top + box.height / 2).click();
		return true;
	})([...document.querySelectorAll("tbody tr")].find(row => row.textContent.includes("user_42")))`)
	p.at("/subjects/user_42")
}

// Rows have one line, lists have no empty columns, and wide screens have a centred page.
func TestDensity(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Owner)
	for _, path := range []string{"/rules", "/subjects", "/settings/security", "/keys", "/members", "/usage?period=7d&by=rule", "/"} {
		p.open(path)
		const highest = `Math.max(...[...document.querySelectorAll("main .card tbody tr, main .limits > .limit")].map(row => row.offsetHeight))`
		require.LessOrEqual(t, mustEval[int](p, highest), 40, "the height of one line: %s", path)
	}
	p.open("/subjects/umbrella").sees("Exports")
	require.LessOrEqual(t, mustEval[int](p, `Math.max(...[...document.querySelectorAll(".limits > .limit")].map(row => row.offsetHeight))`), 38, "each limit of a subject")
	for _, path := range []string{"/audit"} {
		p.open(path)
		require.LessOrEqual(t, mustEval[int](p, `Math.max(...[...document.querySelectorAll(".decided tbody tr, .trail > li")].map(row => row.offsetHeight))`), 38, "%s", path)
	}
	p.width = 2560
	p.must(p.screen(p.height), "set a wide screen")
	box := mustEval[[]int](p.open("/rules"), `(main => { const b = main.getBoundingClientRect(); return [b.width, b.left - 232, innerWidth - b.right].map(Math.round) })(document.querySelector("main"))`)
	require.LessOrEqual(t, box[0], 1440)
	require.InDelta(t, box[1], box[2], 20, "as much space on the left as on the right")
}

// Meters show what is used. Only a limit that denies is red, and only one from 80 % on is amber.
func TestMeters(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	for slug, used := range map[string]int{"quiet": 1, "tight": 9, "full": 11} {
		w.rule(slug, 10)
		key := w.key()
		for range used {
			w.ask(key, "user_42", slug)
		}
	}
	p := w.as(tenants.Viewer).openUntil("/subjects/user_42", "10 of 10")
	parts := func(rule string) string {
		return mustEval[string](p, `[...document.querySelectorAll(".limits > .limit")].find(row => row.querySelector("a")?.textContent === "`+rule+`").querySelector(".meter").outerHTML`)
	}
	require.NotContains(t, parts("Quiet"), "near")
	require.NotContains(t, parts("Quiet"), "over")
	require.Contains(t, parts("Tight"), "used near")
	require.NotContains(t, parts("Tight"), "over")
	require.Contains(t, parts("Full"), "over denied")
	p.check()
}

// The overview leads with a sentence, then come the chart, what is denied, and the counts of the
// configuration.
func TestOverviewLeadsWithTheCause(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Owner).open("/").sees("Most denied subjects")
	require.True(t, mustEval[bool](p, `(() => {
		const parts = [".lead", ".tiles", ".plot", "[sse-swap=denied]", "[sse-swap=denying]", "[sse-swap=near]", ".counts"].map(s => document.querySelector("main " + s));
		return parts.every((part, i) => part && (i === 0 || parts[i - 1].compareDocumentPosition(part) & Node.DOCUMENT_POSITION_FOLLOWING));
	})()`))
	for _, width := range []int{1280, 1440, 1920} {
		p.width = width
		p.must(p.screen(p.height), "set the width of the screen")
		require.True(t, mustEval[bool](p, `(grid => {
			const end = grid.lastElementChild.getBoundingClientRect(), all = grid.getBoundingClientRect();
			return Math.abs(end.right - all.right) < 2;
		})(document.querySelector(".quad"))`), "the lists fill their rows at %d pixels", width)
	}
}

// Each place of the navigation has an icon, and what destroys is named in red.
func TestIconsAndDangerousActions(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("orders", 10)
	p := w.as(tenants.Owner).open("/rules/orders")
	require.True(t, mustEval[bool](p, `[...document.querySelectorAll(".nav a")].every(a => a.querySelector("svg.i"))`))
	const colour = `(text => getComputedStyle([...document.querySelectorAll("main summary, main button")].find(e => e.textContent.trim() === text)).color)`
	require.Equal(t, "rgb(176, 42, 22)", mustEval[string](p, colour+`("Delete rule")`))
	require.Equal(t, "rgb(176, 42, 22)", mustEval[string](p.open("/subjects/eve"), colour+`("Block")`))
	_, err := w.store.InviteMember(t.Context(), w.actor, "new@"+w.tenant.Slug+".example", tenants.Viewer)
	require.NoError(t, err)
	require.Equal(t, "rgb(176, 42, 22)", mustEval[string](p.open("/members"), colour+`("Withdraw")`))
}

// The editor of a rule is one screen of 1440 by 900: what is asked, the effect, and the buttons.
func TestRuleEditorFitsOneScreen(t *testing.T) {
	t.Parallel()
	p := newTenant(t).as(tenants.Editor)
	p.width, p.height = 1440, 900
	p.must(p.screen(900), "set the screen")
	p.open("/rules/new").sees("Steady")
	for _, selector := range []string{"[name=name]", "[name=resource]", "[name=limit]", ".tilesof", "[name=mode]", "#rule-form .buttons button", ".effect h2"} {
		bottom := mustEval[int](p, `Math.round(document.querySelector("`+selector+`").getBoundingClientRect().bottom)`)
		require.LessOrEqual(t, bottom, 900, selector)
		require.Positive(t, bottom, selector)
	}
	require.Equal(t, 8, mustEval[int](p, `document.querySelectorAll(".tilesof .curve").length`), "each algorithm has its curve")
	require.False(t, mustEval[bool](p, `[...document.querySelectorAll("#rule-form details")].some(d => d.open)`), "what is rarely needed is folded")
	p.phone().open("/rules/new").sees("Steady").click("Preview")
	require.Less(t, mustEval[int](p, `Math.round(document.querySelector(".effect").getBoundingClientRect().top)`), phoneHeight)
}

// A page about an error has the frame, says what to do, and leads on.
func TestErrorPages(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer)
	for path, c := range map[string]struct {
		status int
		says   string
	}{
		"/rules/none":         {404, "Check the address, or search for it."},
		"/rules/new":          {403, "Ask an owner or an admin"},
		"/?period=2h":         {400, "Go back, and choose another value."},
		"/usage?period=never": {422, "Fix the highlighted fields."},
	} {
		p.openFor(path, c.status).sees(c.says).has("Rules")
		p.check()
	}
	p.openFor("/rules/none", 404).phone().check()
	p.desktop().click("Go to the overview").at("/")
	demo(t).visitor().openFor("/invitation/none", 404).sees("no longer valid").check()
}

// A phone has one bar of 56 pixels, and the rest is behind it.
func TestBarOnAPhone(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Viewer).phone().open("/rules")
	require.Equal(t, 56, mustEval[int](p, `document.querySelector(".bar-top").offsetHeight`))
	p.hasNot("Audit trail").click("Menu").has("Audit trail").check()
	p.click("Audit trail").at("/audit")
}

// The texts of the navigation stay inside their boxes, on every width of a screen.
func TestNavigationFits(t *testing.T) {
	t.Parallel()
	p := demo(t).as(tenants.Support)
	for _, width := range []int{760, 1024, 1280} {
		p.width = width
		p.must(p.screen(p.height), "set the width of the screen")
		p.open("/subjects")
		require.True(t, mustEval[bool](p, `[...document.querySelectorAll(".side .jump, .side .me, .side .tenant")].every(e => {
			const box = e.getBoundingClientRect();
			return e.scrollWidth <= e.clientWidth && [...e.children].every(c => c.getBoundingClientRect().right <= box.right + 1);
		})`), "%d pixels", width)
	}
}
