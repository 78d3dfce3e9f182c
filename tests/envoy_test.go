package tests

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// gateway is a proxy that behaves like Envoy's rate-limit filter: it sends a call before it
// forwards a request, adds the headers of the response, answers a denial itself, and follows its
// failure mode if the call fails.
type gateway struct {
	service rls.RateLimitServiceClient
	key     string
	backend http.Handler
	// failureModeDeny is Envoy's setting of that name.
	failureModeDeny bool
}

// callTimeout is far longer than a call takes, even on a slow machine.
const callTimeout = 20 * time.Second

func newGateway(t testing.TB, addr, key string, secure *tls.Config) *gateway {
	t.Helper()
	transport := insecure.NewCredentials()
	if secure != nil {
		transport = credentials.NewTLS(secure)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(transport))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &gateway{
		service: rls.NewRateLimitServiceClient(conn), key: key,
		backend: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from the backend") }),
	}
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(r.Context(), "weir-key", g.key), callTimeout)
	defer cancel()
	answer, err := g.service.ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "edge", Descriptors: []*envoyratelimit.RateLimitDescriptor{{
		Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "subject", Value: r.Header.Get("X-User")}, {Key: "resource", Value: "edge"}},
	}}})
	switch {
	case err != nil && g.failureModeDeny:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case err != nil:
		g.backend.ServeHTTP(w, r)
		return
	}
	for _, h := range answer.ResponseHeadersToAdd {
		w.Header().Add(h.Key, h.Value)
	}
	if answer.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write(answer.RawBody)
		return
	}
	g.backend.ServeHTTP(w, r)
}

// get sends a customer's request through the gateway.
func (g *gateway) get(user string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-User", user)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w.Result()
}

func edgeRule(t testing.TB, s settings, i *instance) *client {
	t.Helper()
	tenant := newTenant(t, s, i)
	tenant.putRule("edge", `{"resource":"edge","algorithm":"fixed_window_first_hit","limit":2,"window":"1h"}`, i)
	return tenant
}

// Weir limits the customers of a gateway with Envoy's protocol. If Weir is unavailable, the gateway
// follows its failure mode.
func TestGatewayOverGRPC(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_GRPC_ADDR": "127.0.0.1:0"})
	i := start(t, s).AwaitReady()
	tenant := edgeRule(t, s, i)
	g := newGateway(t, i.Address("WEIR_GRPC_ADDR"), tenant.key, nil)
	for n, remaining := range []string{"1", "0"} {
		r := g.get("ada")
		require.Equal(t, http.StatusOK, r.StatusCode, n)
		require.Equal(t, remaining, r.Header.Get("X-Ratelimit-Remaining"))
		require.Equal(t, "allow", r.Header.Get("Weir-Decision"))
	}
	r := g.get("ada")
	require.Equal(t, http.StatusTooManyRequests, r.StatusCode)
	require.NotEmpty(t, r.Header.Get("Retry-After"))
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "RATE_LIMIT_EXCEEDED")
	for _, hostile := range []string{"", "\x01", strings.Repeat("a", 300), `x","plan":"enterprise`, "a\r\nweir-key: b"} {
		r := g.get(hostile)
		if hostile == `x","plan":"enterprise` {
			require.Equal(t, http.StatusOK, r.StatusCode, "a usable name")
			continue
		}
		require.Equal(t, http.StatusTooManyRequests, r.StatusCode, "%q", hostile)
	}
	require.Contains(t, i.Metrics(), `weir_http_requests_total{code="429",route="/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"}`)

	// Calls in progress are answered, and the process ends without an error.
	i.Signal(os.Interrupt)
	i.AwaitLog("draining")
	require.Zero(t, i.Exit())
	require.Equal(t, http.StatusOK, g.get("ada").StatusCode, "open: the request is allowed")
	g.failureModeDeny = true
	require.Equal(t, http.StatusInternalServerError, g.get("ada").StatusCode, "closed")
}

// gRPC uses the server's certificate, and reloads it too.
func TestGRPCOverTLS(t *testing.T) {
	t.Parallel()
	s, dir := secureSettings(t)
	s = s.With(settings{"WEIR_GRPC_ADDR": "127.0.0.1:0", "WEIR_GRPC_TLS": "true", "WEIR_HTTPS_ADDR": ""})
	i := start(t, s).AwaitReady()
	tenant := edgeRule(t, s, i)
	addr := i.Address("WEIR_GRPC_ADDR")
	trust := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} // the test verifies the certificate itself
	require.Equal(t, http.StatusOK, newGateway(t, addr, tenant.key, trust).get("ada").StatusCode)
	plain := newGateway(t, addr, tenant.key, nil)
	plain.failureModeDeny = true
	require.Equal(t, http.StatusInternalServerError, plain.get("ada").StatusCode, "not without TLS")
	name := func() string {
		conn, err := tls.Dial("tcp", addr, trust)
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	require.Equal(t, "first", name())
	writeCertificate(t, dir, "second")
	i.AwaitLog("certificate reloaded")
	require.Equal(t, "second", name())
	require.Equal(t, http.StatusOK, newGateway(t, addr, tenant.key, trust).get("ada").StatusCode)
	require.Zero(t, i.Stop())
}
