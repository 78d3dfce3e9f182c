package api

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An answer that cannot be encoded is an internal error, answered and logged.
func TestAnswersThatCannotBeEncoded(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "r", "limit": 1, "window": "1m"}).ok(201)
	s.db.Exec("UPDATE rules SET created_at = '10000-01-01T00:00:00Z'") // no RFC 3339 time
	for _, path := range []string{"/v1/rules/r", "/v1/rules"} {
		p := s.call(s.key, http.MethodGet, path, nil).problem(500, codeInternal)
		require.NotContains(t, p.Detail, "10000")
		require.Contains(t, s.log.String(), p.RequestID)
	}
	// It is not stored for a repeat, which would get it for a day.
	s.db.Exec("ALTER TABLE rules ALTER created_at SET DEFAULT '10000-01-01T00:00:00Z'")
	post := func() answer {
		return s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "made", "limit": 1, "window": "1m"}, header{"Idempotency-Key", "k"})
	}
	post().problem(500, codeInternal)
	s.db.Exec("ALTER TABLE rules ALTER created_at SET DEFAULT now()")
	post().ok(201)
}

// The end of a period in usage is validated like other times.
func TestUsageEnds(t *testing.T) {
	s := newAdminStack(t)
	for _, grain := range []string{"minute", "hour", "day"} {
		for _, to := range []string{"9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "2199-01-01T00:00:00Z"} {
			require.Equal(t, []string{"query:to"},
				s.call(s.key, http.MethodGet, "/v1/usage?grain="+grain+"&to="+url.QueryEscape(to), nil).pointers(422, codeInvalidRequest), grain)
		}
	}
}

// HEAD answers like GET, without the body.
func TestHead(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/subjects/s", obj{}).ok(201)
	ids := []string{}
	for id, op := range s.operations() {
		if op.method != http.MethodGet {
			continue
		}
		ids = append(ids, id)
		fill := s.prepare(id)
		key := s.key
		if strings.HasPrefix(op.path, "/v1/tenants") {
			key = s.operator
		}
		path := fill.Replace(adminCases[id].path)
		get, head := s.call(key, http.MethodGet, path, nil), s.call(key, http.MethodHead, path, nil)
		require.Equal(t, get.status, head.status, id)
		require.Empty(t, head.body, id)
		for _, name := range []string{"Content-Type", "ETag", "Vary", "Cache-Control", "Content-Disposition"} {
			require.Equal(t, get.header.Get(name), head.header.Get(name), "%s %s", id, name)
		}
		require.Equal(t, 401, s.call("", http.MethodHead, path, nil).status, id)
		require.Equal(t, 403, s.call(s.wKey, http.MethodHead, path, nil).status, id)
	}
	require.True(t, slices.Contains(ids, "export-subjects") && slices.Contains(ids, "get-rule"))
	tag := s.call(s.key, http.MethodGet, "/v1/tenant", nil).header.Get("ETag")
	require.Equal(t, 304, s.call(s.key, http.MethodHead, "/v1/tenant", nil, header{"If-None-Match", tag}).status)
	require.Equal(t, "GET, HEAD, PATCH", s.call(s.key, http.MethodPut, "/v1/tenant", nil).header.Get("Allow"))
}

// The error of an invalid filter points to the query.
func TestFiltersThatAreTooLong(t *testing.T) {
	s := newAdminStack(t)
	long := strings.Repeat("p", 600)
	for path, pointer := range map[string]string{
		"/v1/subjects?prefix=" + long: "query:prefix", "/v1/subjects?plan=" + long: "query:plan", "/v1/subjects?label=" + long: "query:label",
		"/v1/overrides?prefix=" + long: "query:prefix", "/v1/bulk/subjects?prefix=" + long: "query:prefix",
	} {
		require.Equal(t, []string{pointer}, s.call(s.key, http.MethodGet, path, nil).pointers(422, codeInvalidRequest), path[:20])
	}
}

// The trail has the format that Accept requests. A limit is applied or refused.
func TestFormsOfTheTrail(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1m"}).ok(201)
	for accept, contentType := range map[string]string{
		"text/csv": "text/csv; charset=utf-8", "application/jsonl": jsonLinesType, "application/json": jsonType, "*/*": jsonType, "text/csv;q=0.1, application/json": jsonType,
	} {
		got := s.call(s.key, http.MethodGet, "/v1/audit", nil, header{"Accept", accept}).ok(200)
		require.Equal(t, contentType, got.header.Get("Content-Type"), accept)
		require.Equal(t, "Accept", got.header.Get("Vary"))
	}
	for _, format := range []string{"csv", "jsonl"} {
		require.Equal(t, []string{"query:cursor", "query:limit"},
			s.call(s.key, http.MethodGet, "/v1/audit?limit=2&cursor=x&format="+format, nil).pointers(422, codeInvalidRequest))
	}
	require.Equal(t, []string{"query:limit"},
		s.call(s.key, http.MethodGet, "/v1/audit?limit=50", nil, header{"Accept", csvType}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"query:to"},
		s.call(s.key, http.MethodGet, "/v1/audit?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", nil).pointers(422, codeInvalidRequest))
}

// If an import is repeated while the first one runs, the repeat is refused like that of every other
// POST.
func TestImportThatIsRepeatedWhileItRuns(t *testing.T) {
	s := newSubjectStack(t)
	body, feed := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+bulkPath, body)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", jsonLinesType)
	r.Header.Set("Idempotency-Key", "k")
	ended := make(chan answer, 1)
	go func() { ended <- s.send(r) }()
	// More than the buffers of both ends: when all of it is written, the import is being read.
	padding := strings.Repeat(strings.Repeat(" ", maxImportLine/2)+"\n", 32)
	_, err = io.WriteString(feed, padding)
	require.NoError(t, err)
	const line = `{"subject":"late"}`
	again := func(key string) answer {
		return s.bulk("", jsonLinesType, padding+line, header{"Idempotency-Key", key})
	}
	running := again("k")
	running.problem(http.StatusConflict, codeIdempotencyKeyInUse)
	require.NotEmpty(t, running.header.Get("Retry-After"))
	again("another").problem(http.StatusTooManyRequests, codeBulkBusy)
	_, err = io.WriteString(feed, line)
	require.NoError(t, err)
	require.NoError(t, feed.Close())
	require.Equal(t, counts(1, 0, 0), (<-ended).ok(200).json())
	replay := again("k").ok(200)
	require.Equal(t, "true", replay.header.Get(replayedHeader))
	require.Equal(t, counts(1, 0, 0), replay.json())
}

// 0 is a given number, and not valid for the pattern.
func TestNoEdges(t *testing.T) {
	s := newAdminStack(t)
	require.Equal(t, []string{"/traffic/edges"}, s.call(s.key, http.MethodPost, "/v1/simulate", obj{
		"rules":   []obj{{"slug": "r", "limit": 1, "window": "1m"}},
		"traffic": obj{"pattern": "window_edge", "requests": 1, "window_ms": 60_000, "edges": 0},
	}).pointers(422, codeInvalidRequest))
}
