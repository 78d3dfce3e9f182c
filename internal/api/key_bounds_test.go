package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A key with networks works from them only, and one with resources checks them only, on every
// transport. A gateway's customer, who chooses the resource, cannot turn a denial into an error.
func TestKeyBounds(t *testing.T) { overBoth(t, testKeyBounds) }

func testKeyBounds(t *testing.T, s *checkStack) {
	create := func(b tenants.KeyBounds) string {
		_, key, err := s.db.Store.CreateKey(t.Context(), s.actor, tenants.NewAPIKey{Name: "bound", Scopes: []tenants.Scope{tenants.ScopeCheck}, Bounds: b})
		require.NoError(t, err)
		return key.Secret()
	}
	here := create(tenants.KeyBounds{Addresses: []string{"127.0.0.0/8"}, Resources: []string{"orders:*"}})
	elsewhere := create(tenants.KeyBounds{Addresses: []string{"192.0.2.0/24"}})
	own := s.key
	s.key = here
	for range 2 { // the second time on the lane
		s.check(`{"subject":"bound","resource":"orders:create"}`).decision(200)
		s.check(`{"subject":"bound"}`).problem(http.StatusForbidden, codeResourceNotAllowed)
		s.post("/v1/check/batch", `{"checks":[{"subject":"bound","resource":"orders:create"},{"subject":"bound","resource":"one"}]}`).
			problem(http.StatusForbidden, codeResourceNotAllowed)
	}
	a := s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Resource: one")
	require.Equal(t, http.StatusTooManyRequests, a.status, "a denial, so that a route that fails open does not allow it")
	require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
	require.Contains(t, string(a.body), `"RESOURCE_NOT_ALLOWED"`)
	require.Equal(t, http.StatusNoContent, s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Resource: orders:create").status)

	s.key = elsewhere
	s.check(`{"subject":"bound"}`).problem(http.StatusForbidden, codeAddressNotAllowed)
	require.Equal(t, http.StatusForbidden, s.authorize("GET", "Weir-Subject: SUBJECT", "X-Forwarded-For: 192.0.2.1").status)
	s.contract.call(elsewhere, "GET", "/v1/rules", nil).problem(http.StatusForbidden, codeAddressNotAllowed)
	s.key = own
	require.Equal(t, int64(1), s.remaining("bound", "orders:create"), "two of three were counted, and nothing that was refused")
}
