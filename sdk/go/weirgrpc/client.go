package weirgrpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	weir "github.com/weir-dev/weir-go"
)

// A Limit limits outgoing calls: it sends a call when Weir allows it. Use it for a service that has
// its own limits. Checker is required.
//
//	limit := weirgrpc.Limit{Checker: client}
//	grpc.NewClient(target, grpc.WithUnaryInterceptor(limit.Unary), grpc.WithStreamInterceptor(limit.Stream))
type Limit struct {
	Checker weir.Checker

	// Subject returns the subject of a call. The default is the target of the connection.
	Subject func(ctx context.Context, target, method string) string

	// Resource returns the resource of a call. The default is the full name of the method.
	Resource func(ctx context.Context, target, method string) string

	// Cost returns how many units the call takes. The default is 1.
	Cost func(ctx context.Context, target, method string) int64

	// MaxWait is how long a call may wait until it is allowed, unless its context ends first. The
	// default is weir.DefaultMaxWait; with a negative value, it does not wait.
	MaxWait time.Duration
}

// Unary is an interceptor of unary calls.
func (l Limit) Unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if err := l.admit(ctx, cc.Target(), method); err != nil {
		return err
	}
	return invoke(ctx, method, request, reply, cc, options...)
}

// Stream is an interceptor of streams.
func (l Limit) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := l.admit(ctx, cc.Target(), method); err != nil {
		return nil, err
	}
	return stream(ctx, desc, cc, method, options...)
}

func (l *Limit) admit(ctx context.Context, target, method string) error {
	check := weir.Check{Subject: target, Resource: method}
	if l.Subject != nil {
		check.Subject = l.Subject(ctx, target, method)
	}
	if l.Resource != nil {
		check.Resource = l.Resource(ctx, target, method)
	}
	if l.Cost != nil {
		check.Cost = l.Cost(ctx, target, method)
	}
	d, err := l.ask(ctx, check)
	var misuse *weir.MisuseError
	switch {
	case errors.As(err, &misuse):
		return status.Error(codes.Internal, err.Error())
	case err != nil:
		return status.FromContextError(err).Err()
	case !d.Allowed:
		return Denied(d)
	}
	return nil
}

func (l *Limit) ask(ctx context.Context, check weir.Check) (weir.Decision, error) {
	if l.MaxWait < 0 {
		d, err := l.Checker.Check(ctx, check)
		if err == nil && d.Allowed {
			return d, hold(ctx, d.Delay())
		}
		return d, err
	}
	most := l.MaxWait
	if most == 0 {
		most = weir.DefaultMaxWait
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return l.Checker.Wait(ctx, check)
}
