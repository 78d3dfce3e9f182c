package api

import (
	"encoding/json"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The operations can be read without scripts.
func TestDocsListsTheOperations(t *testing.T) {
	s := newAdminStack(t)
	page := string(s.call("", http.MethodGet, "/docs", nil).ok(200).body)
	for path, item := range s.doc.Paths.Map() {
		require.Contains(t, page, path)
		for _, op := range item.Operations() {
			require.Contains(t, page, `id="`+op.OperationID+`"`)
		}
	}
}

// The page has the theme that was chosen in the dashboard.
func TestDocsTheme(t *testing.T) {
	s := newAdminStack(t)
	require.Contains(t, string(s.call("", http.MethodGet, "/docs", nil).ok(200).body), `<html lang="en">`)
	for theme, want := range map[string]string{"dark": `<html lang="en" data-theme="dark">`, "light": `<html lang="en" data-theme="light">`, "other": `<html lang="en">`} {
		page := s.call("", http.MethodGet, "/docs", nil, header{"Cookie", themeCookie + "=" + theme}).ok(200)
		require.Contains(t, string(page.body), want)
		require.Contains(t, page.header.Get("Vary"), "Cookie")
	}
}

// /docs works without other networks: it loads everything from this server, and the browser may not
// load or call anything else, nor run inline scripts.
func TestDocsLoadsOnlyFromHere(t *testing.T) {
	s := newAdminStack(t)
	page := s.call("", http.MethodGet, "/docs", nil).ok(200)
	policy := page.header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'; script-src 'self';")
	require.Contains(t, policy, "connect-src 'self';")
	require.NotContains(t, policy, "unsafe")
	require.NotRegexp(t, `https?:`, policy)
	require.NotRegexp(t, `https?://`, string(page.body))
	require.NotRegexp(t, `<script[^>]*>[^<]|<style|style=| on[a-z]+=`, string(page.body), "the policy would refuse it")

	loaded := regexp.MustCompile(`(?:src|rel="(?:stylesheet|icon)" href)="([^"]*)"`).FindAllStringSubmatch(string(page.body), -1)
	require.Len(t, loaded, 6)
	for _, l := range loaded {
		a := s.call("", http.MethodGet, l[1], nil).ok(200)
		require.NotEmpty(t, a.body)
		require.Contains(t, a.header.Get("Cache-Control"), "immutable")
		contentType := map[string]string{".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.Ext(l[1])]
		require.Contains(t, a.header.Get("Content-Type"), contentType)
		s.call("", http.MethodHead, l[1], nil).ok(200)
	}
	s.call("", http.MethodGet, "/assets/js/docs.js", nil).problem(http.StatusNotFound, codeNotFound)
}

// The type of a problem document is the address of a page.
func TestPagesOfProblemCodes(t *testing.T) {
	s := newAdminStack(t)
	p := s.call("", http.MethodGet, "/v1/keys", nil).problem(http.StatusUnauthorized, codeMissingKey)
	require.Contains(t, string(s.call("", http.MethodGet, p.Type, nil).ok(200).body), "# MISSING_KEY")
	s.call("", http.MethodGet, "/docs/errors/no-such-code", nil).problem(http.StatusNotFound, codeNotFound)
	s.call("", http.MethodGet, "/docs/errors/..%2Fpages.go", nil).problem(http.StatusNotFound, codeNotFound)
}

// The suggestions of /docs can be sent unchanged.
func TestDocsExamplesWork(t *testing.T) {
	s := newAdminStack(t)
	for id, op := range s.operations() {
		if op.op.RequestBody == nil || op.op.RequestBody.Value.Content.Get(jsonType) == nil {
			continue
		}
		t.Run(id, func(t *testing.T) {
			example := docsExamples[id]
			require.NotEmpty(t, example, "an operation with a body and no example in docs_examples.go")
			s := s.in(t)
			c := adminCases[id]
			key := s.key
			if strings.HasPrefix(c.path, "/v1/tenants") {
				key = s.operator
			}
			a := s.call(key, op.method, s.prepare(id).Replace(c.path), example)
			require.Contains(t, []int{http.StatusOK, http.StatusCreated}, a.status, "%s", a.body)
		})
	}
	for id, op := range s.operations() {
		if op.op.RequestBody == nil {
			continue
		}
		for contentType, body := range op.op.RequestBody.Value.Content {
			if contentType == jsonType || contentType == mergePatchType || contentType == yamlType { // the same body in another spelling
				continue
			}
			file, _ := body.Example.(string)
			require.NotEmpty(t, file, "%s takes %s, and has no example in docs_examples.go", id, contentType)
			s.call(s.key, op.method, op.path, file, header{"Content-Type", contentType}).ok(http.StatusOK)
		}
	}
	for path, id := range map[string]string{"/v1/check": "check", "/check": "check-short", "/v1/check/batch": "check-batch"} {
		require.NoError(t, s.doc.Paths.Value(path).Post.RequestBody.Value.Content.Get(jsonType).Schema.Value.VisitJSON(parsed(t, docsExamples[id])))
	}
}

func parsed(t *testing.T, text string) (v any) {
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	return v
}

// A HEAD request gets the headers of a page, and no body.
func TestDocsHeads(t *testing.T) {
	s := newAdminStack(t)
	for _, path := range []string{"/docs", "/openapi.json", "/docs/errors/invalid-request"} {
		response, err := http.Head(s.url + path)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, path)
		require.NotEmpty(t, response.Header.Get("Content-Type"))
		require.Empty(t, body)
	}
}
