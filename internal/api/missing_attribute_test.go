package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rule with on_missing_attribute deny denies a check that lacks the attribute, and says which it
// is.
func TestMissingAttribute(t *testing.T) {
	s := newAdminStack(t)
	rule := s.call(s.key, http.MethodPost, "/v1/rules", obj{
		"slug": "logins", "resource": "login", "limit": 5, "window": "1m", "by": []string{"attributes.ip"}, "on_missing_attribute": "deny",
	}).ok(201).json()
	require.Equal(t, "deny", rule["on_missing_attribute"])
	s.call(s.key, http.MethodPatch, "/v1/rules/logins", obj{"by": []string{"subject"}}).problem(422, codeInvalidRequest)
	require.Nil(t, s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "all", "limit": 9, "window": "1m"}).ok(201).json()["on_missing_attribute"])
	ip := obj{"slug": "ip", "resource": "other", "limit": 9, "window": "1m", "by": []string{"attributes.ip"}}
	require.Equal(t, "skip", s.call(s.key, http.MethodPost, "/v1/rules", ip).ok(201).json()["on_missing_attribute"])

	answer := s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": "ada", "resource": "login"})
	require.Equal(t, http.StatusTooManyRequests, answer.status)
	require.Equal(t, "deny", answer.header.Get("Weir-Decision"))
	require.Empty(t, answer.header.Get("Retry-After"), "no wait helps")
	d := answer.json()
	require.Equal(t, map[string]any{
		"code": "ATTRIBUTE_MISSING", "message": "The check lacks the attribute ip, and logins denies such checks.", "retry_after": nil,
	}, d["error"])
	require.Equal(t, "logins", d["rule"])
	require.Nil(t, d["skipped"])
	denying := d["rules"].([]any)[1].(map[string]any)
	require.Equal(t, "ip", denying["missing_attribute"])
	require.Nil(t, denying["remaining"])
	require.InDelta(t, 9, d["rules"].([]any)[0].(map[string]any)["remaining"], 0, "nothing is charged")
	s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": "ada", "resource": "login", "attributes": obj{"ip": "203.0.113.7"}}).ok(200)
}
