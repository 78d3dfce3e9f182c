package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The operator's writes change other tenants. This instance applies them to those tenants before it
// answers: the first key of a new tenant works immediately, and no key of a suspended tenant does.
func TestFollowTheTenantThatChanged(t *testing.T) {
	s := newCheckStack(t)
	_, operator, err := s.db.Store.CreateOperatorKey(t.Context(), "test")
	require.NoError(t, err)
	var followed []limit.TenantID
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Follow = func(_ context.Context, tenant limit.TenantID) { followed = append(followed, tenant) }
	s.serve(Config{}, deps)

	created := struct{ ID uuid.UUID }{}
	call := func(method, path string, body any, status int) {
		t.Helper()
		followed = nil
		a := s.contract.call(operator.Secret(), method, path, body)
		require.Equal(t, status, a.status, "%s", a.body)
		if method == http.MethodPost {
			require.NoError(t, json.Unmarshal(a.body, &created))
		}
		require.Contains(t, followed, created.ID)
	}
	call(http.MethodPost, "/v1/tenants", obj{"slug": "new"}, 201)
	call(http.MethodPatch, "/v1/tenants/new", obj{"state": "suspended"}, 200)
	call(http.MethodDelete, "/v1/tenants/new", nil, 204)

	followed = nil
	s.contract.call(operator.Secret(), http.MethodPost, "/v1/tenants", obj{"slug": "NOT A SLUG"}).problem(422, "INVALID_REQUEST")
	require.Empty(t, followed, "nothing was written")
}

// An answer of any size is sent after this instance has applied the change.
func TestAnswersWaitForTheChange(t *testing.T) {
	w := &countingWriter{ResponseWriter: httptest.NewRecorder()}
	order := ""
	a := &admin{follow: func(context.Context, limit.TenantID) {
		require.Zero(t, w.written)
		order += "followed "
	}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/v1/rules/r", nil)
	q := &request{ResponseWriter: w, actor: tenants.AsSystem(uuid.New(), "test"), authed: true, left: true}
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
	body := strings.Repeat("x", 100_000) // far more than net/http buffers
	a.committed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		afterCommit(r.Context(), func() { order += "committed " })
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(body))
	})).ServeHTTP(q, r)
	require.Equal(t, "committed followed ", order)
	require.Equal(t, len(body), w.written)
	require.Equal(t, http.StatusCreated, q.status)

	// A failed request has changed nothing.
	a.committed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		afterCommit(r.Context(), func() { order += "committed " })
		w.WriteHeader(http.StatusConflict)
	})).ServeHTTP(q, r)
	require.Equal(t, "committed followed ", order)
}

type countingWriter struct {
	http.ResponseWriter
	written int
}

func (w *countingWriter) Write(b []byte) (int, error) {
	w.written += len(b)
	return w.ResponseWriter.Write(b)
}
