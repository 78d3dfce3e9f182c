package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// tally counts the answers that were compared with the document, by operation and status.
type tally struct {
	mu      sync.Mutex
	answers map[string]map[int]int
}

var validated = tally{answers: map[string]map[int]int{}}

func (c *tally) add(operation string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers[operation] == nil {
		c.answers[operation] = map[int]int{}
	}
	c.answers[operation][status]++
}

// String returns the numbers of answers and of their kinds.
func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds, answers := 0, 0
	for _, statuses := range c.answers {
		kinds += len(statuses)
		for _, n := range statuses {
			answers += n
		}
	}
	return fmt.Sprintf("held against the OpenAPI document: %d operations, %d kinds of answers (operation and status), %d answers",
		len(c.answers), kinds, answers)
}

// missing returns the operations that never succeeded or never failed.
func (c *tally) missing(doc *openapi3.T) (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			var success, failure bool
			for status := range c.answers[op.OperationID] {
				success = success || status < 400
				failure = failure || status >= 400
			}
			if !success {
				out = append(out, op.OperationID+": no success")
			}
			if !failure && canFail(op) {
				out = append(out, op.OperationID+": no failure")
			}
		}
	}
	slices.Sort(out)
	return out
}

// canFail reports whether an operation has its own failure, besides that of a head that is too
// large.
func canFail(op *openapi3.Operation) bool {
	for status := range op.Responses.Map() {
		if n, _ := strconv.Atoi(status); n >= 400 && n != http.StatusRequestHeaderFieldsTooLarge {
			return true
		}
	}
	return false
}

// After a run of all tests, each operation must have succeeded and failed, and every answer must
// have matched the document.
func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Println(validated.String())
	if code == 0 && allTests() {
		doc, err := document()
		if err != nil {
			fmt.Println(err)
			code = 1
		} else if missing := validated.missing(doc); len(missing) > 0 {
			fmt.Printf("not held against the document:\n  %s\n", strings.Join(missing, "\n  "))
			code = 1
		}
	}
	os.Exit(code)
}

// allTests reports whether all tests were run.
func allTests() bool {
	for name, full := range map[string]string{"test.run": "", "test.skip": "", "test.list": "", "test.fuzz": ""} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != full {
			return false
		}
	}
	return true
}

// Headers that any answer of HTTP may have.
var commonHeaders = []string{
	"Cache-Control", "Connection", "Content-Disposition", "Content-Length", "Content-Type", "Date",
	"Strict-Transport-Security", "Vary", "X-Content-Type-Options",
}

// bodySchemas has the compiled schemas of JSON bodies, by their place in the document.
// openapi3filter could validate bodies, too, but compiles the schema for each one, which took a
// fifth of the CPU time of all tests here.
var bodySchemas = struct {
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}{compiled: map[string]*jsonschema.Schema{}}

// bodySchema compiles the schema at a place, once.
func bodySchema(place string) (*jsonschema.Schema, error) {
	bodySchemas.mu.Lock()
	defer bodySchemas.mu.Unlock()
	if schema, ok := bodySchemas.compiled[place]; ok {
		return schema, nil
	}
	const name = "https://weir.example/openapi.json"
	if bodySchemas.compiler == nil {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(documentText()))
		if err != nil {
			return nil, err
		}
		compiler := jsonschema.NewCompiler()
		compiler.DefaultDraft(jsonschema.Draft2020)
		compiler.AssertFormat()
		if err := compiler.AddResource(name, doc); err != nil {
			return nil, err
		}
		bodySchemas.compiler = compiler
	}
	schema, err := bodySchemas.compiler.Compile(name + place)
	if err == nil {
		bodySchemas.compiled[place] = schema
	}
	return schema, err
}

// checkBody fails the test if a JSON body does not match the document.
func (a answer) checkBody(path, method string, op *openapi3.Operation) {
	a.t.Helper()
	response, media := op.Responses.Status(a.status), a.header.Get("Content-Type")
	require.NotNil(a.t, response, "%s answers %d", op.OperationID, a.status)
	require.Contains(a.t, response.Value.Content, media, "%s %d", op.OperationID, a.status)
	place := response.Ref
	if place == "" {
		place = fmt.Sprintf("#/paths/%s/%s/responses/%d", url.PathEscape(escapePointer(path)), strings.ToLower(method), a.status)
	}
	schema, err := bodySchema(place + "/content/" + escapePointer(media) + "/schema")
	require.NoError(a.t, err)
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
	require.NoError(a.t, err, "%s", a.body)
	require.NoError(a.t, schema.Validate(body), "%s %s\n%s", method, path, a.body)
}

// checkHeaders fails the test if an answer has a header that is not in the document.
func (a answer) checkHeaders(op *openapi3.Operation) {
	a.t.Helper()
	response := op.Responses.Status(a.status)
	require.NotNil(a.t, response, "%s answers %d", op.OperationID, a.status)
	for name := range a.header {
		known := slices.Contains(commonHeaders, name)
		for documented := range response.Value.Headers {
			known = known || http.CanonicalHeaderKey(documented) == name
		}
		require.True(a.t, known, "%s %d has the header %s, of which the document does not tell", op.OperationID, a.status, name)
	}
}

// checkDecisionHeader fails the test if an answer of a hot endpoint has a missing or wrong
// Weir-Decision.
func (a answer) checkDecisionHeader() {
	a.t.Helper()
	if len(a.body) == 0 { // to a gateway, or to HEAD
		require.Len(a.t, a.header[decisionHeader], 1)
		require.Contains(a.t, []string{decisionAllow, decisionDeny, decisionNone}, a.header.Get(decisionHeader))
		return
	}
	want := decisionNone
	if a.header.Get("Content-Type") == jsonType {
		var d struct {
			Allowed *bool
			Results []struct{ Allowed bool }
		}
		require.NoError(a.t, json.Unmarshal(a.body, &d))
		denied := d.Allowed != nil && !*d.Allowed
		for _, r := range d.Results {
			denied = denied || !r.Allowed
		}
		want = decisionAllow
		if denied {
			want = decisionDeny
		}
	}
	require.Equal(a.t, []string{want}, a.header[decisionHeader], "%d %s", a.status, a.body)
}
