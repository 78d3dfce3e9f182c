package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// walker runs the commands of a page as a shell would, as far as the pages need.
type walker struct {
	t    *testing.T
	dir  string // working directory
	env  map[string]string
	ran  int
	last struct {
		line   string
		status int
		body   []byte
	}
	waited bool // the previous command was a sleep
}

var (
	walkAssign = regexp.MustCompile(`^([A-Z_]+)=(.*)$`)
	walkExpect = regexp.MustCompile(`^# ([0-9]{3})(?: (.*))?$`)
	walkLoop   = regexp.MustCompile(`^for n in \$\(seq ([0-9]+)\); do echo '(.*)'\$n'(.*)'; done >([a-z.]+)$`)
	walkSoon   = regexp.MustCompile(`^\$\(date -u -d '([0-9]+) seconds' \+%Y-%m-%dT%H:%M:%SZ\)$`)
	walkSecret = regexp.MustCompile(`"secret":"(weir_key_[0-9A-Za-z]+)"`)
	walkOutput = regexp.MustCompile(` -o ([a-z.]+)`)
	walkInput  = regexp.MustCompile(`--data-binary @([a-z.]+)`)
)

// The example of docs/admin-api.md shows the admin API to a new admin. Each command runs in order,
// and has the status and the response that the page shows below it.
func TestAdminWalk(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "admin-api.md"))
	require.NoError(t, err)
	_, walk, found := strings.Cut(string(page), "```sh\n. .dev/demo.env\n")
	require.True(t, found, "the example begins with the demo's variables")
	walk, _, _ = strings.Cut(walk, "```")

	dir := t.TempDir()
	startDemo(t, newSettings(t), dir)
	w := &walker{t: t, dir: dir, env: demoEnv(t, dir)}
	for line := range strings.Lines(walk) {
		w.line(strings.TrimSpace(line))
	}
	require.Empty(t, w.last.line, "a status for the last command")
	require.Equal(t, 25, w.ran)
}

// line runs one line.
func (w *walker) line(line string) {
	w.t.Helper()
	if expect := walkExpect.FindStringSubmatch(line); expect != nil {
		w.expect(expect[1], expect[2])
		return
	}
	if line == "" || strings.HasPrefix(line, "# ") {
		return
	}
	require.Empty(w.t, w.last.line, "a status for the command before %s", line)
	assign := walkAssign.FindStringSubmatch(line)
	loop := walkLoop.FindStringSubmatch(line)
	switch {
	case assign != nil:
		w.env[assign[1]] = w.value(assign[2])
	case loop != nil:
		w.write(loop[1], loop[2], loop[3], loop[4])
	case strings.HasPrefix(line, "curl "):
		w.curl(line)
	default:
		require.Regexp(w.t, `^sleep [0-9]+$`, line, "a line that the walker supports")
		w.waited = true // the next command is repeated until its output is as on the page
	}
}

// write creates a file of count lines, each with its number between two texts.
func (w *walker) write(count, before, after, file string) {
	w.t.Helper()
	most, err := strconv.Atoi(count)
	require.NoError(w.t, err)
	var lines strings.Builder
	for n := 1; n <= most; n++ {
		lines.WriteString(before + strconv.Itoa(n) + after + "\n")
	}
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, file), []byte(lines.String()), 0o600))
}

// value returns the value that a variable is set to.
func (w *walker) value(text string) string {
	w.t.Helper()
	if soon := walkSoon.FindStringSubmatch(text); soon != nil {
		after, err := time.ParseDuration(soon[1] + "s")
		require.NoError(w.t, err)
		return time.Now().Add(after).UTC().Format(time.RFC3339)
	}
	require.Equal(w.t, "weir_key_... # the secret", text)
	secret := walkSecret.FindSubmatch(w.last.body)
	require.NotNil(w.t, secret, "%s", w.last.body)
	return string(secret[1])
}

func (w *walker) curl(line string) {
	w.t.Helper()
	w.last.line = line
	if !strings.Contains(line, " -X ") { // curl sends a GET, and the helper assumes a body
		require.NotContains(w.t, line, " -d ", "a body needs -X")
		line += " -X GET"
	}
	output := walkOutput.FindStringSubmatch(line)
	line = walkOutput.ReplaceAllString(line, "")
	if input := walkInput.FindStringSubmatch(line); input != nil {
		content, err := os.ReadFile(filepath.Join(w.dir, input[1]))
		require.NoError(w.t, err)
		w.env["CONTENT"] = "'" + strings.ReplaceAll(string(content), "'", `'\''`) + "'"
		line = walkInput.ReplaceAllLiteralString(line, "-d $CONTENT")
	}
	w.last.status, w.last.body = curl(w.t, os.Expand(line, func(name string) string {
		require.Contains(w.t, w.env, name)
		return w.env[name]
	}))
	if output != nil {
		require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, output[1]), w.last.body, 0o600))
	}
	w.ran++
}

// expect compares the response of the last command with what the page shows below it.
func (w *walker) expect(status, part string) {
	w.t.Helper()
	want, err := strconv.Atoi(status)
	require.NoError(w.t, err)
	command := w.last.line
	require.NotEmpty(w.t, command, "a command above %s", status)
	if w.waited {
		require.Eventually(w.t, func() bool {
			w.ran-- // it is one command, even if it is repeated
			w.curl(command)
			return w.last.status == want && strings.Contains(string(w.last.body), part)
		}, patience, 10*tick, "%s", command)
	}
	w.t.Logf("%s\n%d %.300s", command, w.last.status, w.last.body)
	require.Equal(w.t, want, w.last.status, "%s\n%s", command, w.last.body)
	require.Contains(w.t, string(w.last.body), part, command)
	w.last.line, w.waited = "", false
}
