package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every invalid body is also refused over HTTP, with the same code, and consumes nothing.
func TestBadBodies(t *testing.T) {
	s := newCheckStack(t)
	for _, c := range badBodies {
		t.Run(c.name, func(t *testing.T) {
			a := s.check(c.body)
			if len(c.body) > maxCheckBody {
				a.problem(413, "BODY_TOO_LARGE")
				return
			}
			p := a.problem(c.status, c.code)
			require.Equal(t, c.pointers, pointers(&p))
		})
	}
	s.untouched("a")
	s.untouched("b")
	require.NotContains(t, s.log.String(), `"level":"ERROR"`)
	require.NotContains(t, s.log.String(), s.key)
}

// The content type must be correct. A proxy that guesses differently would see another request.
func TestContentTypes(t *testing.T) {
	s := newCheckStack(t)
	for _, good := range []string{
		"application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8", `Application/JSON; Charset="utf-8"`,
	} {
		s.check(`{"subject":"good"}`, header{"Content-Type", good}).decision(200)
	}
	for _, bad := range [][]header{
		{{"Content-Type", ""}}, {{"Content-Type", "text/plain"}}, {{"Content-Type", "application/json; charset=utf-16"}},
		{{"Content-Type", "application/json; charset=utf-8; x=y"}}, {{"Content-Type", "application/json; x=utf-8"}},
		{{"Content-Type", "multipart/form-data; boundary=x"}}, {{"Content-Type", "application/x-www-form-urlencoded"}},
		{{"Content-Type", "application/jsonx"}}, {{"Content-Type", "application/json, text/plain"}},
		{{"Content-Type", "application/merge-patch+json"}}, {{"Content-Type", "*/*"}},
		{{"Content-Encoding", "gzip"}}, {{"Content-Encoding", "identity"}}, {{"Content-Encoding", ""}},
	} {
		s.check(`{"subject":"a"}`, bad...).problem(415, "UNSUPPORTED_MEDIA_TYPE")
	}
	c := s.dial()
	c.send(strings.Replace(s.head("Content-Length: 15"), "Content-Type: application/json\r\n", "", 1) + `{"subject":"a"}`)
	c.receive().problem(415, "UNSUPPORTED_MEDIA_TYPE")
	c = s.dial()
	c.send(s.head("Content-Length: 15", "Content-Type: application/json") + `{"subject":"a"}`)
	c.receive().problem(415, "UNSUPPORTED_MEDIA_TYPE")
	s.untouched("a")
}

// Only POST is allowed. A GET of a browser or a crawler must not consume anything, and CORS does
// not allow pages of other sites.
func TestMethods(t *testing.T) {
	s := newCheckStack(t)
	for _, path := range []string{"/v1/check", "/check", "/v1/check/batch"} {
		for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CHECK", "post"} {
			r, err := http.NewRequestWithContext(t.Context(), method, s.server.URL+path, strings.NewReader(`{"subject":"a"}`))
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+s.key)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Origin", "https://evil.example")
			r.Header.Set("Access-Control-Request-Method", "POST")
			a := s.contract.send(r)
			require.Equal(t, 405, a.status, "%s %s", method, path)
			require.Equal(t, "POST", a.header.Get("Allow"))
			for name := range a.header {
				require.False(t, strings.HasPrefix(name, "Access-Control-"), name)
			}
			if method != "HEAD" {
				a.problem(405, "METHOD_NOT_ALLOWED")
			}
		}
	}
	s.untouched("a")
}

// Another spelling of the path must not reach a handler without limits, or another counter.
func TestPaths(t *testing.T) {
	s := newCheckStack(t)
	for _, path := range []string{
		"//check", "/check/", "/v1//check", "//v1/check", "/v1/check/", "/v1/../check", "/./check", "/v1/x/../check", "/%63heck", "/v1%2Fcheck",
		"/v1/check%20", "/check;x", "/check;", "/CHECK", "/V1/check", "/v1/Check", "/v2/check", "/", "/v1", "/check.json", "/check%00", "/v1/check/batch/", "/v1/check/x",
	} {
		c := s.dial()
		body := `{"subject":"a"}`
		c.send(strings.Replace(s.head("Content-Length: "+itoa(int64(len(body)))), "/v1/check", path, 1) + body)
		c.receive().problem(404, "NOT_FOUND")
	}
	s.untouched("a")
	// The query is not part of the path, and nothing is read from it.
	for _, path := range []string{"/v1/check?x=1", "/check?subject=q", "/v1/check?dry_run=true&dry_run=true", "/v1/check?="} {
		s.post(path, `{"subject":"q"}`).problem(400, "UNKNOWN_PARAMETER")
	}
	s.post("/v1/check/batch?x=1", `{"checks":[{"subject":"q"}]}`).problem(400, "UNKNOWN_PARAMETER")
	s.post("/v1/check?%zz", `{"subject":"q"}`).problem(400, "MALFORMED_QUERY")
	s.post("/v1/check?", `{"subject":"q"}`).decision(200)
	// A request with an absolute target is the same request, for any host.
	c := s.dial()
	c.send(strings.Replace(s.head("Content-Length: 15"), "/v1/check", "http://elsewhere.example/v1/check", 1) + `{"subject":"q"}`)
	require.Equal(t, int64(3), *c.receive().decision(200).Remaining)
}

// A header cannot change the tenant, the address or the time.
func TestHeadersWithoutAuthority(t *testing.T) {
	s := newCheckStack(t)
	a := s.check(`{"subject":"h"}`,
		header{"X-Test-Time", "0"}, header{"X-Now", "0"}, header{"X-Tenant", "other"}, header{"X-Tenant-Id", s.actor.TenantID().String()},
		header{"X-Forwarded-For", "10.0.0.1"}, header{"X-Real-Ip", "10.0.0.1"}, header{"Forwarded", "for=10.0.0.1"}, header{"True-Client-Ip", "::1"},
		header{"X-Http-Method-Override", "DELETE"}, header{"X-Method-Override", "GET"}, header{"X-Original-Url", "/healthz"}, header{"X-Rewrite-Url", "/healthz"})
	require.Equal(t, int64(perSubject-1), *a.decision(200).Remaining)
	require.Equal(t, int64(perSubject-1), s.remaining("h", "default"))
	require.NotContains(t, s.contract.call(s.key, "GET", "/healthz", nil, header{"X-Http-Method-Override", "POST"}).ok(200).header, "Allow")
}
