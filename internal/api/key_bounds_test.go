package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/origin"
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

// Behind a trusted proxy, a key with networks works by the address of the client, on the lane too:
// a key for the network of the proxy must not work for everybody.
func TestKeyAddressesBehindProxies(t *testing.T) {
	s := newCheckStack(t)
	proxies, err := origin.ParseProxies("127.0.0.0/8")
	require.NoError(t, err)
	s.serve(Config{Headers: bothStyles, Proxies: proxies}, s.deps)
	create := func(network string) string {
		_, key, err := s.db.Store.CreateKey(t.Context(), s.actor, tenants.NewAPIKey{
			Name: "bound", Scopes: []tenants.Scope{tenants.ScopeCheck}, Bounds: tenants.KeyBounds{Addresses: []string{network}},
		})
		require.NoError(t, err)
		return key.Secret()
	}
	client, proxy := create("198.51.100.0/24"), create("127.0.0.0/8")
	forwarded := header{"X-Forwarded-For", "198.51.100.7"}
	for range 2 { // the second time on the lane
		s.key = client
		s.check(`{"subject":"forwarded"}`, forwarded).decision(http.StatusOK)
		s.check(`{"subject":"forwarded"}`).problem(http.StatusForbidden, codeAddressNotAllowed)
		s.key = proxy
		s.check(`{"subject":"forwarded"}`, forwarded).problem(http.StatusForbidden, codeAddressNotAllowed)
		s.check(`{"subject":"forwarded"}`).decision(http.StatusOK)
	}
}
