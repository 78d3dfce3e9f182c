package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A flood of refused requests writes a limited number of lines, which have the total. Valid
// requests are logged as usual.
func TestAccessBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		b := newAccessBudget(slog.New(slog.NewJSONHandler(&log, nil)))
		refused := &request{status: http.StatusUnauthorized}
		written := func(q *request, n int) (lines int) {
			for range n {
				if b.take(q) {
					lines++
				}
			}
			return lines
		}
		require.Equal(t, accessLines, written(refused, 10_000))
		require.Equal(t, 100, written(&request{status: http.StatusOK, authed: true}, 100))
		time.Sleep(accessWindow + time.Millisecond) // on the bubble's clock
		synctest.Wait()
		require.Equal(t, 1, strings.Count(log.String(), "requests not logged"), log.String())
		require.Contains(t, log.String(), `"requests":9980`)
		require.Equal(t, accessLines, written(refused, 100), "the next second has lines again")
		time.Sleep(accessWindow + time.Millisecond)
		synctest.Wait()
		require.Contains(t, log.String(), `"requests":80`)
		require.Equal(t, 5, written(refused, 5))
		time.Sleep(accessWindow + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 2, strings.Count(log.String(), "requests not logged"), "nothing was left out")
		require.Empty(t, b.open)
	})
}

// The same over HTTP: tenants are separate from each other and from unknown clients.
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
