package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTenantLife(t *testing.T) {
	s := newAdminStack(t)
	made := s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"slug": "acme", "name": "Acme Inc."}).ok(201)
	require.Equal(t, "/v1/tenants/acme", made.header.Get("Location"))
	key := made.json()["key"].(obj)
	require.ElementsMatch(t, []any{"check", "read", "write", "manage"}, key["scopes"])
	first := key["secret"].(string)

	own := s.call(first, http.MethodGet, "/v1/tenant", nil).ok(200).json()
	require.Equal(t, "acme", own["slug"])
	require.Equal(t, "Acme Inc.", own["name"])
	require.Equal(t, "active", own["state"])
	require.Equal(t, own, s.call(s.operator, http.MethodGet, "/v1/tenants/acme", nil).ok(200).json())
	require.Equal(t, own, s.call(s.operator, http.MethodGet, "/v1/tenants/"+own["id"].(string), nil).ok(200).json(), "by id, too")
	s.call(first, http.MethodPut, "/v1/rules/r", obj{"limit": 1, "window": "1s"}).ok(201)

	require.Equal(t, "Renamed", s.call(first, http.MethodPatch, "/v1/tenant", obj{"name": "Renamed"}).ok(200).json()["name"])
	require.Equal(t, "acme", s.call(first, http.MethodPatch, "/v1/tenant", obj{"name": nil}).ok(200).json()["name"])
	require.Equal(t, []string{"/slug"}, s.call(first, http.MethodPatch, "/v1/tenant", obj{"slug": "x"}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/slug"}, s.call(s.operator, http.MethodPatch, "/v1/tenants/acme", obj{"slug": "x"}).pointers(422, codeInvalidRequest))

	s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"slug": "acme"}).problem(409, codeSlugTaken)
	require.Equal(t, []string{"/slug"}, s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"slug": "A"}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/slug"}, s.call(s.operator, http.MethodPost, "/v1/tenants", obj{"name": "x"}).pointers(422, codeInvalidRequest))

	suspended := s.call(s.operator, http.MethodPatch, "/v1/tenants/acme", obj{"state": "suspended", "name": "Acme"}).ok(200).json()
	require.Equal(t, "suspended", suspended["state"])
	require.Equal(t, "active", s.call(s.operator, http.MethodPatch, "/v1/tenants/acme", obj{"state": nil}).ok(200).json()["state"])
	s.call(s.operator, http.MethodPatch, "/v1/tenants/platform", obj{"state": "suspended"}).problem(409, codePlatformTenant)
	s.call(s.operator, http.MethodDelete, "/v1/tenants/platform", nil).problem(409, codePlatformTenant)

	var slugs []any
	for _, item := range s.call(s.operator, http.MethodGet, "/v1/tenants", nil).ok(200).json()["items"].([]any) {
		slugs = append(slugs, item.(obj)["slug"])
	}
	require.Equal(t, []any{"acme", "platform", "tenant-b", "tenant-a"}, slugs, "newest first")
	s.call(s.operator, http.MethodDelete, "/v1/tenants/acme", nil).ok(204)
	s.call(s.operator, http.MethodGet, "/v1/tenants/acme", nil).problem(404, codeNotFound)
}

// The tenant is determined only by the key.
func TestTenantComesFromTheKey(t *testing.T) {
	s := newAdminStack(t)
	for _, name := range []string{"X-Tenant", "X-Tenant-Id", "Weir-Tenant", "X-Forwarded-User"} {
		got := s.call(s.key, http.MethodGet, "/v1/tenant", nil, header{name, s.b.TenantID().String()}).ok(200).json()
		require.Equal(t, s.a.TenantID().String(), got["id"])
	}
	s.call(s.key, http.MethodGet, "/v1/tenant?tenant="+s.b.TenantID().String(), nil).problem(400, codeUnknownParameter)
}
