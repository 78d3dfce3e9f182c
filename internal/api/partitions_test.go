package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// The operator sets the partitions of a tenant; everybody else only reads them.
func TestPartitions(t *testing.T) {
	s := newAdminStack(t)
	require.EqualValues(t, 1, s.call(s.key, http.MethodGet, "/v1/tenant", nil).ok(200).json()["partitions"])
	s.call(s.key, http.MethodPatch, "/v1/tenant", obj{"partitions": 2}).problem(422, codeInvalidRequest)
	for _, wrong := range []any{0, 65, -1, "many", 1.5} {
		s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"slug": "large", "partitions": wrong}).problem(422, codeInvalidRequest)
	}
	require.EqualValues(t, 8, s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"slug": "large", "partitions": 8}).ok(201).json()["partitions"])
	s.call(s.operator, http.MethodPatch, "/v1/tenants/large", obj{"partitions": 65}).problem(422, codeInvalidRequest)
	require.EqualValues(t, 16, s.call(s.operator, http.MethodPatch, "/v1/tenants/large", obj{"partitions": 16}).ok(200).json()["partitions"])
	again := s.call(s.operator, http.MethodPatch, "/v1/tenants/large", obj{"partitions": nil}).problem(409, codeConflict)
	require.Contains(t, again.Detail, "ends at")
	require.EqualValues(t, 16, s.call(s.operator, http.MethodGet, "/v1/tenants/large", nil).ok(200).json()["partitions"])
}
