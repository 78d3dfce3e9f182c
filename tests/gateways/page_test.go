package gateways

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// What the pages show where a reader enters values of their own.
const (
	pageWeir = "127.0.0.1:8080" // Weir, as `make run` starts it
	pageApp  = "127.0.0.1:9000" // the application
	pageKey  = "YOUR_WEIR_KEY"
)

// A page is the documentation of one gateway. A fence below `<!-- file: NAME -->` is a file of
// the configuration, which fails open. The fences below `<!-- fail closed: replace -->` and
// `<!-- fail closed: by -->` say what to change so that it fails closed.
type page struct {
	files  map[string]string
	closed [][2]string
}

var fences = regexp.MustCompile("(?ms)^<!-- (file: \\S+|fail closed: replace|fail closed: by) -->\n+```[a-z]*\n(.*?)^```$")

func readPage(t testing.TB, name string) *page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "gateways", name+".md"))
	require.NoError(t, err)
	p := &page{files: map[string]string{}}
	for _, fence := range fences.FindAllStringSubmatch(string(text), -1) {
		marker, content := fence[1], fence[2]
		file, isFile := strings.CutPrefix(marker, "file: ")
		switch {
		case isFile:
			require.NotContains(t, p.files, file, "%s.md has the file twice", name)
			p.files[file] = content
		case strings.HasSuffix(marker, "replace"):
			p.closed = append(p.closed, [2]string{content})
		default:
			require.NotEmpty(t, p.closed, "%s.md: nothing to replace", name)
			p.closed[len(p.closed)-1][1] = content
		}
	}
	require.NotEmpty(t, p.files, "%s.md shows no configuration", name)
	return p
}

// configured returns the files with the values of a test. Every replacement must be found
// exactly as often as it says, or the page no longer says what is tested.
func (p *page) configured(t testing.TB, failOpen bool, replacements map[string]string) map[string]string {
	t.Helper()
	all := map[string]string{}
	found := map[string]int{}
	closed := make([]int, len(p.closed))
	for name, text := range p.files {
		if !failOpen {
			for i, change := range p.closed {
				closed[i] += strings.Count(text, change[0])
				text = strings.ReplaceAll(text, change[0], change[1])
			}
		}
		for from, to := range replacements {
			found[from] += strings.Count(text, from)
			text = strings.ReplaceAll(text, from, to)
		}
		all[name] = text
	}
	for from := range replacements {
		require.Positive(t, found[from], "the page does not show %q", from)
	}
	for i, count := range closed {
		require.True(t, failOpen || count == 1, "found %d times: %s", count, p.closed[i][0])
	}
	return all
}
