package api

import (
	"context"
	"net"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// envoyStack is the stack with a gRPC server and a connection like Envoy's.
type envoyStack struct {
	*checkStack
	grpc *GRPC
	conn *grpc.ClientConn
}

func newEnvoyStack(t *testing.T) *envoyStack {
	s := &envoyStack{checkStack: newCheckStack(t), grpc: NewGRPC(nil)}
	s.conn = s.serveCalls(s.grpc)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	New(Config{Headers: bothStyles, GRPC: s.grpc}, deps)
	return s
}

// serveCalls serves a gRPC server on a listener and connects to it.
func (s *checkStack) serveCalls(g *GRPC) *grpc.ClientConn {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(s.t, g.Shutdown(ctx))
		require.NoError(s.t, <-served)
	})
	return conn
}

// described returns a descriptor with alternating keys and values.
func described(entries ...string) *envoyratelimit.RateLimitDescriptor {
	d := &envoyratelimit.RateLimitDescriptor{}
	for i := 0; i < len(entries); i += 2 {
		d.Entries = append(d.Entries, &envoyratelimit.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return d
}

// costing sets the cost of a descriptor.
func costing(cost uint64, d *envoyratelimit.RateLimitDescriptor) *envoyratelimit.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(cost)
	return d
}

func asking(descriptors ...*envoyratelimit.RateLimitDescriptor) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "edge", Descriptors: descriptors}
}

// call sends one request with the stack's key.
func (s *envoyStack) call(request *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	s.t.Helper()
	ctx := metadata.AppendToOutgoingContext(s.t.Context(), keyMetadata, s.key)
	return rls.NewRateLimitServiceClient(s.conn).ShouldRateLimit(ctx, request)
}

// answered is call for a request that must be decided.
func (s *envoyStack) answered(request *rls.RateLimitRequest) *rls.RateLimitResponse {
	s.t.Helper()
	response, err := s.call(request)
	require.NoError(s.t, err)
	require.Len(s.t, response.Statuses, len(request.Descriptors))
	allowed := response.OverallCode == rls.RateLimitResponse_OK
	for _, d := range response.Statuses {
		if d.Code != rls.RateLimitResponse_OK {
			require.False(s.t, allowed)
		}
	}
	require.Equal(s.t, map[bool]string{true: decisionAllow, false: decisionDeny}[allowed], envoyHeaders(response)[decisionHeader])
	return response
}

func envoyHeaders(response *rls.RateLimitResponse) map[string]string {
	headers := map[string]string{}
	for _, h := range response.ResponseHeadersToAdd {
		headers[h.Key] = h.Value
	}
	return headers
}
