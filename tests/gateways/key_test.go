package gateways

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"weir/tests/harness"
)

// Gateways that cannot send the key send requests through nginx, which sets the key and removes a
// customer's.
func TestKeyProxy(t *testing.T) {
	w := newWorld(t)
	w.call(w.keys["gateway"], http.MethodPut, "/v1/routes/edge", `{"subject":["header:X-User"]}`)
	overGRPC, overHTTP := startKeyProxy(t, w, readPage(t, "others"), map[string]string{
		pageKey: w.keys["gateway"], pageGRPC: w.grpc, pageWeir: strings.TrimPrefix(w.url, "http://"),
	})
	conn, err := grpc.NewClient(overGRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "weir-key", "forged")
	for used := range limit + 1 {
		answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "edge",
			Descriptors: []*envoyratelimit.RateLimitDescriptor{{Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "subject", Value: "over gRPC"}}}},
		}, grpc.WaitForReady(true))
		require.NoError(t, err)
		require.Equal(t, used == limit, answer.OverallCode == rls.RateLimitResponse_OVER_LIMIT)
	}
	authorizesThrough(t, overHTTP)
}

// The same file for a server with HTTPS.
func TestKeyProxyOverHTTPS(t *testing.T) {
	w, trusted := newSecureWorld(t)
	w.call(w.keys["gateway"], http.MethodPut, "/v1/routes/edge", `{"subject":["header:X-User"]}`)
	dir, err := os.MkdirTemp("", "weir-ca-") // readable by nginx, which has no rights
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	ca := filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(ca, trusted.pem(), 0o600))
	require.NoError(t, os.Chmod(ca, 0o644))
	p := readPage(t, "others")
	p.configure(t, "others", w.secure, w.keys["gateway"], ca)
	_, overHTTP := startKeyProxy(t, w, p, map[string]string{pageGRPC: w.grpc})
	authorizesThrough(t, overHTTP)
}

// startKeyProxy starts nginx with the file of the page, and returns its addresses.
func startKeyProxy(t *testing.T, w *world, p *page, replace map[string]string) (overGRPC, overHTTP string) {
	t.Helper()
	overGRPC, overHTTP = freeAddress(t), freeAddress(t)
	replace["listen 8082"], replace["listen 8083"] = "listen "+overGRPC, "listen "+overHTTP
	files := p.configured(t, nil, replace)
	dir, err := os.MkdirTemp("", "weir-key-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	g := &gateway{recipe: &recipe{name: "nginx"}, address: overHTTP, dir: dir, relay: newRelay(t, w.grpc), app: newApp(t), plain: freeAddress(t)}
	files["nginx.conf"] = nginxConf("", filepath.Join(dir, "weir-key.conf"), "")
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	g.start(t, []string{"nginx", "-p", dir, "-e", "stderr", "-g", "daemon off;", "-c", filepath.Join(dir, "nginx.conf")})
	return overGRPC, overHTTP
}

func authorizesThrough(t *testing.T, address string) {
	t.Helper()
	c := customer(t)
	for used := range limit + 1 {
		status := http.StatusNoContent
		if used == limit {
			status = http.StatusTooManyRequests
		}
		got := send(t, c, http.MethodGet, address, "/v1/authorize/edge/orders", "", "X-User", "over HTTP", "Weir-Key", "forged")
		require.Equal(t, status, got.status, got.body)
	}
}
