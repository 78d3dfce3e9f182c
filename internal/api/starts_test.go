package api

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Beyond a number, requests of a client run one after the other, and those of others do not wait
// for them. A Content-Type with a thousand parameters is none.
func TestClientsRunFewRequestsAtOnce(t *testing.T) {
	t.Parallel()
	counted := make(chan bool, 3)
	var first sync.WaitGroup
	inside, done := make(chan struct{}), make(chan struct{})
	handler := starting(places.NewStarts[netip.Prefix](1), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		require.Empty(t, r.Header)
		counted <- places.Counted(r.Context())
		if r.URL.Path == "/first" {
			close(inside)
			<-done
		}
	}))
	ask := func(path, from string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
		r.Header.Set("Content-Type", "application/json"+strings.Repeat(";a=b", 1000))
		r.RemoteAddr = from
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	first.Go(func() { ask("/first", "192.0.2.1:1000") })
	<-inside
	require.False(t, <-counted)
	ask("/", "192.0.2.1:2000")
	require.True(t, <-counted, "of the same client")
	ask("/", "192.0.2.2:1000")
	require.False(t, <-counted)
	close(done)
	first.Wait()
}
