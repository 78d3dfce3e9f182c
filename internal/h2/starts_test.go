package h2

import (
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// Requests to the handler have places for running, also those that a direct call has not answered.
// All of them begin, even if none ends before.
func TestRequestsBeginInPlaces(t *testing.T) {
	const requests = 20
	var inside sync.WaitGroup
	inside.Add(requests)
	counted := make(chan bool, requests)
	_, addr := serveFor(t, func(config *Config) {
		config.Starts = places.NewStarts[netip.Prefix](1)
		config.Call = func(*Call) bool { return false }
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			counted <- places.Counted(r.Context())
			inside.Done()
			inside.Wait()
		})
	})
	c := dial(t, addr)
	for i := range uint32(requests) {
		path := handlerPath
		if i%2 == 0 {
			path = callPath
		}
		c.open(1+2*i, path, true)
	}
	c.begins(1)
	n := 0
	for range requests {
		if <-counted {
			n++
		}
	}
	require.Equal(t, requests-1, n, "one is always free")
}
