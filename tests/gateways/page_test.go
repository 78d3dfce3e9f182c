package gateways

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// The values on the pages that readers replace with their own.
const (
	pageWeir = "127.0.0.1:8080" // Weir, started with `make run`
	pageGRPC = "127.0.0.1:8081" // its rate-limit service
	pageApp  = "127.0.0.1:9000" // the application
	pageKey  = "YOUR_WEIR_KEY"

	authorize = "/v1/authorize/" // precedes the slug of the route that a page creates
)

// A page is the documentation of one gateway. A code block below `<!-- file: NAME -->` is a file of
// the configuration, which fails open. The code blocks below `<!-- fail closed: replace -->` and
// `<!-- fail closed: by -->` are the change to fail closed. The code block below `<!-- route -->`
// creates a route, and those below `<!-- route: replace -->` and `<!-- route: by -->` are the
// change to use it. Those below `<!-- user: replace -->` and `<!-- user: by -->` are the change to
// count the user whom the gateway has authenticated.
type page struct {
	files   map[string]string
	closed  [][2]string
	route   string // as JSON
	slug    string // of the route
	byRoute [][2]string
	byUser  [][2]string
}

var (
	fences      = regexp.MustCompile("(?ms)^<!-- (file: \\S+|fail closed: replace|fail closed: by|route|route: replace|route: by|user: replace|user: by) -->\n+```[a-z]*\n(.*?)^```$")
	createRoute = regexp.MustCompile(`(?s)curl -X PUT "\$WEIR_URL/v1/routes/([a-z-]+)" .* -d '(\{.*\})'`)
)

func readPage(t testing.TB, name string) *page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "gateways", name+".md"))
	require.NoError(t, err)
	p := &page{files: map[string]string{}}
	for _, fence := range fences.FindAllStringSubmatch(string(text), -1) {
		marker, content := fence[1], fence[2]
		if file, isFile := strings.CutPrefix(marker, "file: "); isFile {
			require.NotContains(t, p.files, file, "%s.md has the file twice", name)
			p.files[file] = content
			continue
		}
		if marker == "route" {
			found := createRoute.FindStringSubmatch(content)
			require.NotNil(t, found, "%s.md: no route in %s", name, content)
			p.slug, p.route = found[1], found[2]
			continue
		}
		changes := &p.closed
		if strings.HasPrefix(marker, "route") {
			changes = &p.byRoute
		} else if strings.HasPrefix(marker, "user") {
			changes = &p.byUser
		}
		if strings.HasSuffix(marker, "replace") {
			*changes = append(*changes, [2]string{content})
			continue
		}
		require.NotEmpty(t, *changes, "%s.md: nothing to replace", name)
		(*changes)[len(*changes)-1][1] = content
	}
	require.NotEmpty(t, p.files, "%s.md shows no configuration", name)
	return p
}

// configured returns the files with the values of a test, after the changes of the page. Every
// change must be found exactly once, and every replacement at least once. Otherwise the test would
// not test what the page shows.
func (p *page) configured(t testing.TB, changes [][2]string, replacements map[string]string) map[string]string {
	t.Helper()
	all := maps.Clone(p.files)
	for _, change := range changes {
		found := 0
		for name, text := range all {
			found += strings.Count(text, change[0])
			all[name] = strings.ReplaceAll(text, change[0], change[1])
		}
		require.Equal(t, 1, found, "not found once: %s", change[0])
	}
	found := map[string]int{}
	for name, text := range all {
		for from, to := range replacements {
			found[from] += strings.Count(text, from)
			text = strings.ReplaceAll(text, from, to)
		}
		all[name] = text
	}
	for from := range replacements {
		require.Positive(t, found[from], "the page does not show %q", from)
	}
	return all
}
