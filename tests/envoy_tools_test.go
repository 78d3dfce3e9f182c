//go:build envoy

package tests

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"weir/internal/testenv"
)

// These tests run other projects' programs, which take minutes to build: make test-envoy.

// tool runs a tool of tools/NAME.mod.
func tool(t *testing.T, name string, args ...string) (output string, ok bool) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool", "-modfile=tools/" + name + ".mod"}, args...)...)
	cmd.Dir = testenv.Root()
	text, err := cmd.CombinedOutput()
	return string(text), err == nil
}

// keyed adds the key to calls, as a gateway does. The client of envoyproxy/ratelimit cannot add it.
type keyed struct {
	rls.UnimplementedRateLimitServiceServer
	*gateway
}

func (k keyed) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return k.service.ShouldRateLimit(metadata.AppendToOutgoingContext(ctx, "weir-key", k.key), r)
}

// The client of envoyproxy/ratelimit gets the same responses from Weir as from its own service.
func TestClientOfEnvoyRatelimit(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_GRPC_ADDR": "127.0.0.1:0"})
	i := start(t, s).AwaitReady()
	tenant := edgeRule(t, s, i)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(server, keyed{gateway: newGateway(t, i.Address("WEIR_GRPC_ADDR"), tenant.key, nil)})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	ask := func() string {
		output, ok := tool(t, "envoy_ratelimit_client", "client_cmd", "-dial_string", listener.Addr().String(), "-domain", "edge",
			"-descriptors", "subject=ada,resource=edge", "-descriptors", "subject=ada,resource=free")
		require.True(t, ok, output)
		_, response, _ := strings.Cut(output, "response: ")
		return strings.ReplaceAll(response, "  ", " ") // the library varies its spaces
	}
	for range 2 {
		response := ask()
		require.Contains(t, response, "overall_code:OK")
		require.Contains(t, response, "unit:HOUR")
	}
	response := ask()
	require.Contains(t, response, "overall_code:OVER_LIMIT")
	require.Contains(t, response, `key:"Retry-After"`)
	require.Zero(t, i.Stop())
}

// grpcurl finds the service by reflection, and calls it by its name.
func TestGrpcurl(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_GRPC_ADDR": "127.0.0.1:0"})
	i := start(t, s).AwaitReady()
	tenant := edgeRule(t, s, i)
	addr := i.Address("WEIR_GRPC_ADDR")
	output, ok := tool(t, "grpcurl", "grpcurl", "-plaintext", addr, "list")
	require.True(t, ok, output)
	require.Contains(t, output, "envoy.service.ratelimit.v3.RateLimitService")
	require.Contains(t, output, "grpc.health.v1.Health")
	output, ok = tool(t, "grpcurl", "grpcurl", "-plaintext", addr, "describe", "envoy.service.ratelimit.v3.RateLimitService")
	require.True(t, ok, output)
	require.Contains(t, output, "rpc ShouldRateLimit")
	output, ok = tool(t, "grpcurl", "grpcurl", "-plaintext", addr, "grpc.health.v1.Health/Check")
	require.True(t, ok, output)
	require.Contains(t, output, "SERVING")
	ask := []string{"grpcurl", "-plaintext", "-H", "weir-key: " + tenant.key, "-d",
		`{"domain":"edge","descriptors":[{"entries":[{"key":"subject","value":"ada"},{"key":"resource","value":"edge"}]}]}`,
		addr, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"}
	for _, code := range []string{"OK", "OK", "OVER_LIMIT"} {
		output, ok = tool(t, "grpcurl", ask...)
		require.True(t, ok, output)
		require.Contains(t, output, `"overallCode": "`+code+`"`)
	}
	ask[3] = "weir-key: weir_wrong"
	output, ok = tool(t, "grpcurl", ask...)
	require.False(t, ok)
	require.Contains(t, output, "Unauthenticated")
	require.Zero(t, i.Stop())
}
