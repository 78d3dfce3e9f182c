package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// foreignBodies are bodies of tenant A with an object of tenant B, by operation. Tenant B has
// {b-rule} and {b-plan}, and A does not.
var foreignBodies = map[string]string{
	"create-plan":           `{"slug":"borrows","limits":{"{b-rule}":{"limit":1}}}`,
	"put-plan":              `{"limits":{"{b-rule}":{"limit":1}}}`,
	"patch-plan":            `{"limits":{"{b-rule}":{"limit":1}}}`,
	"publish-plan":          `{"limits":{"{b-rule}":{"limit":1}}}`,
	"preview-plan":          `{"limits":{"{b-rule}":{"limit":1}}}`,
	"create-plan-migration": `{"to":"{b-plan}"}`,
	"put-subject":           `{"plan":"{b-plan}"}`,
	"patch-subject":         `{"plan":"{b-plan}"}`,
	"put-billing-price":     `{"plan":"{b-plan}"}`,
	"grant-credits":         `{"rule":"{b-rule}","units":1}`,
	"reset-subject":         `{"rule":"{b-rule}","reason":"r"}`,
	"put-config": `{"plans":[{"slug":"borrows","limits":{"{b-rule}":{"limit":1}}}],
		"subjects":[{"subject":"s","plan":"{b-plan}","overrides":{"{b-rule}":{"limit":1}}}]}`,
	"import-subjects": `{"subject":"s","plan":"{b-plan}","overrides":{"{b-rule}":{"limit":1}}}`,
}

// foreignFilters are query parameters that match objects of tenant B, and none of A.
var foreignFilters = map[string]string{
	"rule": "{b-rule}", "plan": "{b-plan}", "subject": "{b-subject}", "target": "{b-subject}", "prefix": "b-s-", "q": "b-r-",
	"actor": "{b-key}", "endpoint": "{b-endpoint}", "customer": "b-cus_1",
}

// Every name in a request refers to the tenant's own objects. Another tenant's object does not
// exist, in a body, a filter, a cursor and a condition. TestEveryAdminOperation tests paths.
func TestAnotherTenantsObjects(t *testing.T) {
	s := newAdminStack(t)
	for id, op := range s.operations() {
		if strings.HasPrefix(op.path, "/v1/tenants") {
			continue // the operator's, who is above tenants
		}
		t.Run(id, func(t *testing.T) {
			s, c := s.in(t), adminCases[id]
			fill := s.prepare(id)
			none := strings.NewReplacer("{b-rule}", "none", "{b-plan}", "none", "{b-subject}", "none", "{b-key}", "none", "{b-endpoint}", "00000000-0000-4000-8000-000000000000", "b-cus_1", "none", "b-s-", "none-", "b-r-", "none-")
			path, _, _ := strings.Cut(fill.Replace(c.path), "?")

			for _, p := range op.op.Parameters {
				switch name := p.Value.Name; {
				case name == "cursor":
					s.foreignCursor(id, path)
				case p.Value.In == "query" && foreignFilters[name] != "":
					query := func(names *strings.Replacer) answer {
						first := path + "?"
						if id == "stream-decisions" { // it would last an hour
							first += "for=1s&"
						}
						return s.call(s.key, op.method, first+name+"="+url.QueryEscape(names.Replace(foreignFilters[name])), nil)
					}
					theirs, nobodys := query(fill), query(none)
					require.Equal(t, nobodys.status, theirs.status, "%s: %s", name, theirs.body)
					require.Equal(t, alike(strings.ReplaceAll(string(nobodys.body), nobodys.header.Get("X-Request-Id"), "")),
						alike(strings.ReplaceAll(string(theirs.body), theirs.header.Get("X-Request-Id"), "")), name)
				case name == "If-Match":
					tag := s.call(s.other, http.MethodGet, fill.Replace("/v1/rules/{b-rule}"), nil).ok(200).header.Get("ETag")
					s.call(s.key, op.method, path, c.body, header{"If-Match", tag}).problem(http.StatusPreconditionFailed, codePreconditionFailed)
				}
			}

			body, listed := foreignBodies[id]
			require.Equal(t, namesObjects(op.op) && !c.pure, listed, "a body that can name a rule or a plan has its case, and no other")
			if !listed {
				return
			}
			send := func(names *strings.Replacer) []ProblemField {
				contentType := jsonType
				if id == "import-subjects" {
					contentType = jsonLinesType
				}
				return s.call(s.key, op.method, path, names.Replace(body), header{"Content-Type", contentType}).
					problem(http.StatusUnprocessableEntity, codeInvalidRequest).Errors
			}
			theirs, err := json.Marshal(send(fill))
			require.NoError(t, err)
			nobodys, err := json.Marshal(send(none))
			require.NoError(t, err)
			back := strings.NewReplacer(fill.Replace("{b-rule}"), "none", fill.Replace("{b-plan}"), "none")
			require.Equal(t, string(nobodys), back.Replace(string(theirs)), "the answer does not tell that another tenant has it")
		})
	}
}

// foreignCursor uses a cursor of tenant B's list for the same list of A.
func (s *adminStack) foreignCursor(id, path string) {
	s.t.Helper()
	s.prepare(id + "-2") // a second item, so that there is a next page
	first := path + "?limit=1"
	if id == "get-metered-usage" {
		first += "&open=true" // the present hour, too
	}
	cursor, _ := s.call(s.other, http.MethodGet, first, nil).ok(200).json()["next_cursor"].(string)
	require.NotEmpty(s.t, cursor)
	s.call(s.other, http.MethodGet, first+"&cursor="+cursor, nil).ok(200)
	s.call(s.key, http.MethodGet, first+"&cursor="+cursor, nil).problem(http.StatusBadRequest, codeInvalidCursor)
}

// namesObjects reports whether the body of an operation can contain a rule or a plan.
func namesObjects(op *openapi3.Operation) bool {
	if op.RequestBody == nil {
		return false
	}
	content := op.RequestBody.Value.Content
	if content.Get("text/csv") != nil {
		return true // a file of subjects, which have plans
	}
	var names func(s *openapi3.Schema, depth int) bool
	names = func(s *openapi3.Schema, depth int) bool {
		for name, p := range s.Properties {
			if name == "plan" || name == "rule" || name == "limits" || name == "to" || name == "overrides" {
				return true
			}
			if depth < 4 && (names(p.Value, depth+1) || p.Value.Items != nil && names(p.Value.Items.Value, depth+1)) {
				return true
			}
		}
		return false
	}
	return names(content.Get(jsonType).Schema.Value, 0)
}
