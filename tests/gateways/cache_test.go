package gateways

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each customer gets the page for that customer, also from the cache.
func TestVarnishCachesForEachCustomer(t *testing.T) {
	w := newWorld(t)
	g := startGateway(t, w, recipeNamed(t, "varnish"), true, true)
	c := customer(t)
	for range 2 {
		for _, user := range []string{"alice", "bob"} {
			got := g.send(t, c, http.MethodGet, "/me", "", "X-User", user, "X-App-Cache", "yes")
			require.Equal(t, http.StatusOK, got.status)
			require.Equal(t, "for "+user, got.body)
			require.Equal(t, `"api";q=3;w=3600`, got.header.Get("RateLimit-Policy"))
		}
	}
	require.Len(t, g.app.take(), 2, "the second page of each customer is from the cache")
	require.Len(t, g.relay.requests(), 4, "and is counted")
}
