package tests

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

var updatePages = flag.Bool("update-pages", false, "write the output of the commands in docs into the pages, instead of comparing it")

// pageFence matches a fenced block of a page: its indentation, language and content.
var pageFence = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```$")

// varying are the parts of output that differ between runs.
var varying = []struct {
	is   *regexp.Regexp
	kind string
}{
	{regexp.MustCompile(`(?m)^(Date|X-Request-Id|X-RateLimit-Reset): .*$`), "$1"},
	{regexp.MustCompile(`"request_id":"[0-9a-f]{32}"`), `"request_id"`},
	{regexp.MustCompile(`"(retry_after_ms|reset_after_ms|delay_ms)":[1-9][0-9]*`), `"$1":TIME`},
	{regexp.MustCompile(`(?m)^Content-Length: .*$`), "Content-Length"}, // the number of digits of times differs
	{regexp.MustCompile(`([;, ]t=|Retry-After: )[1-9][0-9]*`), "${1}TIME"},
	{regexp.MustCompile(`"retry_after":[1-9][0-9]*`), `"retry_after":TIME`},
	{regexp.MustCompile(`Try again in [0-9]+ (second|minute|hour)s?`), "Try again in TIME"},
	{regexp.MustCompile(`"(created_at|updated_at)":"[^"]*"`), `"$1"`},
}

func withoutVarying(s string) string {
	for _, v := range varying {
		s = v.is.ReplaceAllString(s, v.kind)
	}
	return s
}

// The pages for newcomers can be followed after `make run`: a shell runs the commands of each page
// in order, and they print the output that the page shows.
func TestPagesForNewcomers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startDemo(t, newSettings(t), filepath.Join(dir, ".dev"))
	for _, page := range []string{"check", "authorize", "integrate"} {
		t.Run(page, func(t *testing.T) { followPage(t, filepath.Join(testenv.Root(), "docs", page+".md"), dir) })
	}
}

// followPage runs the commands of a page in dir, which has .dev/demo.env.
func followPage(t *testing.T, path, dir string) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	type fence struct {
		indent, language, content string
		from, to                  int // of the content
	}
	var fences []fence
	for _, at := range pageFence.FindAllStringSubmatchIndex(string(text), -1) {
		f := fence{indent: string(text[at[2]:at[3]]), language: string(text[at[4]:at[5]]), from: at[6], to: at[7]}
		f.content = strings.TrimPrefix(strings.ReplaceAll("\n"+string(text[f.from:f.to]), "\n"+f.indent, "\n"), "\n")
		fences = append(fences, f)
	}
	outputs := t.TempDir()
	output := func(i int) string { return filepath.Join(outputs, strconv.Itoa(i)) }
	var script strings.Builder
	script.WriteString(". .dev/demo.env\n")
	commands := map[int]int{} // the block with the commands of each block of output
	last := -1
	for i, f := range fences {
		switch {
		case f.language == "sh":
			last = i
			// Braces do not create a subshell, so variables stay set for the next commands.
			script.WriteString("{\n" + f.content + "\n} >" + output(i) + "\n")
		case f.language == "" && last >= 0:
			commands[i], last = last, -1
		}
	}
	require.NotEmpty(t, commands, "the page shows the output of its commands")
	_, err = exec.LookPath("curl")
	require.NoError(t, err, "Run: scripts/dev.sh gateways")
	shell := exec.Command("bash", "-e", "-u", "-o", "pipefail")
	shell.Dir, shell.Stdin = dir, strings.NewReader(script.String())
	printed, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", printed)

	var written strings.Builder
	end := 0
	for i, f := range fences {
		of, found := commands[i]
		if !found {
			continue
		}
		content, err := os.ReadFile(output(of))
		require.NoError(t, err)
		got := strings.TrimRight(strings.ReplaceAll(string(content), "\r\n", "\n"), "\n") + "\n"
		if !*updatePages {
			require.Equal(t, withoutVarying(f.content), withoutVarying(got), "%s", fences[of].content)
		}
		written.Write(text[end:f.from])
		for line := range strings.Lines(got) {
			if line != "\n" {
				written.WriteString(f.indent)
			}
			written.WriteString(line)
		}
		end = f.to
	}
	written.Write(text[end:])
	if *updatePages {
		require.NoError(t, os.WriteFile(path, []byte(written.String()), 0o644)) // readable by everybody
	}
}
