package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

var updateDocs = flag.Bool("update-docs", false, "write the answers into the pages of docs instead of comparing them")

var exampleBlock = regexp.MustCompile("(?s)```http\n(.*?)```")

// differing matches values that differ in each run: ids, times, secrets, versions, request ids.
// Each kind is replaced by a fixed value.
var differing = []struct {
	is   *regexp.Regexp
	kind string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(`"request_id": "[0-9a-f]{32}"`), "REQUEST"},
	{regexp.MustCompile(`"202[0-9]-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"`), "TIME"},
	{regexp.MustCompile(`"last4": "[0-9A-Za-z]{4}"`), "LAST4"},
	{regexp.MustCompile(`"version": [0-9]+`), "VERSION"},
	{regexp.MustCompile(`"v[0-9]+"`), "TAG"},
	{regexp.MustCompile(`"next_cursor": "[^"]+"`), "CURSOR"},
	{regexp.MustCompile(`"hash": "[0-9a-f]{64}"`), "HASH"},
	{regexp.MustCompile(`"(head|verified_to)": "[0-9]+:[0-9a-f]{64}"`), "$1 MARK"},
}

// secretText matches secrets, which the page shortens, so that nobody mistakes an example for a
// leaked key.
var secretText = regexp.MustCompile(`weir_key_[0-9A-Za-z]{36}`)

func alike(s string) string {
	for _, d := range differing {
		s = d.is.ReplaceAllString(s, d.kind)
	}
	return s
}

// The examples of a page, run in order in a new tenant, give the documented answers.
func TestDocumentedExamples(t *testing.T) {
	for page, least := range map[string]int{"admin-api.md": 10, "simulate.md": 8, "subjects.md": 5, "audit.md": 2} {
		t.Run(page, func(t *testing.T) { runExamples(t, page, least) })
	}
}

// givenExamples are the configurations before the examples of a page, in order.
var givenExamples = map[string][]obj{
	"subjects.md": {{
		"rules": []obj{{"slug": "api-requests", "limit": 100, "window": "1m"}},
		"plans": []obj{{"slug": "free", "default": true}, {"slug": "pro"}},
	}},
	"audit.md": {
		{"rules": []obj{{"slug": "api-requests", "limit": 100, "window": "1m"}}},
		{"rules": []obj{{"slug": "api-requests", "limit": 200, "window": "1m"}}},
	},
}

// runExamples runs the examples of a page, and requires a minimum number of them.
func runExamples(t *testing.T, page string, least int) {
	path := filepath.Join(testenv.Root(), "docs", page)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	run := &exampleRun{adminStack: newAdminStack(t)}
	for _, given := range givenExamples[page] {
		run.call(run.key, http.MethodPut, "/v1/config", given).ok(200)
	}
	count := 0
	written := exampleBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		count++
		request, want, _ := strings.Cut(exampleBlock.FindStringSubmatch(block)[1], "\n\n")
		got := run.run(request, want)
		if !*updateDocs {
			require.Equal(t, alike(want), alike(got), "%s", request)
		}
		return "```http\n" + request + "\n\n" + got + "```"
	})
	require.GreaterOrEqual(t, count, least)
	if *updateDocs {
		require.NoError(t, os.WriteFile(path, []byte(written), 0o644)) // a page for all to read
	}
}

// exampleRun is the state that one example takes over from earlier ones.
type exampleRun struct {
	*adminStack
	keyID             string // what KEY_ID stands for: the key that was made last
	etag, writtenETag string // of the last answer, and of the last answer on the page
}

var headerLine = regexp.MustCompile(`^[A-Z][A-Za-z-]*: `)

var writtenTag = regexp.MustCompile(`ETag: (".*")`)

// run sends a request as written, and returns the answer in the form of the page.
func (e *exampleRun) run(request, want string) string {
	lines := strings.Split(strings.TrimSpace(request), "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	key := e.key
	var headers []header
	var body any
	for i, line := range lines[1:] {
		if !headerLine.MatchString(line) {
			body = strings.Join(lines[1+i:], "\n")
			break
		}
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case value == "Bearer OPERATOR_KEY":
			key = e.operator
			continue
		case name == "If-Match":
			if !*updateDocs {
				require.Equal(e.t, e.writtenETag, value, "the tag of the answer before")
			}
			value = e.etag
		}
		headers = append(headers, header{name, value})
	}
	a := e.call(key, method, strings.ReplaceAll(path, "KEY_ID", e.keyID), body, headers...)
	e.etag = a.header.Get("ETag")
	if tag := writtenTag.FindStringSubmatch(want); tag != nil {
		e.writtenETag = tag[1]
	}
	if path == "/v1/keys" && method == http.MethodPost {
		e.keyID = a.json()["id"].(string)
	}
	return written(a)
}

// written formats an answer as the page shows it.
func written(a answer) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d %s\n", a.status, http.StatusText(a.status))
	for _, name := range []string{"Location", "ETag", "Idempotency-Replayed"} {
		if value := a.header.Get(name); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	switch {
	case len(a.body) == 0:
	case strings.HasPrefix(a.header.Get("Content-Type"), csvType), a.header.Get("Content-Type") == jsonLinesType:
		b.WriteString("\n" + strings.ReplaceAll(string(a.body), "\r\n", "\n"))
	default:
		var indented bytes.Buffer
		require.NoError(a.t, json.Indent(&indented, bytes.TrimSpace(a.body), "", "  "))
		b.Write(indented.Bytes())
		b.WriteByte('\n')
	}
	return secretText.ReplaceAllString(b.String(), "weir_key_...")
}
