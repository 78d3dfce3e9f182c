package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A failed page can be found in the logs and the metrics, which contain none of its contents.
func TestPagesAreCountedAndLogged(t *testing.T) {
	s := newStack(t)
	token := s.as("ann@example.com").token()
	var lines bytes.Buffer
	var mu sync.Mutex
	counted := map[string]int{}
	handler := New(Deps{
		Store: s.store, Policies: s.policies, Checker: s.checker, Recent: s.recent, DegradedSince: s.engines.DegradedSince, Now: s.clock.Now,
		Logger: slog.New(slog.NewJSONHandler(&lines, nil)),
		Observe: func(pattern string) func(int, time.Duration) {
			return func(status int, _ time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				counted[pattern+" "+strconv.Itoa(status)]++
			}
		},
	})
	ask := func(method, path, id string) (answer *httptest.ResponseRecorder, line map[string]any) {
		lines.Reset()
		r := httptest.NewRequest(method, "https://weir.example"+path, nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: token})
		if id != "" {
			r.Header.Set("X-Request-Id", id)
		}
		answer = httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line), "one line per request: %s", lines.String())
		return answer, line
	}
	for _, c := range []struct {
		method, path, route string
		status              int
	}{
		{http.MethodGet, "/rules", "/rules", http.StatusOK},
		{http.MethodGet, "/subjects/ada%20canary?resource=canary", "/subjects/*", http.StatusOK},
		{http.MethodGet, "/rules/canary", "/rules/{slug}", http.StatusNotFound},
		{http.MethodGet, "/canary", "none", http.StatusNotFound},
		{http.MethodPut, "/login", "none", http.StatusMethodNotAllowed},
		{"CANARY", "/login", "none", http.StatusMethodNotAllowed},
	} {
		answer, line := ask(c.method, c.path, "id-1")
		require.Equal(t, c.status, answer.Code, c.path)
		require.Equal(t, "id-1", answer.Header().Get("X-Request-Id"))
		require.Equal(t, "id-1", line["request_id"])
		require.Equal(t, "INFO", line["level"], c.path)
		require.Equal(t, c.route, line["route"], c.path)
		require.EqualValues(t, c.status, line["status"])
		require.NotContains(t, lines.String(), "canary")
		require.NotContains(t, lines.String(), "CANARY")
		require.NotContains(t, lines.String(), token)
		if c.status == http.StatusOK {
			require.Equal(t, s.a.TenantID().String(), line["tenant_id"])
		}
	}
	answer, line := ask(http.MethodGet, "/rules", "not harmless\n")
	require.Regexp(t, `^[0-9a-f]{32}$`, answer.Header().Get("X-Request-Id"))
	require.Equal(t, answer.Header().Get("X-Request-Id"), line["request_id"])
	require.Equal(t, map[string]int{
		"/rules 200": 2, "/subjects/* 200": 1, "/rules/{slug} 404": 1, " 404": 1, " 405": 2,
	}, counted)
}

// lockedLines is a log that can be read while it is written.
type lockedLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Clients that are not signed in write a limited number of lines, however many pages they request.
// Each request is told of once, and members have their lines as usual.
func TestPagesUnderAttack(t *testing.T) {
	s := newStack(t)
	token := s.as("ann@example.com").token()
	var log lockedLines
	handler := New(Deps{
		Store: s.store, Policies: s.policies, Checker: s.checker, Recent: s.recent, DegradedSince: s.engines.DegradedSince, Now: s.clock.Now,
		Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	ask := func(path, token string) {
		r := httptest.NewRequest(http.MethodGet, "https://weir.example"+path, nil)
		if token != "" {
			r.AddCookie(&http.Cookie{Name: sessionCookie, Value: token})
		}
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	const pages = 1000
	for range pages / 2 {
		ask("/login", "")
		ask("/portal/accent/none", "")
	}
	ask("/keys", token)
	told := func() (lines, requests int) {
		for line := range strings.Lines(log.String()) {
			var entry struct {
				Msg      string
				Tenant   string `json:"tenant_id"`
				Requests int
			}
			require.NoError(t, json.Unmarshal([]byte(line), &entry))
			switch {
			case entry.Tenant != "":
			case entry.Msg == "request":
				lines, requests = lines+1, requests+1
			case entry.Msg == "requests not logged":
				lines, requests = lines+1, requests+entry.Requests
			}
		}
		return lines, requests
	}
	require.Eventually(t, func() bool {
		_, requests := told()
		return requests == pages
	}, time.Minute, 10*time.Millisecond, "every request is told of once")
	lines, _ := told()
	require.Less(t, lines, pages/2)
	require.Contains(t, log.String(), s.a.TenantID().String())
}

// A client that does not wait for its error page causes no line about an error.
func TestErrorPageNobodyWaitsFor(t *testing.T) {
	s := newStack(t)
	var log lockedLines
	handler := New(Deps{
		Store: s.store, Policies: s.policies, Checker: s.checker, Recent: s.recent, DegradedSince: s.engines.DegradedSince, Now: s.clock.Now,
		Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "https://weir.example/portal/accent/none", nil))
	require.Equal(t, http.StatusNotFound, w.Code)
	require.NotContains(t, log.String(), `"level":"ERROR"`)
}
