package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A flood of refused requests writes a limited number of lines. Tenants are separate from each
// other and from unknown clients.
func TestLogUnderAttack(t *testing.T) {
	s := newAdminStack(t)
	for range 200 {
		s.call("", http.MethodGet, "/v1/rules", nil).problem(401, codeMissingKey)
		s.call(s.key, http.MethodGet, "/v1/rules/nowhere", nil).problem(404, codeNotFound)
	}
	s.call(s.key, http.MethodGet, "/v1/rules", nil).ok(200)
	s.call(s.other, http.MethodGet, "/v1/rules/nowhere", nil).problem(404, codeNotFound)
	told := func(tenant string) (requests int) {
		for line := range strings.Lines(s.log.String()) {
			var entry struct {
				Msg      string
				Tenant   string `json:"tenant_id"`
				Requests int
			}
			require.NoError(t, json.Unmarshal([]byte(line), &entry))
			switch {
			case entry.Tenant != tenant:
			case entry.Msg == "request":
				requests++
			case entry.Msg == "requests not logged":
				requests += entry.Requests
			}
		}
		return requests
	}
	for tenant, want := range map[string]int{"": 200, s.a.TenantID().String(): 201, s.b.TenantID().String(): 1} {
		require.Eventually(t, func() bool { return told(tenant) == want }, time.Minute, 10*time.Millisecond, "every request is told of once: %q", tenant)
	}
	require.Contains(t, s.log.String(), "requests not logged")
}

// A client that disconnects is not an error of the service.
func TestClientThatDisconnected(t *testing.T) {
	s := newCheckStack(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/rules", nil)
	r.Header.Set("Authorization", "Bearer "+s.key)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	require.GreaterOrEqual(t, w.Code, 500, "nobody reads it")
	require.NotContains(t, s.log.String(), "ERROR")
}
