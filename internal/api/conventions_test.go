package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func TestOpenAPIDocument(t *testing.T) {
	s := newAdminStack(t)
	require.NoError(t, s.doc.Validate(context.Background()))
	require.Equal(t, "3.1.0", s.doc.OpenAPI)
	for _, path := range []string{"/v1/check", "/check", "/v1/check/batch", "/healthz", "/readyz"} {
		require.NotNil(t, s.doc.Paths.Value(path), path)
	}
}

// Admin bodies: what is stored must be what was sent (reliability rows 2 to 6).
func TestBodiesAreReadStrictly(t *testing.T) {
	s := newAdminStack(t)
	const valid = `{"slug":"r","limit":1,"window":"1s"}`
	for name, c := range map[string]struct{ body, code string }{
		"empty":             {"", codeMalformedJSON},
		"blank":             {" \n", codeMalformedJSON},
		"cut off":           {valid[:20], codeMalformedJSON},
		"two documents":     {valid + valid, codeMalformedJSON},
		"continues":         {valid + "x", codeMalformedJSON},
		"comment":           {"/**/" + valid, codeMalformedJSON},
		"twice":             {`{"slug":"r","limit":1,"limit":2,"window":"1s"}`, codeDuplicateField},
		"twice, escaped":    {`{"slug":"r","limit":1,"\u006cimit":2,"window":"1s"}`, codeDuplicateField},
		"invalid UTF-8":     {"{\"slug\":\"r\",\"limit\":1,\"window\":\"1s\",\"name\":\"\xff\"}", codeMalformedJSON},
		"lone surrogate":    {`{"slug":"r","limit":1,"window":"1s","name":"\ud800"}`, codeMalformedJSON},
		"deep":              {`{"by":` + strings.Repeat("[", 16) + strings.Repeat("]", 16) + `}`, codeMalformedJSON},
		"deep, 10 000":      {strings.Repeat("[", 10_000), codeMalformedJSON},
		"leading zero":      {`{"slug":"r","limit":01,"window":"1s"}`, codeMalformedJSON},
		"not a number":      {`{"slug":"r","limit":NaN,"window":"1s"}`, codeMalformedJSON},
		"byte order mark":   {"\ufeff" + valid, codeMalformedJSON},
		"control character": {"{\"slug\":\"r\",\"limit\":1,\"window\":\"1s\",\"name\":\"a\nb\"}", codeMalformedJSON},
	} {
		t.Run(name, func(t *testing.T) {
			s.in(t).call(s.key, http.MethodPost, "/v1/rules", c.body).problem(http.StatusBadRequest, c.code)
		})
	}
	for name, c := range map[string]struct{ body, at string }{
		"null":      {"null", ""},
		"array":     {"[]", ""},
		"text":      {`"x"`, ""},
		"exponent":  {`{"slug":"r","limit":1e2,"window":"1s"}`, "/limit"},
		"fraction":  {`{"slug":"r","limit":1.0,"window":"1s"}`, "/limit"},
		"10^400":    {`{"slug":"r","limit":1` + strings.Repeat("0", 400) + `,"window":"1s"}`, "/limit"},
		"2^63":      {`{"slug":"r","limit":9223372036854775808,"window":"1s"}`, "/limit"},
		"text for":  {`{"slug":"r","limit":"1","window":"1s"}`, "/limit"},
		"null text": {`{"slug":null,"limit":1,"window":"1s"}`, "/slug"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, []string{c.at}, s.in(t).call(s.key, http.MethodPost, "/v1/rules", c.body).pointers(422, codeInvalidRequest))
		})
	}
	require.Equal(t, "The body must be an object.", s.call(s.key, http.MethodPost, "/v1/rules", "null").problem(422, codeInvalidRequest).Detail)
	// Errors are reported in a fixed order, up to a maximum.
	unknown := obj{}
	for i := range 5000 {
		unknown[fmt.Sprintf("x-%04d", i)] = i
	}
	many := s.call(s.key, http.MethodPost, "/v1/rules", unknown).problem(422, codeInvalidRequest)
	require.Len(t, many.Errors, maxProblemFields)
	require.Equal(t, "5003 fields are not valid; errors names 100 of them.", many.Detail)
	require.True(t, slices.IsSortedFunc(many.Errors, func(a, b ProblemField) int { return strings.Compare(a.Pointer, b.Pointer) }))
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/rules", nil).json()["items"])
}

func TestBodyTypeAndSize(t *testing.T) {
	s := newAdminStack(t)
	const body = `{"slug":"r","limit":1,"window":"1s"}`
	for _, contentType := range []string{
		"", "text/plain", "application/json; charset=utf-16", "application/json; version=1", "multipart/form-data; boundary=x",
		"application/xml", "application/merge-patch+json", "application/json, text/plain", "json",
	} {
		s.call(s.key, http.MethodPost, "/v1/rules", body, header{"Content-Type", contentType}).
			problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)
	}
	s.call(s.key, http.MethodPost, "/v1/rules", body, header{"Content-Encoding", "gzip"}).
		problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)
	s.call(s.key, http.MethodPut, "/v1/rules/r", `{"limit":1,"window":"1s"}`, header{"Content-Type", "Application/JSON; Charset=UTF-8"}).ok(201)

	pad := func(size int) string {
		const head = `{"limit":1,"window":"1s"}`
		return head + strings.Repeat(" ", size-len(head))
	}
	s.call(s.key, http.MethodPut, "/v1/rules/r", pad(maxAdminBody)).ok(200)
	s.call(s.key, http.MethodPut, "/v1/rules/r", pad(maxAdminBody+1)).problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge)
	// Without a Content-Length, too.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.url+"/v1/rules/r", onlyReader{strings.NewReader(pad(maxAdminBody + 1))})
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	s.send(r).problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge)
}

// onlyReader hides a reader's length.
type onlyReader struct{ r *strings.Reader }

func (o onlyReader) Read(p []byte) (int, error) { return o.r.Read(p) }

func TestQueriesAreReadStrictly(t *testing.T) {
	s := newAdminStack(t)
	require.Equal(t, []string{"query:Limit", "query:page"},
		s.call(s.key, http.MethodGet, "/v1/rules?page=2&Limit=5&limit=5", nil).pointers(400, codeUnknownParameter))
	for _, query := range []string{"limit=5;cursor=x", "limit=%zz", "%"} {
		s.call(s.key, http.MethodGet, "/v1/rules?"+query, nil).problem(400, codeMalformedQuery)
	}
	for _, query := range []string{"limit=0", "limit=-1", "limit=1000000000", "limit=1e2", "limit=1&limit=2", "limit=", "limit=+5", "limit=99999999999999999999"} {
		require.Equal(t, []string{"query:limit"}, s.call(s.key, http.MethodGet, "/v1/rules?"+query, nil).pointers(422, codeInvalidRequest), query)
	}
	for _, query := range []string{"prefix=%00", "prefix=%ff", "prefix="} {
		require.Equal(t, []string{"query:prefix"}, s.call(s.key, http.MethodGet, "/v1/subjects?"+query, nil).pointers(422, codeInvalidRequest), query)
	}
}

// The bounds of a schema are sentences, and a pointer to a parameter is its name.
func TestBoundsInWords(t *testing.T) {
	s := newAdminStack(t)
	rule := obj{"slug": "r", "limit": 1, "window": "1s"}
	requests := []obj{{"at_ms": 0, "subject": "a"}}
	for _, c := range []struct {
		body          obj
		pointer, says string
	}{
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": int64(1e18), "subject": "a"}}}, "/requests/0/at_ms", "must be at most 99999999999999"},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": 0, "subject": "a", "cost": int64(2e15)}}}, "/requests/0/cost", "must be at most 1000000000000000"},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": -1, "subject": "a"}}}, "/requests/0/at_ms", "must be at least 0"},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": 0, "subject": ""}}}, "/requests/0/subject", "must be 1 or more characters long"},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": 0, "subject": strings.Repeat("a", 257)}}}, "/requests/0/subject", "must be at most 256 characters long"},
		{obj{"rules": []obj{}, "requests": requests}, "/rules", "must have 1 or more items"},
		{obj{"rules": slices.Repeat([]obj{rule}, 33), "requests": requests}, "/rules", "must have 32 or fewer items"},
	} {
		p := s.call(s.key, http.MethodPost, "/v1/simulate", c.body).problem(422, codeInvalidRequest)
		require.Equal(t, []ProblemField{{Pointer: c.pointer, Message: c.says, Fix: p.Errors[0].Fix}}, p.Errors)
	}
	p := s.call(s.key, http.MethodGet, "/v1/usage?group_by=rule,nothing", nil).problem(422, codeInvalidRequest)
	require.Equal(t, []ProblemField{{
		Pointer: "query:group_by", Message: "must be one of rule, plan, resource, subject", Fix: "Use one of rule, plan, resource, subject.",
	}}, p.Errors)
}

// Every item of a list is returned once, even if items are created between pages.
func TestPaging(t *testing.T) {
	s := newAdminStack(t)
	for i := range 7 {
		s.call(s.key, http.MethodPut, fmt.Sprintf("/v1/rules/r-%d", i), obj{"limit": 1, "window": "1s"}).ok(201)
	}
	require.Nil(t, s.call(s.key, http.MethodGet, "/v1/rules?limit=7", nil).ok(200).json()["next_cursor"])
	var seen []string
	path := "/v1/rules?limit=3"
	for {
		page := s.call(s.key, http.MethodGet, path, nil).ok(200).json()
		for _, item := range page["items"].([]any) {
			seen = append(seen, item.(obj)["slug"].(string))
		}
		if page["next_cursor"] == nil {
			break
		}
		path = "/v1/rules?limit=3&cursor=" + url.QueryEscape(page["next_cursor"].(string))
		s.call(s.key, http.MethodPut, fmt.Sprintf("/v1/rules/later-%d", len(seen)), obj{"limit": 1, "window": "1s"}).ok(201)
	}
	require.Equal(t, []string{"r-6", "r-5", "r-4", "r-3", "r-2", "r-1", "r-0"}, seen, "newest first")
}

// A cursor is valid only for its tenant, its list and its filter (reliability row 49).
func TestCursorsAreAuthenticated(t *testing.T) {
	s := newAdminStack(t)
	for i := range 3 {
		for _, key := range []string{s.key, s.other} {
			s.call(key, http.MethodPut, fmt.Sprintf("/v1/rules/r-%d", i), obj{"limit": 1, "window": "1s"}).ok(201)
			s.call(key, http.MethodPut, fmt.Sprintf("/v1/subjects/user-%d", i), obj{}).ok(201)
		}
	}
	cursor := func(path string) string {
		return s.call(s.key, http.MethodGet, path, nil).ok(200).json()["next_cursor"].(string)
	}
	rules := cursor("/v1/rules?limit=1")
	s.call(s.key, http.MethodGet, "/v1/rules?cursor="+rules, nil).ok(200)
	s.call(s.readKey, http.MethodGet, "/v1/rules?cursor="+rules, nil).ok(200)

	edited := []byte(rules)
	edited[len(edited)-3] ^= 1
	raw, err := base64.RawURLEncoding.DecodeString(rules)
	require.NoError(t, err)
	bad := func(key, path string) {
		t.Helper()
		s.call(key, http.MethodGet, path, nil).problem(400, codeInvalidCursor)
	}
	bad(s.key, "/v1/rules?cursor="+string(edited))
	bad(s.key, "/v1/rules?cursor="+rules[:len(rules)-4])
	bad(s.key, "/v1/rules?cursor="+rules+"AAAA")
	bad(s.key, "/v1/rules?cursor="+url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("1' OR '1'='1 --- and more"))))
	bad(s.key, "/v1/rules?cursor="+base64.RawURLEncoding.EncodeToString(raw[cursorCodeBytes:]))
	bad(s.key, "/v1/rules?cursor="+strings.Repeat("A", 8<<10))
	bad(s.other, "/v1/rules?cursor="+rules)
	bad(s.key, "/v1/plans?cursor="+rules)
	bad(s.key, "/v1/subjects?cursor="+rules)

	filtered := cursor("/v1/subjects?limit=1&prefix=user")
	s.call(s.key, http.MethodGet, "/v1/subjects?prefix=user&cursor="+filtered, nil).ok(200)
	bad(s.key, "/v1/subjects?cursor="+filtered)
	bad(s.key, "/v1/subjects?prefix=use&cursor="+filtered)
}

// Entity tags, and the conditions of RFC 9110 (reliability row 56).
func TestEntityTags(t *testing.T) {
	s := newAdminStack(t)
	const path = "/v1/rules/r"
	body := func(limit int) obj { return obj{"limit": limit, "window": "1m"} }
	match := func(value string) header { return header{"If-Match", value} }

	s.call(s.key, http.MethodPut, path, body(1), match("*")).problem(412, codePreconditionFailed)
	old := s.call(s.key, http.MethodPut, path, body(1)).ok(201).header.Get("ETag")
	require.Regexp(t, `^"v[0-9]+"$`, old)
	tag := s.call(s.key, http.MethodPut, path, body(2), match(old)).ok(200).header.Get("ETag")
	require.NotEqual(t, old, tag)

	for _, stale := range []string{old, `"x"`, `W/` + tag, `"v0"`, `"v01"`, old + `, "other"`} {
		s.call(s.key, http.MethodPut, path, body(3), match(stale)).problem(412, codePreconditionFailed)
		s.call(s.key, http.MethodPatch, path, obj{"limit": 3}, match(stale)).problem(412, codePreconditionFailed)
		s.call(s.key, http.MethodDelete, path, nil, match(stale)).problem(412, codePreconditionFailed)
	}
	for _, malformed := range []string{"v1", `"v1`, `*, "v1"`, "", `"a" "b"`, ","} {
		s.call(s.key, http.MethodPatch, path, obj{"limit": 3}, match(malformed)).problem(400, codeInvalidHeader)
	}
	s.call(s.key, http.MethodPatch, path, obj{"limit": 3}, header{"If-None-Match", "*"}).problem(400, codeInvalidHeader)
	s.call(s.key, http.MethodPost, "/v1/rules", body(1), match("*")).problem(400, codeInvalidHeader)
	require.InDelta(t, 2, s.call(s.key, http.MethodGet, path, nil).ok(200).json()["limit"], 0)

	tag = s.call(s.key, http.MethodPatch, path, obj{"limit": 4}, match(`"x" , `+tag)).ok(200).header.Get("ETag")
	tag = s.call(s.key, http.MethodPatch, path, obj{"limit": 5}, match("*")).ok(200).header.Get("ETag")
	require.Equal(t, tag, s.call(s.key, http.MethodGet, path, nil).ok(200).header.Get("ETag"))

	for _, known := range []string{tag, "W/" + tag, old + ", " + tag, "*"} {
		same := s.call(s.key, http.MethodGet, path, nil, header{"If-None-Match", known}).ok(304)
		require.Empty(t, same.body)
		require.Equal(t, tag, same.header.Get("ETag"))
	}
	s.call(s.key, http.MethodGet, path, nil, header{"If-None-Match", old}).ok(200)
	s.call(s.key, http.MethodGet, path, nil, header{"If-None-Match", "v1"}).problem(400, codeInvalidHeader)

	s.call(s.key, http.MethodDelete, path, nil, match(tag)).ok(204)
	s.call(s.key, http.MethodPatch, path, obj{"limit": 1}).problem(404, codeNotFound)
}

// Of two edits of the same version, one is refused.
func TestConcurrentPatches(t *testing.T) {
	s := newAdminStack(t)
	tag := s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1m"}).ok(201).header.Get("ETag")
	statuses := make(chan int, 2)
	for i := range 2 {
		go func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, s.url+"/v1/rules/r", strings.NewReader(fmt.Sprintf(`{"limit":%d}`, i+2)))
			if err != nil {
				statuses <- 0
				return
			}
			r.Header.Set("Authorization", "Bearer "+s.key)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("If-Match", tag)
			response, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				statuses <- 0
				return
			}
			_ = response.Body.Close()
			statuses <- response.StatusCode
		}()
	}
	require.ElementsMatch(t, []int{200, 412}, []int{<-statuses, <-statuses})
}

// A subject in a path is read unchanged, and leads to no other path (reliability row 53).
func TestSubjectsInPaths(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1s"}).ok(201)
	for escaped, subject := range map[string]string{
		"a%2Fb": "a/b", "a%252Fb": "a%2Fb", "..a": "..a", "...": "...", "a+b": "a+b", "a%20b": "a b", "%F0%9F%9A%A6": "🚦",
		"a%2Foverrides%2Fr": "a/overrides/r", "%25": "%", "a;b": "a;b", "%3Fx=1%23": "?x=1#", "%C3%A9": "é", "%7Bsubject%7D": "{subject}",
		"a:b@c": "a:b@c", "%22%3C%3E": `"<>`, "%E2%80%A8": "\u2028", strings.Repeat("x", 256): strings.Repeat("x", 256), "%2F": "/", "A": "A", "a": "a",
		"'%20OR%201=1": "' OR 1=1", "e%CC%81": "e\u0301", "*": "*",
	} {
		path := "/v1/subjects/" + escaped
		put := s.raw(http.MethodPut, path, `{"billing_ref":"`+digest(subject)+`"}`).ok(201)
		require.Equal(t, subject, put.json()["subject"], escaped)
		got := s.raw(http.MethodGet, path, "").ok(200).json()
		require.Equal(t, subject, got["subject"], escaped)
		require.Equal(t, digest(subject), got["billing_ref"], "each name is a subject of its own")
		require.Equal(t, subject, s.raw(http.MethodGet, put.header.Get("Location"), "").ok(200).json()["subject"], "Location leads to it")
		s.raw(http.MethodPut, path+"/overrides/r", `{"limit":2}`).ok(201)
		s.raw(http.MethodDelete, path, "").ok(204)
		s.raw(http.MethodGet, path, "").problem(404, codeNotFound)
	}
	for _, escaped := range []string{"%00", "a%00b", "a%0Ab", "%C2%85", "%FF", strings.Repeat("x", 257), strings.Repeat("%F0%9F%9A%A6", 65)} {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			require.Equal(t, []string{"path:subject"}, s.raw(method, "/v1/subjects/"+escaped, "").pointers(422, codeInvalidRequest), escaped)
		}
		require.Equal(t, []string{"path:subject"}, s.raw(http.MethodPut, "/v1/subjects/"+escaped+"/overrides/r", `{"limit":1}`).pointers(422, codeInvalidRequest))
	}
	// Most clients remove these from a path, so they cannot be registered, because they could not
	// be removed. Checks still count them.
	for _, escaped := range []string{".", "..", "%2E", "%2e%2E"} {
		require.Equal(t, []string{"path:subject"}, s.raw(http.MethodPut, "/v1/subjects/"+escaped, `{}`).pointers(422, codeInvalidRequest), escaped)
		require.Equal(t, []string{"path:subject"}, s.raw(http.MethodPut, "/v1/subjects/"+escaped+"/overrides/r", `{"limit":1}`).pointers(422, codeInvalidRequest))
		s.raw(http.MethodGet, "/v1/subjects/"+escaped, "").problem(404, codeNotFound)
		s.raw(http.MethodGet, "/v1/subjects/"+escaped+"/limits", "").ok(200)
	}
	s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": ".."}).ok(200)
	require.Equal(t, []string{"line:1/subject"}, s.call(s.key, http.MethodPost, "/v1/bulk/subjects", `{"subject":".."}`, header{"Content-Type", jsonLinesType}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/subjects/0/subject"}, s.call(s.key, http.MethodPut, "/v1/config", obj{"subjects": []obj{{"subject": "."}}}).pointers(422, codeInvalidRequest))
	for _, path := range []string{"/v1/subjects/", "/v1/subjects//overrides/r", "/v1/subjects/a/b", "/v1/subjects/a/overrides", "/v1/subjects/a/overrides/", "/v1/subjects/a/overrides/r/", "/v1/rules/", "/v1/rules/r/"} {
		got := s.raw(http.MethodDelete, path, "")
		got.problem(404, codeNotFound)
	}
	for _, path := range []string{"/v1/rules/%00", "/v1/rules/%FF", "/v1/rules/R", "/v1/keys/%00", "/v1/keys/x", "/v1/plans/a%2Fb"} {
		s.raw(http.MethodGet, path, "").problem(404, codeNotFound)
	}
}

func digest(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// raw sends a request with an unchanged path.
func (s *adminStack) raw(method, path, body string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url, strings.NewReader(body))
	require.NoError(s.t, err)
	unescaped, err := url.PathUnescape(path)
	require.NoError(s.t, err)
	r.URL.Path, r.URL.RawPath = unescaped, path
	require.Equal(s.t, path, r.URL.EscapedPath(), "the request line is to carry the path as it is")
	r.Header.Set("Authorization", "Bearer "+s.key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return s.send(r)
}

// Idempotency keys (reliability row 46).
func TestIdempotencyKeys(t *testing.T) {
	s := newAdminStack(t)
	with := func(key string) header { return header{"Idempotency-Key", key} }
	rule := obj{"slug": "r", "limit": 1, "window": "1s"}

	first := s.call(s.key, http.MethodPost, "/v1/rules", rule, with("k1")).ok(201)
	require.Empty(t, first.header.Get("Idempotency-Replayed"))
	again := s.call(s.key, http.MethodPost, "/v1/rules", rule, with("k1")).ok(201)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.Equal(t, first.body, again.body)
	for _, name := range []string{"Location", "ETag", "Content-Type"} {
		require.Equal(t, first.header.Get(name), again.header.Get(name), name)
	}
	s.call(s.key, http.MethodPost, "/v1/rules", rule).problem(409, codeSlugTaken)

	// The first answer is final, also if it was a refusal.
	taken := s.call(s.key, http.MethodPost, "/v1/rules", rule, with("k2"))
	taken.problem(409, codeSlugTaken)
	s.call(s.key, http.MethodDelete, "/v1/rules/r", nil).ok(204)
	require.Equal(t, taken.body, s.call(s.key, http.MethodPost, "/v1/rules", rule, with("k2")).body)

	s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "other", "limit": 1, "window": "1s"}, with("k1")).problem(422, codeIdempotencyKeyReused)
	s.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": "r"}, with("k1")).problem(422, codeIdempotencyKeyReused)
	s.call(s.other, http.MethodPost, "/v1/rules", obj{"slug": "theirs", "limit": 1, "window": "1s"}, with("k1")).ok(201)

	for _, bad := range []string{"", strings.Repeat("k", 256), strings.Repeat("k", 10<<10), "a\tb", "é"} {
		require.Equal(t, []string{"header:Idempotency-Key"},
			s.call(s.key, http.MethodPost, "/v1/rules", rule, with(bad)).pointers(422, codeInvalidRequest))
	}
	s.call(s.key, http.MethodPost, "/v1/rules", rule, with(strings.Repeat("k", 255))).ok(201)
	s.call(s.key, http.MethodPost, "/v1/rules", rule, with("a"), with("b")).problem(400, codeInvalidHeader)
	// A replay requires the same scope as the first request.
	s.call(s.readKey, http.MethodPost, "/v1/rules", rule, with("k1")).problem(403, codeInsufficientScope)
}

// Secrets are not stored, and a replay says that they are omitted.
func TestReplaysLeaveSecretsOut(t *testing.T) {
	s := newAdminStack(t)
	post := func(key, path string, body any) (first, again answer) {
		first = s.call(key, http.MethodPost, path, body, header{"Idempotency-Key", path}).ok(201)
		again = s.call(key, http.MethodPost, path, body, header{"Idempotency-Key", path}).ok(201)
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
		return first, again
	}
	check := func(first, again obj) {
		t.Helper()
		secret := first["secret"].(string)
		require.NotEmpty(t, secret)
		require.NotContains(t, first, "secret_omitted")
		require.NotContains(t, again, "secret")
		require.Equal(t, true, again["secret_omitted"])
		require.Equal(t, first["id"], again["id"])
		require.Zero(t, s.storedAnswersWith(secret))
	}
	first, again := post(s.key, "/v1/keys", obj{"scopes": []string{"read"}})
	check(first.json(), again.json())
	rotated, replayed := post(s.key, first.header.Get("Location")+"/rotate", nil)
	check(rotated.json(), replayed.json())
	tenant, tenantAgain := post(s.operator, "/v1/tenants", obj{"slug": "new"})
	check(tenant.json()["key"].(obj), tenantAgain.json()["key"].(obj))
	require.NotContains(t, tenant.json(), "secret")
}

// storedAnswersWith counts the stored answers that contain text.
func (s *adminStack) storedAnswersWith(text string) (n int) {
	s.t.Helper()
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var stored int
		require.NoError(s.t, conn.QueryRow(ctx,
			"SELECT count(*), count(*) FILTER (WHERE position(convert_to($1, 'UTF8') IN body) > 0) FROM idempotency_keys", text).Scan(&stored, &n))
		require.Positive(s.t, stored)
	})
	return n
}

// While the first request runs, the second waits. If that takes long, it is asked to retry, and
// then gets the same answer.
func TestIdempotencyKeyInUse(t *testing.T) {
	s := newAdminStack(t)
	body := []byte(`{"slug":"r","limit":1,"window":"1s"}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/rules", bytes.NewReader(body))
	require.NoError(t, err)
	hash := requestHash(r, body)
	kept := s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "other", "limit": 1, "window": "1s"}).ok(201)
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx) // as of another server
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
			SELECT $1, encode(sha256(uuid_send(id) || 'k'), 'hex'), $2, 'in_progress', gen_random_uuid(), now(), now() + interval '1 day'
			FROM api_keys WHERE tenant_id = $1 ORDER BY id LIMIT 1`, s.a.TenantID(), hash[:])
		require.NoError(t, err)
		s.call(s.key, http.MethodPost, "/v1/rules", string(body), header{"Idempotency-Key", "k"}).problem(409, codeIdempotencyKeyInUse)
		_, err = tx.Exec(ctx, `UPDATE idempotency_keys SET state = 'finished', status = 201, body = $1,
			header = '{"Location": ["/v1/rules/other"], "Etag": ["\"1\""], "Content-Type": ["application/json"]}'`, kept.body)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(ctx))
	})
	again := s.call(s.key, http.MethodPost, "/v1/rules", string(body), header{"Idempotency-Key", "k"})
	require.Equal(t, 201, again.status)
	require.Equal(t, "/v1/rules/other", again.header.Get("Location"))
	require.Equal(t, kept.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
}

// An internal error is answered without details, logged with them, and not stored: the same
// Idempotency-Key works later.
func TestFailuresStayInside(t *testing.T) {
	s := newAdminStack(t)
	s.db.Exec("ALTER TABLE rules RENAME TO rules_gone")
	post := func() answer {
		return s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "r", "limit": 1, "window": "1s"}, header{"Idempotency-Key", "k"})
	}
	p := post().problem(500, codeInternal)
	require.NotContains(t, p.Detail, "rules")
	require.Contains(t, s.log.String(), p.RequestID)
	require.Contains(t, s.log.String(), "42P01", "the log has what the client has not")
	s.db.Exec("ALTER TABLE rules_gone RENAME TO rules")
	post().ok(201)
}

// A cursor is refused unless it is exactly the one that a page of the same list has given.
func FuzzCursor(f *testing.F) {
	c := &cursors{key: []byte("0123456789abcdef0123456789abcdef")}
	ctx := context.WithValue(f.Context(), requestKey{}, &request{actor: tenants.AsSystem(uuid.UUID{1}, "fuzz"), authed: true})
	f.Add("rules", "r-1", *c.next(ctx, "rules", "r-1"))
	f.Add("subjects?prefix=a", "a\x00b", "' OR '1'='1")
	f.Add("rules", "r-1", *c.next(ctx, "plans", "r-1"))
	f.Add("", "r-1", "AAAAAAAAAAAAAAAAAAAAAAA=")
	f.Fuzz(func(t *testing.T, list, after, cursor string) {
		given := c.next(ctx, list, after)
		if after == "" {
			require.Nil(t, given)
			return
		}
		page, err := c.open(ctx, list, PageParams{Cursor: *given})
		require.NoError(t, err)
		require.Equal(t, after, page.After)
		_, err = c.open(ctx, list+" ", PageParams{Cursor: *given})
		require.Error(t, err)
		page, err = c.open(ctx, list, PageParams{Cursor: cursor})
		if err == nil && cursor != "" {
			require.Equal(t, cursor, *c.next(ctx, list, page.After))
		}
	})
}
