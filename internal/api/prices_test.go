package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A price stands for a plan or for credits, through the API and the configuration document.
func TestPricesOfCredits(t *testing.T) {
	s := newAdminStack(t)
	endpoint, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, SubjectFrom: tenants.FromCustomer,
	}, tenants.BillingSecrets{Signing: []string{"whsec_1234567890"}})
	require.NoError(t, err)
	s.call(s.wKey, http.MethodPut, "/v1/rules/prepaid", obj{"limit": 10, "window": "1m", "algorithm": "fixed_window"}).ok(201)
	s.call(s.wKey, http.MethodPut, "/v1/rules/bucket", obj{"limit": 10, "window": "1m", "algorithm": "token_bucket"}).ok(201)
	s.call(s.wKey, http.MethodPut, "/v1/plans/pro", obj{}).ok(201)
	const path = "/v1/billing/prices/price_pack"
	put := func(body obj) answer { return s.call(s.key, http.MethodPut, path, body) }

	credits := obj{"rule": "prepaid", "units": 5000, "expires_after_days": 30}
	got := put(obj{"credits": credits}).ok(201).json()
	require.Nil(t, got["plan"])
	require.Equal(t, obj{"rule": "prepaid", "units": 5000.0, "expires_after_days": 30.0}, got["credits"])
	got = put(obj{"credits": obj{"rule": "prepaid", "units": 7}}).ok(200).json()
	require.Equal(t, obj{"rule": "prepaid", "units": 7.0, "expires_after_days": nil}, got["credits"])
	version := got["version"]
	require.Equal(t, version, put(obj{"credits": obj{"rule": "prepaid", "units": 7}}).ok(200).json()["version"], "nothing changes")
	got = put(obj{"plan": "pro"}).ok(200).json()
	require.Nil(t, got["credits"])
	put(obj{"credits": credits}).ok(200)
	require.Equal(t, "price_pack", s.call(s.readKey, http.MethodGet, "/v1/billing/prices", nil).ok(200).json()["items"].([]any)[0].(obj)["id"])

	for pointer, body := range map[string]obj{
		"/plan":                       {},
		"/credits":                    {"plan": "pro", "credits": credits},
		"/multiply":                   {"credits": credits, "multiply": true},
		"/priority":                   {"credits": credits, "priority": 1},
		"/credits/rule":               {"credits": obj{"rule": "no-such-rule", "units": 1}},
		"/credits/units":              {"credits": obj{"rule": "prepaid", "units": 0}},
		"/credits/expires_after_days": {"credits": obj{"rule": "prepaid", "units": 1, "expires_after_days": 4000}},
	} {
		require.Equal(t, []string{pointer}, put(body).pointers(422, codeInvalidRequest), "%v", body)
	}
	require.Equal(t, []string{"/credits/rule"}, put(obj{"credits": obj{"rule": "bucket", "units": 1}}).pointers(422, codeInvalidRequest), "credits need a window")
	s.call(s.wKey, http.MethodDelete, "/v1/rules/prepaid", nil).problem(409, "CONFLICT")

	// The document writes the mapping, and changes nothing when it is applied again.
	document := s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200).json()
	require.Equal(t, []any{obj{"id": "price_pack", "endpoint": endpoint.ID.String(), "credits": obj{"rule": "prepaid", "units": 5000.0, "expires_after_days": 30.0}}},
		document["billing_prices"])
	require.Empty(t, s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", document).ok(200).json()["changes"])
	price := func(credits obj) obj {
		return obj{"rules": []any{obj{"slug": "tokens", "limit": 10, "window": "1m", "algorithm": "fixed_window"}},
			"billing_prices": []any{obj{"id": "price_pack", "endpoint": endpoint.ID.String(), "credits": credits}}}
	}
	require.Equal(t, []string{"/billing_prices/0/credits/rule"},
		s.call(s.key, http.MethodPut, "/v1/config", price(obj{"rule": "no-such-rule", "units": 1})).pointers(422, codeInvalidRequest))
	s.call(s.key, http.MethodPut, "/v1/config", price(obj{"rule": "tokens", "units": 8})).ok(200)
	got = s.call(s.readKey, http.MethodGet, path, nil).ok(200).json()
	require.Equal(t, obj{"rule": "tokens", "units": 8.0, "expires_after_days": nil}, got["credits"], "a rule of the same document")
	require.Equal(t, []string{"/rules"}, s.call(s.key, http.MethodPut, "/v1/config?prune=true", obj{"rules": []any{}}).pointers(422, codeInvalidRequest),
		"a rule for which a price grants credits stays")
	trail := s.call(s.readKey, http.MethodGet, "/v1/audit?kind=price&target=price_pack&limit=1", nil).ok(200).json()["items"].([]any)[0].(obj)
	require.Contains(t, trail["after"], "credits")
}
