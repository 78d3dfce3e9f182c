package api

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The address of a notification endpoint may contain a secret. Only a key with the scope manage,
// which can change it, gets all of it. The configuration document has no endpoints.
func TestAddressesOfEndpointsAreMasked(t *testing.T) {
	s := newAdminStack(t)
	const address = "https://hooks.example.com/in/secret-path?token=secret-token"
	e, _, err := s.store.CreateNotificationEndpoint(t.Context(), s.a, tenants.NotificationEndpoint{URL: address, Enabled: true})
	require.NoError(t, err)
	sent, err := s.store.TestNotificationEndpoint(t.Context(), s.a, e.ID)
	require.NoError(t, err)
	without := slices.DeleteFunc(slices.Clone(tenants.AllScopes), func(scope tenants.Scope) bool { return scope == tenants.ScopeManage })
	rest := s.newKey(tenants.NewAPIKey{Name: "rest", Scopes: without})
	reader := s.newKey(tenants.NewAPIKey{Name: "reader", Scopes: []tenants.Scope{tenants.ScopeRead}})
	manager := s.newKey(tenants.NewAPIKey{Name: "manager", Scopes: []tenants.Scope{tenants.ScopeRead, tenants.ScopeManage}})
	one := "/v1/notification-endpoints/" + e.ID.String()
	for _, path := range []string{
		one, "/v1/notification-endpoints", "/v1/notification-deliveries", "/v1/notification-deliveries/" + sent.ID.String(),
		"/v1/audit", "/v1/config?subjects=true", "/v1/config?format=yaml",
	} {
		for _, key := range []string{reader, rest} {
			got := s.call(key, http.MethodGet, path, nil)
			require.Equal(t, 200, got.status, "%s: %s", path, got.body)
			require.NotContains(t, string(got.body), "secret-", path)
		}
	}
	require.Contains(t, string(s.call(reader, http.MethodGet, one, nil).body), `"url":"https://hooks.example.com/***"`)
	for _, path := range []string{one, "/v1/notification-endpoints"} {
		require.Contains(t, string(s.call(manager, http.MethodGet, path, nil).body), address)
	}
	require.NotContains(t, string(s.call(manager, http.MethodGet, "/v1/audit", nil).body), "secret-path", "every member reads the trail")

	changed := s.call(manager, http.MethodPatch, one, obj{"url": address + "2"})
	require.Equal(t, 200, changed.status, string(changed.body))
	require.Contains(t, string(changed.body), "secret-token2")
	trail := string(s.call(reader, http.MethodGet, "/v1/audit", nil).body)
	require.NotContains(t, trail, "secret-")
	require.Contains(t, trail, "url_hash", "the trail shows that the address was changed")
}

// An address without a path has nothing to mask.
func TestMaskedURL(t *testing.T) {
	for address, want := range map[string]string{
		"https://example.com": "https://example.com", "https://example.com/": "https://example.com/", "https://example.com:8443/a": "https://example.com:8443/***",
		"https://example.com/?a=b": "https://example.com/***", "https://example.com?a": "https://example.com/***", "https://user:pass@example.com": "https://example.com/***", "http://[::1]:1/x": "http://[::1]:1/***", "%": "***", "": "***",
	} {
		require.Equal(t, want, tenants.MaskedURL(address), address)
	}
}
