package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// warned returns the pointers of the warnings in an answer.
func (a answer) warned() (at []string) {
	a.t.Helper()
	warnings, _ := a.json()["warnings"].([]any)
	for _, w := range warnings {
		at = append(at, w.(obj)["pointer"].(string))
	}
	return at
}

// A valid value with an unexpected effect is stored, and its author is warned once.
func TestWarnings(t *testing.T) {
	s := newAdminStack(t)
	s.instances = 3
	s.url = s.serve(s.store)
	write := func(method, path string, status int, body obj) answer {
		t.Helper()
		return s.call(s.key, method, path, body).ok(status)
	}
	few := obj{"slug": "few", "resource": "few", "limit": 2, "window": "1m"}
	require.Equal(t, []string{"/on_unavailable"}, write(http.MethodPost, "/v1/rules", 201, few).warned())
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/rules/few", nil).ok(200).warned(), "once is enough")
	delete(few, "slug")
	require.Equal(t, []string{"/on_unavailable"}, write(http.MethodPut, "/v1/rules/few", 200, few).warned())
	require.Equal(t, []string{"/by"}, write(http.MethodPatch, "/v1/rules/few", 200, obj{"limit": 3, "by": []string{}}).warned())
	require.NotContains(t, write(http.MethodPatch, "/v1/rules/few", 200, obj{"by": nil}).json(), "warnings")

	write(http.MethodPut, "/v1/rules/log", 201, obj{"resource": "log", "limit": 100, "window": "1m", "algorithm": "sliding_window_log"})
	numbers := obj{"few": obj{"limit": 2}, "log": obj{"limit": 5000}}
	both := []string{"/limits/few/limit", "/limits/log/limit"}
	require.Equal(t, both, write(http.MethodPost, "/v1/plans", 201, obj{"slug": "p", "limits": numbers}).warned())
	require.Equal(t, both, write(http.MethodPut, "/v1/plans/p", 200, obj{"limits": numbers}).warned())
	require.Equal(t, both[1:], write(http.MethodPatch, "/v1/plans/p", 200, obj{"limits": obj{"few": obj{"unlimited": true, "limit": nil}}}).warned())
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/plans/p", nil).ok(200).warned())
	require.Equal(t, []string{"/limit"}, write(http.MethodPut, "/v1/plans/p/limits/few", 200, obj{"limit": 1}).warned())
	require.Empty(t, write(http.MethodPut, "/v1/plans/p/limits/few", 200, obj{"limit": 3}).warned())
	require.Equal(t, []string{"/limit"}, write(http.MethodPut, "/v1/subjects/s/overrides/log", 201, obj{"limit": 5000}).warned())
	require.Empty(t, write(http.MethodPut, "/v1/subjects/s/overrides/log", 200, obj{"unlimited": true}).warned())

	// A warning of the rule itself is not repeated for each limit.
	write(http.MethodPatch, "/v1/rules/few", 200, obj{"by": []string{"attributes.ip"}})
	require.Empty(t, write(http.MethodPut, "/v1/plans/p/limits/few", 200, obj{"limit": 9}).warned())
	require.Equal(t, []string{"/warnings"}, s.call(s.key, http.MethodPatch, "/v1/rules/few", obj{"warnings": []obj{}}).pointers(422, codeInvalidRequest))
}

func TestRuleFilters(t *testing.T) {
	s := newAdminStack(t)
	for slug, body := range map[string]obj{
		"orders":    {"resource": "orders:*"},
		"orders-ip": {"resource": "orders:*", "mode": "shadow", "name": "100% of 'orders'"},
		"logins":    {"resource": "login", "algorithm": "token_bucket", "name": "Orders' logins"},
	} {
		body["limit"], body["window"] = 1, "1m"
		s.call(s.key, http.MethodPut, "/v1/rules/"+slug, body).ok(201)
	}
	for query, want := range map[string]int{
		"q=orders": 2, "q=Orders": 1, "q=100%25": 1, "q=%25": 0, "q=_": 0, "q='": 0, "resource=orders:*": 2, "resource=orders": 0,
		"algorithm=token_bucket": 1, "mode=shadow": 1, "mode=shadow&algorithm=token_bucket": 0, "q=orders&mode=enforce&resource=orders:*": 1, "": 3,
	} {
		require.Len(t, items(s.call(s.key, http.MethodGet, "/v1/rules?"+query, nil).ok(200)), want, query)
	}
	for query, at := range map[string]string{"algorithm=gcra": "query:algorithm", "mode=on": "query:mode", "q=": "query:q", "q=%00": "query:q"} {
		require.Equal(t, []string{at}, s.call(s.key, http.MethodGet, "/v1/rules?"+query, nil).pointers(422, codeInvalidRequest), query)
	}
	// A cursor belongs to its filter.
	first := s.call(s.key, http.MethodGet, "/v1/rules?q=orders&limit=1", nil).ok(200).json()["next_cursor"].(string)
	require.Len(t, items(s.call(s.key, http.MethodGet, "/v1/rules?q=orders&cursor="+first, nil).ok(200)), 1)
	s.call(s.key, http.MethodGet, "/v1/rules?q=order&cursor="+first, nil).problem(400, codeInvalidCursor)
	s.call(s.key, http.MethodGet, "/v1/rules?cursor="+first, nil).problem(400, codeInvalidCursor)
}

// A parameter that is not a number, a time or a boolean is named, with the expected type.
func TestParametersSayWhatTheyTake(t *testing.T) {
	s := newAdminStack(t)
	for path, detail := range map[string]string{
		"/v1/rules?limit=abc":             "The parameter limit must be a whole number.",
		"/v1/config?subjects=maybe":       "The parameter subjects must be true or false.",
		"/v1/rules?limit=0":               "The parameter limit must be at least 1.",
		"/v1/overrides?ending_before=now": "The parameter ending_before must be a time such as 2026-01-31T12:00:00Z (RFC 3339).",
	} {
		require.Equal(t, detail, s.call(s.key, http.MethodGet, path, nil).problem(422, codeInvalidRequest).Detail)
	}
}
