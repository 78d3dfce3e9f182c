package main

import (
	"context"
	"net"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// limiter answers every call of the rate-limit service immediately, with a response of the same
// size as Weir's.
type limiter struct {
	rls.UnimplementedRateLimitServiceServer
}

func (limiter) ShouldRateLimit(_ context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	answer := &rls.RateLimitResponse{
		OverallCode: rls.RateLimitResponse_OK,
		ResponseHeadersToAdd: []*core.HeaderValue{
			{Key: "RateLimit", Value: `"requests";r=99999999;t=60`},
			{Key: "RateLimit-Policy", Value: `"requests";q=100000000;w=60`},
			{Key: "Weir-Decision", Value: "allow"},
			{Key: "X-RateLimit-Limit", Value: "100000000"},
			{Key: "X-RateLimit-Remaining", Value: "99999999"},
			{Key: "X-RateLimit-Reset", Value: "1800000000"},
		},
	}
	for range r.Descriptors {
		answer.Statuses = append(answer.Statuses, &rls.RateLimitResponse_DescriptorStatus{
			Code:           rls.RateLimitResponse_OK,
			CurrentLimit:   &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 100_000_000, Unit: rls.RateLimitResponse_RateLimit_MINUTE, Name: "requests"},
			LimitRemaining: 99_999_999, DurationUntilReset: &durationpb.Duration{Seconds: 60},
		})
	}
	return answer, nil
}

// serveGRPC serves the rate-limit service until the process ends.
func serveGRPC(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(server, limiter{})
	return server.Serve(listener)
}
