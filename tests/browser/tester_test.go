package browser

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/testenv"
)

// A member asks why a customer is denied, using the keyboard. A developer copies the same check as
// code.
func TestTesterWalk(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("reports", 2)
	key := w.key()
	subject := w.counted(key, "user", "reports")

	p := w.as(tenants.Viewer)
	p.open("/").click("Tester").sees("Test a check")
	p.check()
	p.fill("Subject", subject).fill("Resource", "reports").press(kb.Enter)
	p.sees("Allowed").sees("0 of 2 remaining after this check").sees("2 per hour")
	p.check()
	p.click("Test check").sees("0 of 2 remaining after this check") // the test consumed nothing
	p.fill("Cost", "5").click("Test check").sees("A cost of 5 is never allowed: Reports allows at most 2 units at once.")
	p.check()
	p.fill("Cost", "x").click("Test check").sees("Check not tested")
	p.phone().check()
	p.desktop().fill("Cost", "").click("Test check").sees("0 of 2 remaining after this check")

	for id, run := range map[string][]string{"curl": {"bash", "sample"}, "go": {"go", "run", "."}} {
		dir := t.TempDir()
		text := mustEval[string](p, `document.getElementById("code-`+id+`").textContent`)
		name := "sample"
		if id == "go" {
			name = "sample.go"
			client := "github.com/weir-dev/weir-go"
			module := "module sample\n\ngo 1.26\n\nrequire " + client + " v0.0.0\n\nreplace " + client + " => " + filepath.Join(testenv.Root(), "sdk", "go") + "\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o600))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		command := exec.CommandContext(t.Context(), run[0], run[1:]...)
		command.Dir, command.Env = dir, append(os.Environ(), "WEIR_URL="+w.url, "WEIR_KEY="+key, "GOWORK=off")
		out, err := command.Output()
		require.NoError(t, err, id)
		require.Regexp(t, `"allowed":|allowed: `, string(out), id)
	}
	p.click("Test check").sees("Reports denies the check: 0 units remain, and the cost is 1.")
	p.check()
}
