// Package weirgrpc limits gRPC calls: incoming ones with a [Guard], outgoing ones with a [Limit].
package weirgrpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	weir "github.com/weir-dev/weir-go"
)

// A Guard limits incoming calls. Checker and Subject are required.
//
//	guard := weirgrpc.Guard{Checker: client, Subject: weirgrpc.Metadata("x-customer")}
//	grpc.NewServer(grpc.UnaryInterceptor(guard.Unary), grpc.StreamInterceptor(guard.Stream))
//
// A stream is one check, made when it begins. A call that ends before its check gets its own code,
// DeadlineExceeded or Canceled, and its handler does not run.
type Guard struct {
	Checker weir.Checker

	// Subject returns the subject of a call. A call without one is a misuse, so that a missing
	// subject never disables the limiter. method is the full name, such as /shop.Orders/Create.
	Subject func(ctx context.Context, method string) string

	// Resource returns the resource of a call. The default is the full name of the method.
	Resource func(ctx context.Context, method string) string

	// Cost returns how many units the call takes. The default is 1.
	Cost func(ctx context.Context, method string) int64

	// Plan returns the plan. The default is the subject's own.
	Plan func(ctx context.Context, method string) string

	// Attributes returns more values that rules can count by. The default is none.
	Attributes func(ctx context.Context, method string) map[string]string

	// Skip lets calls pass without a check, those of the health service for example.
	Skip func(ctx context.Context, method string) bool

	// OnDenied returns the error of a denied call. The default is [Denied].
	OnDenied func(ctx context.Context, d weir.Decision) error

	// OnMisuse returns the error of a call whose check was a mistake of this application. The
	// default logs it to Logger and returns the code Internal.
	OnMisuse func(ctx context.Context, err error) error

	// Logger is where misuse is logged. The default is slog.Default.
	Logger *slog.Logger
}

// Metadata returns a function for [Guard.Subject] that reads a key of the incoming metadata.
func Metadata(key string) func(context.Context, string) string {
	return func(ctx context.Context, _ string) string { return incoming(ctx, key) }
}

func incoming(ctx context.Context, key string) string {
	if values := metadata.ValueFromIncomingContext(ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Unary is an interceptor of unary calls.
func (g Guard) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	set := func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }
	if err := g.admit(ctx, info.FullMethod, set); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is an interceptor of streams.
func (g Guard) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := g.admit(stream.Context(), info.FullMethod, stream.SetHeader); err != nil {
		return err
	}
	return handler(service, stream)
}

// admit returns nil if the call may proceed. It sets the rate-limit headers.
func (g *Guard) admit(ctx context.Context, method string, set func(metadata.MD) error) error {
	if g.Skip != nil && g.Skip(ctx, method) {
		return nil
	}
	traced := weir.ContextWithTraceparent(ctx, incoming(ctx, "traceparent"))
	d, err := g.Checker.Check(traced, g.check(ctx, method))
	if err != nil {
		return g.failed(ctx, err)
	}
	// The customer chooses the deadline. If it has ended the check, the fallback may have allowed
	// the call, and the handler would run without a decision.
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if err := set(headers(&d)); err != nil {
		return err
	}
	if !d.Allowed {
		if g.OnDenied != nil {
			return g.OnDenied(ctx, d)
		}
		return Denied(d)
	}
	return hold(ctx, d.Delay())
}

func (g *Guard) check(ctx context.Context, method string) weir.Check {
	check := weir.Check{Subject: g.Subject(ctx, method), Resource: method}
	if g.Resource != nil {
		check.Resource = g.Resource(ctx, method)
	}
	if g.Cost != nil {
		check.Cost = g.Cost(ctx, method)
	}
	if g.Plan != nil {
		check.Plan = g.Plan(ctx, method)
	}
	if g.Attributes != nil {
		check.Attributes = g.Attributes(ctx, method)
	}
	return check
}

func (g *Guard) failed(ctx context.Context, err error) error {
	var misuse *weir.MisuseError
	if !errors.As(err, &misuse) {
		return status.FromContextError(err).Err()
	}
	if g.OnMisuse != nil {
		return g.OnMisuse(ctx, err)
	}
	logger := g.Logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.ErrorContext(ctx, "weir: the check of a call is wrong", "error", err)
	return status.Error(codes.Internal, "internal error")
}

// headers are the decision's headers as metadata.
func headers(d *weir.Decision) metadata.MD {
	md := metadata.MD{}
	for key, value := range map[string]string{
		"ratelimit": d.Headers.RateLimit, "ratelimit-policy": d.Headers.RateLimitPolicy,
		"retry-after": d.Headers.RetryAfter, "x-ratelimit-limit": d.Headers.Limit,
		"x-ratelimit-remaining": d.Headers.Remaining, "x-ratelimit-reset": d.Headers.Reset,
	} {
		if value != "" {
			md.Set(key, value)
		}
	}
	return md
}

// Denied returns the error of a denied call: the code ResourceExhausted, with the reason as an
// ErrorInfo and, if a wait helps, a RetryInfo. If the fallback Deny has answered instead of the
// server, the code is Unavailable, because no limit was exceeded.
func Denied(d weir.Decision) error {
	code, info := codes.ResourceExhausted, &errdetails.ErrorInfo{Domain: "weir"}
	message := "rate limit exceeded"
	if d.Denial != nil {
		message, info.Reason = d.Denial.Message, d.Denial.Code
		if d.Denial.Code == weir.CodeLimiterUnavailable {
			code = codes.Unavailable
		}
	}
	details := []protoadapt.MessageV1{protoadapt.MessageV1Of(info)}
	if wait, known := d.RetryAfter(); known {
		retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}
		details = append(details, protoadapt.MessageV1Of(retry))
	}
	s, err := status.New(code, message).WithDetails(details...)
	if err != nil { // of a code OK alone
		panic(err)
	}
	return s.Err()
}

// hold waits for the delay of an allowed call.
func hold(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
