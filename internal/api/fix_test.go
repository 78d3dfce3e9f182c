package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every error has a fix. answer.problem requires this for every error of the tests.
func TestFixes(t *testing.T) {
	s := newAdminStack(t)
	fix := func(a answer) string {
		t.Helper()
		fields := a.problem(a.status, a.json()["code"].(string)).Errors // a problem has one
		require.Len(t, fields, 1)
		return fields[0].Fix
	}
	post := func(path string, body any) string { return fix(s.call(s.key, http.MethodPost, path, body)) }
	require.Equal(t, "Did you mean limit? Otherwise omit it.", fix(s.call(s.key, http.MethodGet, "/v1/rules?limits=5", nil)))
	require.Equal(t, "Omit it: nothing is known here.", fix(s.call(s.key, http.MethodGet, "/v1/tenant?x=1", nil)))
	require.Equal(t, "Did you mean window? Otherwise omit it.", post("/v1/rules", obj{"slug": "r", "limit": 1, "window": "1m", "windows": "1m"}))
	require.Equal(t, "Did you mean burst? Otherwise omit it.", post("/v1/plans", obj{"slug": "p", "limits": obj{"r": obj{"limit": 1, "bursts": 1}}}))
	require.Equal(t, "Omit it, or use one of burst, limit, metering, overage, unlimited, warn_at.", post("/v1/plans", obj{"slug": "p", "limits": obj{"r": obj{"limit": 1, "something": 1}}}))
	require.Equal(t, "Did you mean window? Otherwise omit it.", fix(s.call(s.key, http.MethodPut, "/v1/config", obj{"rules": []obj{{"slug": "r", "limit": 1, "window": "1m", "widow": 1}}})))
	require.Equal(t, "Create the plan first, or use one that GET /v1/plans lists.", fix(s.call(s.key, http.MethodPut, "/v1/subjects/s", obj{"plan": "none"})))
	require.Equal(t, "Use one of enforce, shadow, off.", post("/v1/rules", obj{"slug": "r", "limit": 1, "window": "1m", "mode": "on"}))
	require.Equal(t, "Make it a whole number from 1 to 1000000000 with sliding_window_counter.", post("/v1/rules", obj{"slug": "r", "limit": 0, "window": "1m"}))
	require.Equal(t, "Send the ETag of an earlier answer unchanged.", fix(s.call(s.key, http.MethodPatch, "/v1/tenant", obj{}, header{"If-Match", "7"})))
	require.Equal(t, "Start again without one.", fix(s.call(s.key, http.MethodGet, "/v1/rules?cursor=x", nil)))
	require.NotEmpty(t, fix(s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": ""})))
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		n    int
	}{{"limit", "limit", 0}, {"limt", "limit", 1}, {"limits", "limit", 1}, {"lmiit", "limit", 2}, {"", "ab", 2}, {"burst", "by", 100}} {
		require.Equal(t, c.n, edits(c.a, c.b), c)
	}
}

// The Location of a write can be read.
func TestLocationsCanBeRead(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/p", obj{}).ok(201)
	for path, missing := range map[string][]string{
		"/v1/plans/p/limits/r":       {"/v1/plans/p/limits/none", "/v1/plans/none/limits/r"},
		"/v1/subjects/s/overrides/r": {"/v1/subjects/s/overrides/none", "/v1/subjects/none/overrides/r"},
	} {
		put := s.call(s.key, http.MethodPut, path, obj{"limit": 7}).ok(201)
		require.Equal(t, path, put.header.Get("Location"))
		get := s.call(s.readKey, http.MethodGet, path, nil).ok(200)
		require.Equal(t, put.header.Get("ETag"), get.header.Get("ETag"))
		require.EqualValues(t, 7, get.json()["limit"])
		require.Equal(t, 304, s.call(s.key, http.MethodGet, path, nil, header{"If-None-Match", get.header.Get("ETag")}).status)
		s.call(s.key, http.MethodPut, path, obj{"limit": 8}, header{"If-Match", get.header.Get("ETag")}).ok(200)
		for _, none := range append(missing, "") {
			if none == "" { // another tenant's
				s.call(s.other, http.MethodGet, path, nil).problem(404, codeNotFound)
				continue
			}
			s.call(s.key, http.MethodGet, none, nil).problem(404, codeNotFound)
		}
	}
}

// Tools need not load an unchanged document again, and every code can be found.
func TestDocumentTagAndIndexOfCodes(t *testing.T) {
	s := newAdminStack(t)
	first := s.call("", http.MethodGet, "/openapi.json", nil).ok(200)
	tag := first.header.Get("ETag")
	require.NotEmpty(t, tag)
	again := s.call("", http.MethodGet, "/openapi.json", nil, header{"If-None-Match", tag})
	require.Equal(t, 304, again.status)
	require.Empty(t, again.body)
	s.call("", http.MethodGet, "/openapi.json", nil, header{"If-None-Match", `"other"`}).ok(200)
	index := string(s.call("", http.MethodGet, "/docs/errors", nil).ok(200).body)
	for code := range problemTitles {
		require.Contains(t, index, `<a href="/docs/errors/`+problemSlug(code)+`"><code>`+code+`</code></a>`)
	}
	require.Equal(t, len(problemTitles), strings.Count(index, "<dt>"))
}
