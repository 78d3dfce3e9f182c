package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
)

const bulkPath = "/v1/bulk/subjects"

// bulk sends a file.
func (s *adminStack) bulk(query, mediaType, body string, headers ...header) answer {
	s.t.Helper()
	return s.call(s.key, http.MethodPost, bulkPath+query, body, append(headers, header{"Content-Type", mediaType})...)
}

// export returns the exported text, after it has compared each line of JSON with the document.
func (s *adminStack) export(key, query string) string {
	s.t.Helper()
	a := s.call(key, http.MethodGet, bulkPath+query, nil).ok(200)
	if strings.HasPrefix(a.header.Get("Content-Type"), csvType) {
		return string(a.body)
	}
	require.Equal(s.t, jsonLinesType, a.header.Get("Content-Type"))
	schema := s.doc.Components.Schemas["BulkSubject"].Value
	for line := range bytes.Lines(a.body) {
		var value any
		require.NoError(s.t, json.Unmarshal(line, &value))
		require.NoError(s.t, schema.VisitJSON(value, openapi3.MultiErrors()), "%s", line)
	}
	return string(a.body)
}

func counts(created, updated, unchanged float64) obj {
	return obj{"created": created, "updated": updated, "unchanged": unchanged}
}

// An export can be imported, in both formats, with any texts. It changes nothing in the same
// tenant, and makes an empty tenant equal.
func TestBulkRoundTrip(t *testing.T) {
	s := newSubjectStack(t)
	for subject, body := range map[string]obj{
		"=1+1": {"billing_ref": "=cmd|' /C calc'!A0"}, "'=1": {"billing_ref": "'+1"}, "''-x": {}, "'quoted'": {"billing_ref": "'"},
		"+a": {}, "-a": {}, "@a": {}, `a,"b"`: {"billing_ref": `say "hi", friend`}, " space ": {}, "ü🚦": {"plan": "pro", "state": "blocked"},
		"a/b": {"labels": obj{"region": "eu", "x.y/z": `=1,"2"`, "empty": ""}}, "export": {}, "import": {"state": "exempt", "multiplier": 7, "cycle_anchor": "2026-01-31T08:30:00.125Z"}, `\.`: {},
	} {
		_, _, err := s.store.PutSubject(t.Context(), s.a, subjectOfTest(subject, body), tenants.Match{})
		require.NoError(t, err)
	}
	s.call(s.key, http.MethodPut, "/v1/subjects/a%2Fb/overrides/api", obj{
		"limit": 5, "reason": "a \"reason\"\nof two lines", "starts_at": "2026-01-01T00:00:00.123456Z", "expires_at": "2999-01-01T00:00:00Z",
	}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/subjects/bare/overrides/api", obj{"unlimited": true}).ok(201)

	table, lines := s.export(s.key, "?format=csv"), s.export(s.key, "")
	require.Equal(t, table, string(s.call(s.key, http.MethodGet, bulkPath, nil, header{"Accept", "text/csv"}).ok(200).body))
	for cell := range strings.FieldsFuncSeq(table, func(c rune) bool { return c == ',' || c == '\n' || c == '\r' }) {
		require.NotContains(t, "=+-@", strings.TrimLeft(cell, `"`)[:1], "no cell is a formula: %s", cell)
	}
	require.Equal(t, counts(0, 0, 15), s.bulk("", csvType, table).ok(200).json())
	require.Equal(t, counts(0, 0, 15), s.bulk("", csvType, "\ufeff"+table).ok(200).json(), "as a spreadsheet saves it")
	require.Equal(t, counts(0, 0, 15), s.bulk("", jsonLinesType, lines).ok(200).json())
	require.Equal(t, counts(0, 0, 15), s.bulk("", olderLinesType, lines).ok(200).json())

	s.call(s.other, http.MethodPost, "/v1/rules", obj{"slug": "api", "limit": 100, "window": "1m", "algorithm": "token_bucket"}).ok(201)
	s.call(s.other, http.MethodPut, "/v1/plans/pro", obj{}).ok(201)
	there := func(mediaType, body string) obj {
		return s.call(s.other, http.MethodPost, bulkPath, body, header{"Content-Type", mediaType}).ok(200).json()
	}
	require.Empty(t, s.export(s.other, ""))
	require.Equal(t, "subject,plan,state,billing_ref,cycle_anchor,labels,plan_version,multiplier\r\n", s.export(s.other, "?format=csv"))
	require.Equal(t, counts(15, 0, 0), there(csvType, table))
	require.Equal(t, table, s.export(s.other, "?format=csv"))
	require.Equal(t, counts(0, 2, 13), there(jsonLinesType, lines), "overrides come with JSON only")
	require.Equal(t, lines, s.export(s.other, ""))

	require.Equal(t, 2, strings.Count(s.export(s.key, "?format=csv&state=exempt"), "\n"))
	require.Equal(t, 1, strings.Count(s.export(s.key, "?label=region=eu&prefix=a"), "\n"))
	require.Empty(t, s.export(s.key, "?plan=free"))
}

func subjectOfTest(subject string, body obj) tenants.Subject {
	s := tenants.Subject{Subject: subject}
	s.Plan, _ = body["plan"].(string)
	s.BillingRef, _ = body["billing_ref"].(string)
	if text, ok := body["cycle_anchor"].(string); ok {
		at, _ := time.Parse(time.RFC3339Nano, text)
		s.CycleAnchor = &at
	}
	if state, ok := body["state"].(string); ok {
		s.State, _ = check.ParseSubjectState(state)
	}
	s.Multiplier, _ = body["multiplier"].(int)
	if labels, ok := body["labels"].(obj); ok {
		s.Labels = map[string]string{}
		for name, value := range labels {
			s.Labels[name], _ = value.(string)
		}
	}
	return s
}

// A file with some columns does not change the other fields.
func TestImportOfSomeColumns(t *testing.T) {
	s := newSubjectStack(t)
	s.call(s.key, http.MethodPut, "/v1/subjects/u", obj{"plan": "pro", "labels": obj{"a": "b"}, "billing_ref": "cus_1"}).ok(201)
	require.Equal(t, counts(1, 1, 0), s.bulk("?dry_run=true", csvType, "plan,subject\nfree,u\n,v\n").ok(200).json())
	require.Equal(t, "pro", s.call(s.key, http.MethodGet, "/v1/subjects/u", nil).ok(200).json()["plan"])
	require.Equal(t, counts(1, 1, 0), s.bulk("", csvType, "plan,subject\nfree,u\n,v\n").ok(200).json())
	u := s.call(s.key, http.MethodGet, "/v1/subjects/u", nil).ok(200).json()
	require.Equal(t, "free", u["plan"])
	require.Equal(t, obj{"a": "b"}, u["labels"])
	require.Equal(t, "cus_1", u["billing_ref"])
	require.Equal(t, counts(0, 1, 1), s.bulk("", jsonLinesType, `{"subject":"u","plan":null,"labels":{}}`+"\n\n"+`{"subject":"v","overrides":{"api":null}}`).ok(200).json())
	require.Nil(t, s.call(s.key, http.MethodGet, "/v1/subjects/u", nil).ok(200).json()["plan"])
	require.Equal(t, counts(0, 1, 0), s.bulk("", csvType, "subject,multiplier\nu,5\n").ok(200).json())
	require.Equal(t, counts(0, 0, 1), s.bulk("", csvType, "subject,state\nu,\n").ok(200).json(), "an omitted multiplier stays")
	require.EqualValues(t, 5, s.call(s.key, http.MethodGet, "/v1/subjects/u", nil).ok(200).json()["multiplier"])
	require.Equal(t, counts(0, 1, 0), s.bulk("", jsonLinesType, `{"subject":"u","multiplier":null}`).ok(200).json())
	require.Equal(t, []string{"line:2/multiplier", "line:3/multiplier"}, s.bulk("", csvType, "subject,multiplier\nu,0\nv,1000001\n").pointers(422, codeInvalidRequest))
	require.Equal(t, counts(0, 1, 0), s.bulk("", jsonLinesType, `{"subject":"v","overrides":{"api":{"limit":5}}}`).ok(200).json())
	require.Equal(t, counts(0, 1, 0), s.bulk("", jsonLinesType, `{"subject":"v","overrides":{"api":null}}`).ok(200).json())
	require.Equal(t, counts(0, 0, 0), s.bulk("", csvType, "subject\n").ok(200).json())
	require.Equal(t, []string{"line:3/subject"}, s.bulk("?mode=create", csvType, "subject\nnew\nu\n").pointers(422, codeInvalidRequest))
	s.call(s.key, http.MethodGet, "/v1/subjects/new", nil).problem(404, codeNotFound)
	require.Equal(t, []string{"query:mode"}, s.bulk("?mode=replace", csvType, "subject\n").pointers(422, codeInvalidRequest))
}

// Each line is validated like a PUT, and errors have the line and the field.
func TestImportRefusals(t *testing.T) {
	s := newSubjectStack(t)
	for name, c := range map[string]struct {
		mediaType, body string
		at              []string
	}{
		"csv, values": {csvType, "subject,plan,state,billing_ref,labels\n,,,,\nu,,asleep,,\nv,,,,[]\nw,,,,\"{\"\"a\"\":null}\"\nx,,,,\"{\"\"a b\"\":\"\"1\"\"}\"\n",
			[]string{"line:2/subject", "line:3/state", "line:4/labels", "line:5/labels", "line:6/labels"}},
		"csv, UTF-8":     {csvType, "subject\n\xff\n", []string{"line:2/subject"}},
		"csv, columns":   {csvType, "Subject,plan,plan\n", []string{"line:1/Subject", "line:1/plan", "line:1/subject"}},
		"csv, nothing":   {csvType, "", []string{"line:1/subject"}},
		"csv, plan":      {csvType, "subject,plan\nu,gold\n", []string{"line:2/plan"}},
		"csv, two lines": {csvType, "subject,labels\nu,\"{\"\"a\"\":\n\"\"b\"\"}\"\nu,\n", []string{"line:4/subject"}},
		"json, values": {jsonLinesType, `{"subject":"u","plan":5,"state":"asleep"}` + "\n" + `{"plan":""}` + "\n" + `{"subject":"v","labels":{"a":1},"version":1}` + "\n[]\n",
			[]string{"line:1/plan", "line:1/state", "line:2/subject", "line:3/labels/a", "line:3/version", "line:4"}},
		"json, empty plan": {jsonLinesType, `{"subject":"u","plan":""}`, []string{"line:1/plan"}},
		"json, overrides":  {jsonLinesType, `{"subject":"u","overrides":{"api":{"limit":0},"none":{"limit":1}}}`, []string{"line:1/overrides/api/limit"}},
		"json, rules": {jsonLinesType, `{"subject":"u","overrides":{"api":{"limit":1,"expires_at":"2020-01-01T00:00:00Z"},"none":{"limit":1}}}`,
			[]string{"line:1/overrides/api/expires_at", "line:1/overrides/none"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			require.ElementsMatch(t, c.at, s.bulk("", c.mediaType, c.body).pointers(422, codeInvalidRequest))
			require.Empty(t, s.export(s.key, ""))
		})
	}
	for name, c := range map[string]struct{ mediaType, body, code, at string }{
		"csv, cells":      {csvType, "subject,plan\nu\n", codeMalformedCSV, "Line 2"},
		"csv, quote":      {csvType, "subject\nu\n\"v\n", codeMalformedCSV, "Line"},
		"csv, bare quote": {csvType, "subject\nu\nv\"w\n", codeMalformedCSV, "Line 3"},
		"json, cut off":   {jsonLinesType, `{"subject":"u"}` + "\n" + `{"subject":`, codeMalformedJSON, "Line 2"},
		"json, two":       {jsonLinesType, `{"subject":"u"}{"subject":"v"}`, codeMalformedJSON, "Line 1"},
		"json, twice":     {jsonLinesType, "\n" + `{"subject":"u","subject":"v"}`, codeDuplicateField, "Line 2"},
		"json, an array":  {jsonLinesType, "[\n" + `{"subject":"u"}` + "\n]", codeMalformedJSON, "Line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			require.Contains(t, s.bulk("", c.mediaType, c.body).problem(400, c.code).Detail, c.at)
			require.Empty(t, s.export(s.key, ""))
		})
	}
	s.bulk("", jsonType, `[]`).problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)
	s.bulk("", csvType, "subject\n", header{"Content-Encoding", "gzip"}).problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)

	bad := s.bulk("", csvType, "subject,state\n"+strings.Repeat("u,x\n", 300)).problem(422, codeInvalidRequest)
	require.Len(t, bad.Errors, maxProblemFields)
	require.Equal(t, "599 fields are not valid; errors names 100 of them.", bad.Detail, "300 states, and a subject 300 times")
}

// An import that is too large is refused before it is read into memory.
func TestImportBounds(t *testing.T) {
	s := newSubjectStack(t)
	line := tenants.SubjectLine{Line: 1, Subject: "s"}
	f := &importFile{seen: maxImportLines - 1}
	require.NoError(t, f.add(line), "the last one that fits")
	require.ErrorContains(t, f.add(line), "at most 200000 lines")
	line.Overrides = make([]tenants.OverrideLine, 2)
	f = &importFile{overrides: maxImportOverrides - 1}
	require.ErrorContains(t, f.add(line), "at most 200000 overrides")

	s.bulk("", jsonLinesType, `{"subject":"`+strings.Repeat("x", maxImportLine)+`"}`).problem(413, codeBodyTooLarge)
	tooLarge := strings.Repeat(strings.Repeat(" ", maxImportLine/2)+"\n", maxImportBody/(maxImportLine/2))
	for name, body := range map[string]io.Reader{
		"told":     strings.NewReader(tooLarge),
		"not told": onlyReader{strings.NewReader(tooLarge)},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+bulkPath, body)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+s.key)
		r.Header.Set("Content-Type", jsonLinesType)
		require.Contains(t, s.send(r).problem(413, codeBodyTooLarge).Detail, "67108864 bytes", name)
	}
	require.Empty(t, s.export(s.key, ""))
}

// A repeated import is answered but not executed again. Another file with the same key is refused.
func TestImportIsIdempotent(t *testing.T) {
	s := newSubjectStack(t)
	again := header{"Idempotency-Key", "import-1"}
	first := s.bulk("", csvType, "subject\nu\n", again).ok(200)
	require.Equal(t, counts(1, 0, 0), first.json())
	replay := s.bulk("", csvType, "subject\nu\n", again).ok(200)
	require.Equal(t, first.body, replay.body)
	require.Equal(t, "true", replay.header.Get(replayedHeader))
	s.bulk("", csvType, "subject\nv\n", again).problem(422, codeIdempotencyKeyReused)
	s.bulk("?dry_run=true", csvType, "subject\nu\n", again).problem(422, codeIdempotencyKeyReused)
}

// A table with very many cells or very long rows is refused with little memory, and with the line.
// Not parallel, because it counts all that is allocated.
func TestTablesCost(t *testing.T) {
	const size = 16 << 20
	for name, c := range map[string]struct{ head, again, detail string }{
		"header":        {"subject", ",", "Line 1: a row may be at most 1048576 bytes long, and the first one 4096."},
		"quoted header": {`"subject`, "\n", "Line 1: a row may"},
		"cells":         {"subject,plan\nu,\n", ",", "Line 3: a row may"},
		"rows of cells": {"subject,plan\nu,\n", strings.Repeat(",", 512<<10) + "\n", "Line 3 has more or fewer cells than the first line."},
		"quoted cell":   {"subject,plan\nu,\"\n\"\n\"", "\n", "Line 4: a row may"},
	} {
		t.Run(name, func(t *testing.T) {
			text := c.head + strings.Repeat(c.again, size/len(c.again))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := new(importFile).readCSV(strings.NewReader(text))
			runtime.ReadMemStats(&after)
			var p *Problem
			require.ErrorAs(t, err, &p)
			require.Contains(t, p.Detail, c.detail)
			t.Logf("%d KiB", (after.TotalAlloc-before.TotalAlloc)>>10)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
		})
	}
	for text, wrong := range map[string][]string{
		"\n\r\nsubject,plan\n\na,\"x\ny\"\n\"b\"\"\",\",\"\"\n\"\r\nc,":    nil,
		"subject,labels\na," + strings.Repeat("x", maxLabelsCell+1) + "\n": {"labels"},
	} {
		var f importFile
		require.NoError(t, f.readCSV(strings.NewReader(text)))
		var fields []string
		for _, l := range f.wrong.Lines {
			fields = append(fields, l.Field)
		}
		require.Equal(t, wrong, fields)
		if wrong == nil {
			require.Len(t, f.lines, 3)
			require.Equal(t, ",\"\n", *f.lines[1].Plan)
		}
	}
}

// A tenant has one transfer at a time, and cannot use the slots of others.
func TestBulkSlots(t *testing.T) {
	s := newSubjectStack(t)
	body, feed := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+bulkPath, body)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", jsonLinesType)
	ended := make(chan answer, 1)
	go func() { ended <- s.send(r) }()
	// More than the buffers of both ends: when all of it is written, the import is being read.
	_, err = io.WriteString(feed, strings.Repeat(strings.Repeat(" ", maxImportLine/2)+"\n", 32))
	require.NoError(t, err)
	busy := s.bulk("?dry_run=true", csvType, "subject\n")
	busy.problem(http.StatusTooManyRequests, codeBulkBusy)
	require.NotEmpty(t, busy.header.Get("Retry-After"))
	s.call(s.other, http.MethodPost, bulkPath, "subject\nu\n", header{"Content-Type", csvType}).ok(200)
	require.Empty(t, s.export(s.key, ""), "an import holds no export up")
	_, err = io.WriteString(feed, `{"subject":"late"}`)
	require.NoError(t, err)
	require.NoError(t, feed.Close())
	require.Equal(t, counts(1, 0, 0), (<-ended).ok(200).json())
	s.bulk("", csvType, "subject\n").ok(200)
}

// An export that fails does not look complete.
func TestExportThatBreaksOff(t *testing.T) {
	s := newSubjectStack(t)
	// More than all buffers between Postgres and the test hold, because both ends of the connection
	// have small ones.
	s.buffer = 64 << 10
	s.url = s.serve(s.store)
	lines := make([]tenants.SubjectLine, 3000)
	for i := range lines {
		lines[i] = tenants.SubjectLine{Line: i + 1, Subject: fmt.Sprintf("%0250d", i), BillingRef: ptr(fmt.Sprintf("%0250d", i))}
	}
	_, err := s.store.ImportSubjects(t.Context(), s.a, lines, tenants.ImportMode{})
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+bulkPath, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return conn, conn.(*net.TCPConn).SetReadBuffer(64 << 10) // dialled over TCP
	}}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	// The test does not read, so the export waits when the buffers are full.
	s.db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir_app'")
	_, err = io.Copy(io.Discard, response.Body)
	require.Error(t, err)
}

func TestOverridesOfAllSubjects(t *testing.T) {
	s := newSubjectStack(t)
	s.call(s.key, http.MethodPut, "/v1/subjects/a/overrides/api", obj{"limit": 5, "reason": "trial", "expires_at": "2998-01-01T00:00:00Z"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/subjects/b/overrides/api", obj{"limit": 6, "expires_at": "2997-01-01T00:00:00Z"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/subjects/c/overrides/api", obj{"limit": 7, "starts_at": "2996-01-01T00:00:00Z"}).ok(201)
	names := func(query string) (out []string) {
		for _, item := range items(s.call(s.key, http.MethodGet, "/v1/overrides?"+query, nil).ok(200)) {
			out = append(out, item["subject"].(string))
		}
		return out
	}
	require.Equal(t, []string{"a", "b", "c"}, names(""))
	require.Equal(t, []string{"b", "a"}, names("ending_before=2999-01-01T00:00:00Z"))
	require.Equal(t, []string{"b"}, names("ending_before=2997-06-01T00:00:00%2B01:00"))
	require.Equal(t, []string{"c"}, names("active=false"))
	require.Equal(t, []string{"a"}, names("active=true&prefix=a&rule=api"))
	require.Equal(t, []string{"query:rule"}, s.call(s.key, http.MethodGet, "/v1/overrides?rule=none", nil).pointers(422, codeInvalidRequest))
	first := s.call(s.key, http.MethodGet, "/v1/overrides?limit=1", nil).ok(200).json()
	item := first["items"].([]any)[0].(obj)
	require.Equal(t, "api", item["rule"])
	require.Equal(t, "trial", item["reason"])
	require.Equal(t, true, item["active"])
	cursor := first["next_cursor"].(string)
	require.Equal(t, []string{"b"}, names("limit=1&cursor="+cursor))
	s.call(s.key, http.MethodGet, "/v1/overrides?active=true&cursor="+cursor, nil).problem(400, codeInvalidCursor)
	s.call(s.other, http.MethodGet, "/v1/overrides?cursor="+cursor, nil).problem(400, codeInvalidCursor)
	require.Empty(t, items(s.call(s.other, http.MethodGet, "/v1/overrides", nil).ok(200)))
	for _, query := range []string{"ending_before=soon", "active=yes", "active=1"} {
		require.Len(t, s.call(s.key, http.MethodGet, "/v1/overrides?"+query, nil).pointers(422, codeInvalidRequest), 1, query)
	}
}

// All errors of a file are reported at once: invalid lines, and names that the tenant does not
// have.
func TestImportNamesAllThatIsWrong(t *testing.T) {
	s := newSubjectStack(t)
	require.Equal(t, []string{"line:2/plan", "line:4/subject", "line:5/plan"},
		s.bulk("", csvType, "subject,plan\na,nope\nb,free\n,free\nc,none\n").pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"line:2/plan", "line:2/state", "line:3/subject"},
		s.bulk("", csvType, "subject,plan,state\na,nope,asleep\n,free,active\n").pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"line:1/plan", "line:2/plan", "line:3/subject"},
		s.bulk("", jsonLinesType, `{"subject":"a","plan":"nope"}`+"\n"+`{"subject":"b","plan":5}`+"\n"+`{"subject":"a"}`+"\n").pointers(422, codeInvalidRequest))
	many := s.bulk("", csvType, "subject,plan,state\n"+strings.Repeat("x,nope,asleep\n", 120)).problem(422, codeInvalidRequest)
	require.Len(t, many.Errors, tenants.MaxLineErrors)
	require.Contains(t, many.Detail, "errors names 100 of them")
	require.Empty(t, s.export(s.key, ""), "nothing of it was imported")
}
