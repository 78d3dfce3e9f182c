package api

import (
	"net/http"
	"strings"
	"testing"

	"weir/internal/limit"

	"github.com/stretchr/testify/require"
)

// A body that is JSON but not an object is 422 for every operation, like every other value of a
// wrong type. A body that is not JSON is 400.
func TestNonObjectBodies(t *testing.T) {
	s := newAdminStack(t)
	for id, op := range s.operations() {
		c := adminCases[id]
		if c.body == nil || c.as != "" {
			continue
		}
		key := s.key
		if op.op.Tags[0] == "tenants" {
			key = s.operator
		}
		for _, body := range []string{"null", "[]", `"x"`, "5", "true", " null "} {
			require.Equal(t, []string{""}, s.call(key, op.method, op.path, body).pointers(422, codeInvalidRequest), "%s %s", id, body)
		}
		malformed := []string{" ", "nul", "[", "{}{}", "{"}
		if op.op.RequestBody.Value.Required {
			malformed = append(malformed, "")
		}
		for _, body := range malformed {
			s.call(key, op.method, op.path, body).problem(400, codeMalformedJSON)
		}
	}
	for _, path := range []string{"/v1/check", "/check", "/v1/check/batch"} {
		for _, body := range []string{"null", "[]", `"x"`, "5", "true", " null "} {
			require.Equal(t, []string{""}, s.call(s.key, http.MethodPost, path, body).pointers(422, codeInvalidRequest), "%s %s", path, body)
		}
		for _, body := range []string{"", " ", "nul", "[", "null null", "[}"} {
			s.call(s.key, http.MethodPost, path, body).problem(400, codeMalformedJSON)
		}
	}
}

// A default plan cannot be made an ordinary plan without another default. The request is refused
// and not ignored.
func TestDefaultPlanPutFalse(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/plans/free", obj{"default": false}).ok(201) // a tenant's first plan is the default in any case
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"default": false}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/free", obj{"default": false}).problem(409, codeDefaultPlan)
	s.call(s.key, http.MethodPatch, "/v1/plans/free", obj{"default": false}).problem(409, codeDefaultPlan)
	document := func(free, pro any) answer {
		return s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", obj{"plans": []obj{{"slug": "free", "default": free}, {"slug": "pro", "default": pro}}})
	}
	require.Equal(t, []string{"/plans/0/default"}, document(false, nil).pointers(422, codeInvalidRequest))
	require.Len(t, document(false, true).ok(200).json()["changes"], 2)
	require.Empty(t, document(nil, false).ok(200).json()["changes"])
	s.call(s.key, http.MethodPut, "/v1/plans/free", obj{"name": "Free"}).ok(200)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"default": true}).ok(200)
	require.Equal(t, false, s.call(s.key, http.MethodPut, "/v1/plans/free", obj{"default": false}).ok(200).json()["default"])
}

// Only true and false are valid booleans. True, 1 or t in a script is a mistake that a dry run
// would hide.
func TestBooleanParameters(t *testing.T) {
	s := newAdminStack(t)
	document := obj{"plans": []obj{{"slug": "p"}}}
	for _, value := range []string{"True", "TRUE", "1", "t", "yes", "on", "%20true"} {
		require.Equal(t, []string{"query:dry_run"}, s.call(s.key, http.MethodPut, "/v1/config?dry_run="+value, document).pointers(422, codeInvalidRequest), value)
		require.Equal(t, []string{"query:subjects"}, s.call(s.key, http.MethodGet, "/v1/config?subjects="+value, nil).pointers(422, codeInvalidRequest), value)
	}
	require.Len(t, s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", document).ok(200).json()["changes"], 1)
	require.Len(t, s.call(s.key, http.MethodPut, "/v1/config?dry_run=false", document).ok(200).json()["changes"], 1)
	require.Empty(t, s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", document).ok(200).json()["changes"])
}

// A pointer names the invalid value: a JSON pointer into the body, or query:, path: or header: and
// a name.
func TestPointers(t *testing.T) {
	s := newAdminStack(t)
	rule := obj{"limit": 1, "window": "1m"}
	s.call(s.key, http.MethodPut, "/v1/rules/r", rule).ok(201)
	for _, c := range []struct {
		method, path string
		body         any
		headers      []header
		status       int
		code         string
		pointers     []string
	}{
		{"GET", "/v1/audit?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", nil, nil, 422, codeInvalidRequest, []string{"query:to"}},
		{"GET", "/v1/audit?from=2026-01-02T00:00:00Z&to=2026-01-02T00:00:00Z", nil, nil, 422, codeInvalidRequest, []string{"query:to"}},
		{"GET", "/v1/rules?cursor=x", nil, nil, 400, codeInvalidCursor, []string{"query:cursor"}},
		{"PUT", "/v1/rules/R", rule, nil, 422, codeInvalidRequest, []string{"path:rule"}},
		{"PUT", "/v1/rules/R", obj{"limit": 1, "window": "x"}, nil, 422, codeInvalidRequest, []string{"/window", "path:rule"}},
		{"PUT", "/v1/rules/r", obj{"slug": "q", "limit": 1, "window": "1m"}, nil, 422, codeInvalidRequest, []string{"/slug"}},
		{"PUT", "/v1/plans/P", obj{}, nil, 422, codeInvalidRequest, []string{"path:plan"}},
		{"PUT", "/v1/plans/p", obj{"slug": "q"}, nil, 422, codeInvalidRequest, []string{"/slug"}},
		{"PUT", "/v1/subjects/%00", obj{}, nil, 422, codeInvalidRequest, []string{"path:subject"}},
		{"PUT", "/v1/rules/r", rule, []header{{"If-Match", "1"}}, 400, codeInvalidHeader, []string{"header:If-Match"}},
		{"PUT", "/v1/rules/r", rule, []header{{"If-None-Match", "*"}}, 400, codeInvalidHeader, []string{"header:If-None-Match"}},
		{"GET", "/v1/rules/r", nil, []header{{"If-None-Match", "1"}}, 400, codeInvalidHeader, []string{"header:If-None-Match"}},
		{"POST", "/v1/rules", rule, []header{{"If-Match", "*"}}, 400, codeInvalidHeader, []string{"header:If-Match"}},
		{"POST", "/v1/rules", rule, []header{{"Idempotency-Key", "a"}, {"Idempotency-Key", "b"}}, 400, codeInvalidHeader, []string{"header:Idempotency-Key"}},
		{"POST", "/v1/check", obj{"subject": "a"}, []header{{"Weir-Denied-Status", "418"}}, 400, codeInvalidHeader, []string{"header:Weir-Denied-Status"}},
		{"GET", "/v1/rules", nil, []header{{"Authorization", "Bearer x"}}, 400, codeInvalidHeader, []string{"header:Authorization"}},
	} {
		got := s.call(s.key, c.method, c.path, c.body, c.headers...)
		require.Equal(t, c.pointers, got.pointers(c.status, c.code), "%s %s", c.method, c.path)
	}
}

// If a patch cannot be merged into the current limit, the fix says what to send instead.
func TestFixesOfLimits(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/p", obj{"limits": obj{"r": obj{"limit": 5}}}).ok(201)
	patch := func(limit obj) answer {
		return s.call(s.key, http.MethodPatch, "/v1/plans/p", obj{"limits": obj{"r": limit}})
	}
	for pointer, limit := range map[string]obj{
		"/limits/r/unlimited": {"unlimited": true}, "/limits/r/limit": {"limit": nil}, "/limits/r/limit ": {"limit": 0},
	} {
		p := patch(limit).problem(422, codeInvalidRequest)
		require.Len(t, p.Errors, 1)
		require.Equal(t, strings.TrimSpace(pointer), p.Errors[0].Pointer)
		require.NotEmpty(t, p.Errors[0].Fix)
	}
	patch(obj{"unlimited": true, "limit": nil, "burst": nil}).ok(200) // as the fix says
	patch(obj{"unlimited": nil, "limit": 6}).ok(200)
	p := s.call(s.key, http.MethodPut, "/v1/subjects/s/overrides/r", obj{"limit": 1, "unlimited": true}).problem(422, codeInvalidRequest)
	require.NotEmpty(t, p.Errors[0].Fix)
}

// If a client sends back what it read, the error says which fields are read-only, and not that they
// are unknown.
func TestReadOnlyFields(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/p", obj{}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/subjects/s", obj{}).ok(201)
	member := s.call(s.key, http.MethodPost, "/v1/members", obj{"email": "a@example.com", "role": "viewer"}).ok(201)
	key := s.call(s.key, http.MethodPost, "/v1/keys", obj{"name": "k", "scopes": []string{"read"}}).ok(201)
	objects := 0
	for _, c := range []struct {
		key, method, path string
	}{
		{s.key, http.MethodPut, "/v1/rules/r"}, {s.key, http.MethodPatch, "/v1/rules/r"}, {s.key, http.MethodPut, "/v1/plans/p"},
		{s.key, http.MethodPut, "/v1/subjects/s"}, {s.key, http.MethodPatch, "/v1/subjects/s"}, {s.key, http.MethodPatch, "/v1/tenant"},
		{s.key, http.MethodPatch, member.header.Get("Location")}, {s.key, http.MethodPatch, key.header.Get("Location")},
		{s.operator, http.MethodPatch, "/v1/tenants/tenant-a"},
	} {
		read := s.call(c.key, http.MethodGet, c.path, nil).ok(200).json()
		p := s.call(c.key, c.method, c.path, read).problem(422, codeInvalidRequest)
		for _, field := range p.Errors {
			require.Equal(t, "is read-only", field.Message, "%s %s: %s", c.method, c.path, field.Pointer)
			require.NotEmpty(t, field.Fix)
			delete(read, field.Pointer[1:])
			objects++
		}
		s.call(c.key, c.method, c.path, read).ok(200)
	}
	require.Greater(t, objects, 9*3)
	p := s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "q", "limit": 1, "window": "1m", "version": 1, "tenant_id": "x"}).problem(422, codeInvalidRequest)
	require.Equal(t, []ProblemField{wrongField("/tenant_id", &limit.Problem{Message: unknownField.Message, Fix: p.Errors[0].Fix}), wrongField("/version", isSetByUs)}, p.Errors)
	require.Equal(t, []string{"/rules/0/version"}, s.call(s.key, http.MethodPut, "/v1/config", obj{"rules": []obj{{"slug": "q", "limit": 1, "window": "1m", "version": 1}}}).pointers(422, codeInvalidRequest))
}
