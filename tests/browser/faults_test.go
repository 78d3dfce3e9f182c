package browser

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// The watch reports each kind of fault: the test creates each of them.
func TestFaultsAreReported(t *testing.T) {
	t.Parallel()
	p := demo(t).visitor().open("/login")
	require.Empty(t, p.violations(allRules))
	require.Empty(t, p.tooWide())
	require.Empty(t, p.watch.faults())

	for _, c := range []struct{ script, fault string }{
		{`console.error("oh", 7)`, "oh"},
		{`setTimeout(() => { throw new Error("lost") })`, "lost"},
		{`document.body.append(Object.assign(document.createElement("script"), {textContent: "1"}))`, "Content Security Policy"},
		{`document.querySelector("main").insertAdjacentHTML("beforeend", "<p style='color:red'>x</p>")`, "Content Security Policy"},
		{`fetch("/nothing-here")`, "404 for "},
		{`fetch("https://weir.example/").catch(() => {})`, "Content Security Policy"},
	} {
		_, err := eval[bool](p, c.script+"; true")
		require.NoError(t, err)
		var seen []string
		require.Eventually(t, func() bool {
			seen = append(seen, p.watch.faults()...)
			return strings.Contains(strings.Join(seen, "\n"), c.fault)
		}, patience, tick, "%s", c.script)
	}

	mustEval[bool](p, `document.querySelector("main").insertAdjacentHTML("beforeend", "<img src='/assets/none'>"), true`)
	p.allow(404)
	violations := p.violations(allRules)
	require.Len(t, violations, 1)
	require.Equal(t, "image-alt", violations[0].ID)

	mustEval[bool](p, `document.querySelector("main").insertAdjacentHTML("beforeend", "<pre>"+"x".repeat(400)+"</pre>"),
		document.querySelector("pre").style.whiteSpace = "pre", document.querySelector("pre").style.maxWidth = "none", document.querySelector("pre").style.width = "4000px", true`)
	require.NotEmpty(t, p.tooWide())
	_ = p.watch.faults()
}

// The script that checks the pages is the published one.
func TestAxeIsUnchanged(t *testing.T) {
	dir := filepath.Join(testenv.Root(), "tests", "browser")
	sums, err := os.ReadFile(filepath.Join(dir, "vendor.sha256"))
	require.NoError(t, err)
	checked := 0
	for line := range strings.Lines(string(sums)) {
		want, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		content, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		got := sha256.Sum256(content)
		require.Equal(t, want, hex.EncodeToString(got[:]), file)
		checked++
	}
	require.Equal(t, 3, checked, "the script and its licences")
}
