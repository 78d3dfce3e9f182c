package tests

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Newcomers follow the commands of the README first. Each command runs in order, and has the status
// that the README shows below it, even the second time.
func TestReadmeWalk(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(testenv.Root(), "README.md"))
	require.NoError(t, err)
	_, walk, found := strings.Cut(string(readme), "```sh\n. .dev/demo.env\n")
	require.True(t, found, "the commands begin with the demo's variables")
	walk, _, _ = strings.Cut(walk, "```")

	dir := t.TempDir()
	startDemo(t, newSettings(t), dir)
	env := demoEnv(t, dir)
	ran, status := 0, 0
	for line := range strings.Lines(walk + walk) {
		line = strings.TrimSpace(line)
		want, isStatus := strings.CutPrefix(line, "# ")
		code, err := strconv.Atoi(want)
		switch {
		case strings.HasPrefix(line, "curl "):
			require.Zero(t, status, "a status for the previous command: %s", line)
			var body []byte
			status, body = curl(t, os.Expand(line, func(name string) string { return env[name] }))
			t.Logf("%s\n%d %s", line, status, body)
			ran++
		case isStatus && err == nil:
			require.Equal(t, code, status, "command %d of the README", ran)
			status = 0
		}
	}
	require.Zero(t, status)
	require.Equal(t, 2*12, ran)
}
