package dashboard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The pages of one address cannot use up the places of all others.
func TestPageShares(t *testing.T) {
	t.Parallel()
	inside, leave := make(chan struct{}), make(chan struct{})
	d := newDashboard(Deps{})
	h := d.track(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			inside <- struct{}{}
			<-leave
		}
	}))
	get := func(path, address string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.RemoteAddr = address + ":1234"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	ended := make(chan int)
	for range maxAddressWorking {
		go func() { ended <- get("/slow", "192.0.2.1") }()
		<-inside
	}
	require.Equal(t, http.StatusServiceUnavailable, get("/", "192.0.2.1"))
	require.Equal(t, http.StatusOK, get("/", "192.0.2.2"))
	close(leave)
	for range maxAddressWorking {
		require.Equal(t, http.StatusOK, <-ended)
	}
	require.Equal(t, http.StatusOK, get("/", "192.0.2.1"))
}

// A tenant has one preview at a time, so that its members leave the other place to other tenants.
func TestPreviewShares(t *testing.T) {
	t.Parallel()
	d := newDashboard(Deps{})
	first, second := uuid.New(), uuid.New()
	ctx, cancel := context.WithCancel(t.Context())
	leave, ok := d.tryPlace(ctx, first)
	require.True(t, ok)
	other, ok := d.tryPlace(ctx, second)
	require.True(t, ok, "another tenant")
	cancel()
	_, ok = d.tryPlace(ctx, first)
	require.False(t, ok)
	other()
	_, ok = d.tryPlace(ctx, first)
	require.False(t, ok, "its own share is used, although a place is free")
	leave()
	leave, ok = d.tryPlace(ctx, first)
	require.True(t, ok)
	leave()
}
