package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"weir/internal/overload"
	"weir/internal/places"
)

// A body is decoded again after the store has looked for an answer, in a turn like the first time.
// Without one, nothing runs, and nothing is stored.
func TestIdempotentBodiesTakeTurns(t *testing.T) {
	s := newAdminStack(t)
	actor, _ := s.db.Tenant("turns")
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(100), places.NewProcessors(2))
	c.bodies = newBodyTurns(places.NewProcessors(2))
	c.bodies.wait = 0
	a := &admin{store: s.store}
	body := []byte(strings.Repeat("x", turnBody+1))
	runs := 0
	send := func() *httptest.ResponseRecorder {
		require.True(t, c.enter())
		w := httptest.NewRecorder()
		q := &request{ResponseWriter: w, capacity: c, authed: true, actor: actor}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), requestKey{}, q), http.MethodPost, "/v1/rules", http.NoBody)
		r.Header.Set(idempotencyHeader, "key")
		a.idempotent(q, r, &huma.Operation{}, body, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			require.NotNil(t, q.turn)
			w.WriteHeader(http.StatusConflict)
		}))
		require.Nil(t, q.turn)
		return w
	}
	leave, err := c.bodies.small.Take(t.Context(), actor.TenantID())
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, send().Code)
	require.Zero(t, runs)
	leave()
	require.Equal(t, http.StatusConflict, send().Code)
	require.Equal(t, http.StatusConflict, send().Code)
	require.Equal(t, 1, runs, "the second time, the answer is the stored one")
}
