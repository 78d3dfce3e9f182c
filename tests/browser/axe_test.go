package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

var axe = sync.OnceValue(func() string {
	t := harness.Shared()
	source, err := os.ReadFile(filepath.Join(testenv.Root(), "tests", "browser", "testdata", "axe-core", "axe.min.js"))
	require.NoError(t, err)
	return string(source)
})

// violation is a rule of axe-core that a page violates.
type violation struct {
	ID, Help string
	Nodes    []struct {
		HTML           string
		Target         []any
		FailureSummary string
	}
}

func (v *violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.ID, v.Help)
	for i, node := range v.Nodes {
		if i == 5 {
			fmt.Fprintf(&b, "\n  and %d more", len(v.Nodes)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %v %.200s\n    %s", node.Target, node.HTML, strings.ReplaceAll(node.FailureSummary, "\n", "\n    "))
	}
	return b.String()
}

// The rules of axe-core that check runs: all of them in light, and in dark those that depend on
// colours. The others read the same document, which takes most of the time of a check.
const (
	allRules    = `runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"], rules: {"target-size": {enabled: true}}`
	colourRules = `runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}`
)

// check checks the page in its current state: axe-core finds no violation, and nothing is wider
// than the screen. On a desktop it checks in dark and in light; on a phone, which has the same
// colours, in light. It leaves the page light.
func (p *page) check() *page {
	p.t.Helper()
	looks := []struct{ theme, rules string }{{"dark", colourRules}, {"light", allRules}}
	if p.width == phoneWidth {
		looks = looks[1:]
	}
	for _, look := range looks {
		p.theme(look.theme)
		for _, v := range p.violations(look.rules) {
			assert.Fail(p.t, "axe-core finds violations", "%s, in %s, %d pixels wide\n%s", p.watch.url(), look.theme, p.width, &v)
		}
	}
	for _, element := range p.tooWide() {
		assert.Fail(p.t, "wider than the screen", "%s, %d pixels wide: %s", p.watch.url(), p.width, element)
	}
	for _, fault := range p.watch.faults() {
		assert.Fail(p.t, fault)
	}
	return p
}

// violations returns what axe-core finds. Its script runs with the browser's protocol, to which the
// content security policy of the page does not apply.
func (p *page) violations(rules string) []violation {
	p.t.Helper()
	if !mustEval[bool](p, `"axe" in window`) {
		mustEval[bool](p, axe()+"; true")
	}
	return mustEval[[]violation](p, `axe.run(document, {resultTypes: ["violations"], `+rules+`}).then(r => r.violations.map(v => ({ID: v.id, Help: v.help, Nodes: v.nodes.map(n => ({
			HTML: n.html, Target: n.target, FailureSummary: n.failureSummary}))})))`)
}

// tooWide returns the first innermost elements that are wider than the screen, and the tables that
// are wider than their card.
func (p *page) tooWide() []string {
	p.t.Helper()
	return mustEval[[]string](p, fmt.Sprintf(`(width => {
		const right = e => e.getBoundingClientRect().right;
		const cut = [...document.querySelectorAll(".card table")].filter(t => t.checkVisibility() && !t.closest(".scroll, .sheet") &&
			getComputedStyle(t.closest(".card")).overflowX === "visible" && right(t) > right(t.closest(".card")) + 1).map(t => t.outerHTML.slice(0, 160));
		if (document.documentElement.scrollWidth <= width) return cut;
		const beyond = e => e.checkVisibility() && e.getBoundingClientRect().right > width + 1 && !e.closest(".scroll");
		return ["the page is " + document.documentElement.scrollWidth + " pixels wide",
			...[...document.body.querySelectorAll("*")].filter(e => beyond(e) && ![...e.children].some(beyond)).slice(0, 5).map(e => e.outerHTML.slice(0, 160))];
		})(%d)`, p.width))
}
