package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A body cannot set fields that only the service sets (reliability row 48).
func TestMassAssignment(t *testing.T) {
	s := newAdminStack(t)
	for id, op := range s.operations() {
		c := adminCases[id]
		body, isObject := c.body.(obj)
		if op.op.RequestBody == nil || !isObject {
			continue
		}
		t.Run(id, func(t *testing.T) {
			s := s.in(t)
			key := s.key
			if strings.HasPrefix(op.path, "/v1/tenants") {
				key = s.operator
			}
			fill := s.prepare(id)
			taken := op.op.RequestBody.Value.Content.Get(jsonType).Schema.Value.Properties
			for _, field := range []string{"id", "tenant_id", "created_at", "hash", "role", "tier", "version", "last_used_at", "created_by", "Name"} {
				if taken[field] != nil {
					continue // the role of a member, the version of a configuration
				}
				more := maps.Clone(body)
				more[field] = nil
				require.Equal(t, []string{"/" + field}, s.call(key, op.method, fill.Replace(c.path), more).pointers(422, codeInvalidRequest), field)
			}
		})
	}
}

// Texts are stored unchanged, whatever they mean to Postgres, a shell or a browser (reliability row
// 52).
func TestTextsAreStoredAsTheyAre(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1m"}).ok(201)
	for _, text := range []string{
		`'; DROP TABLE rules; --`, `$$; SELECT 1; $$`, `$1 $2 \' \\ ''`, `%s %d {} {{.}}`, `<script>alert(1)</script>`, "`id` $(id)", "é\u2028\U0001F600",
	} {
		for path, fields := range map[string][]string{
			"/v1/rules/r":     {"name", "description"},
			"/v1/tenant":      {"name"},
			"/v1/plans/p":     {"name", "description"},
			"/v1/subjects/s1": {"billing_ref"},
		} {
			if strings.HasPrefix(path, "/v1/plans") || strings.HasPrefix(path, "/v1/subjects") {
				s.call(s.key, http.MethodPut, path, obj{})
			}
			for _, field := range fields {
				require.Equal(t, text, s.call(s.key, http.MethodPatch, path, obj{field: text}).ok(200).json()[field])
				require.Equal(t, text, s.call(s.key, http.MethodGet, path, nil).ok(200).json()[field])
			}
		}
		s.call(s.key, http.MethodPut, "/v1/subjects/s1/overrides/r", obj{"limit": 1, "reason": text})
		overrides := items(s.call(s.key, http.MethodGet, "/v1/overrides", nil).ok(200))
		require.Equal(t, text, overrides[0]["reason"])
	}
	for _, body := range []string{`{"name":"a\u0000"}`, `{"description":"\u0000"}`} { // Postgres cannot hold it
		require.Len(t, s.call(s.key, http.MethodPatch, "/v1/rules/r", body).pointers(422, codeInvalidRequest), 1)
	}
	require.True(t, json.Valid(s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200).body))
}

// A cursor of a megabyte is not read (reliability row 49).
func TestHugeCursor(t *testing.T) {
	s := newAdminStack(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/rules?cursor="+strings.Repeat("A", 1<<20), nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil { // or else the connection is closed while the client still writes
		require.Contains(t, []int{http.StatusRequestHeaderFieldsTooLarge, http.StatusBadRequest}, response.StatusCode)
		require.NoError(t, response.Body.Close())
	}
}
