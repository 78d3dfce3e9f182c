package dashboard

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/a-h/templ"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// turnless is the dashboard of a stack whose turns are all taken.
func (s *stack) turnless() (leave func()) {
	s.t.Helper()
	s.pages.turns = newPageTurns(places.NewProcessors(2))
	s.pages.turns.wait = 0
	leave, err := s.pages.turns.turns.Take(s.t.Context(), s.b.TenantID())
	require.NoError(s.t, err)
	return leave
}

// Without a turn, a page is answered 503, and its form is not, because the change is made. A page
// has one turn after the other, and none when it has ended.
func TestPagesTakeTurns(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "turn")
	b := s.as("ann@example.com")
	leave := s.turnless()
	for _, path := range []string{"/", "/usage", "/audit", "/subjects/nobody", "/plans", "/rules/requests/history", "/account"} {
		got := b.get(path)
		require.Equal(t, http.StatusServiceUnavailable, got.status, path)
		require.Equal(t, "1", got.header.Get("Retry-After"), path)
		require.Contains(t, got.body, "Too busy", path)
	}
	require.Equal(t, http.StatusOK, s.browser().get("/login").status, "without a tenant")
	require.Equal(t, http.StatusServiceUnavailable, s.browser().get("/playground").status)
	require.Equal(t, http.StatusUnprocessableEntity, b.write("/rules", map[string][]string{"slug": {"?"}}).status)
	leave()
	for _, path := range []string{"/", "/usage", "/audit", "/subjects/nobody", "/rules/new", "/plans", "/rules/requests/history", "/account"} {
		require.Equal(t, http.StatusOK, b.get(path).status, path)
	}
}

// A turn ends with a panic of the page.
func TestTurnsEndWithAPanic(t *testing.T) {
	t.Parallel()
	d := &dashboard{turns: newPageTurns(places.NewProcessors(2))}
	d.turns.wait = 0
	page := templ.ComponentFunc(func(context.Context, io.Writer) error { panic("broken") })
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	for range 2 {
		require.PanicsWithValue(t, "broken", func() { _ = d.renderFor(playgroundTurns, httptest.NewRecorder(), r, http.StatusOK, page) })
	}
}

// A live page waits for its turn, and loses nothing meanwhile.
func TestLivePagesTakeTurns(t *testing.T) {
	t.Parallel()
	d := &dashboard{turns: newPageTurns(places.NewProcessors(2))}
	h := newHub(d)
	leave, err := d.turns.turns.Take(t.Context(), uuid.UUID{1})
	require.NoError(t, err)
	shown := &topic{key: topicKey{tenant: uuid.UUID{2}}, changed: make(chan struct{})}
	done := make(chan error)
	go func() { done <- h.show(t.Context(), shown, []part{{"rows", templ.Raw("rows")}}) }()
	for d.turns.turns.Waiting() == 0 {
		select {
		case <-done:
			t.Fatal("it did not wait")
		default:
		}
	}
	parts, _, _ := shown.since(0)
	require.Empty(t, parts)
	leave()
	require.NoError(t, <-done)
	parts, _, _ = shown.since(0)
	require.Len(t, parts, 1)

	_, err = d.turns.turns.Take(t.Context(), uuid.UUID{1})
	require.NoError(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.show(over, shown, []part{{"rows", templ.Raw("more")}}), context.Canceled)
}
