package api

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3" // for reflection
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// GRPC serves Envoy's rate-limit service, and the services that tools expect: health and
// reflection. It can listen before the service is ready, and answers that it is unavailable until
// then.
type GRPC struct {
	server *atomic.Pointer[server]
	health *health.Server
	served *grpc.Server
	aside  atomic.Int64 // number of open calls to health and reflection
}

// Limits of a connection.
const (
	// maxMessage has space for 16 descriptors with all headers that Envoy accepts from a customer,
	// 60 KiB by default. A longer message fails, and most gateways then allow the request.
	maxMessage     = 1 << 20
	maxCallHeaders = 16 << 10 // bytes of metadata
	maxCallStreams = 250      // concurrent calls on one connection
	// maxAside limits the calls to health and reflection, which need no key and may stay open.
	maxAside = 256

	// callWorkers are goroutines that serve calls one after the other. With a new goroutine per
	// call, its stack would have to grow each time.
	callWorkers = 256

	// Windows of fixed size: for dynamic windows, the server would ping its clients all the time.
	// They also limit the memory of a connection.
	callWindow     = 64 << 10
	callConnWindow = 1 << 20

	callHandshake = 5 * time.Second
	callIdle      = 5 * time.Minute
	callPing      = 30 * time.Second // a client that is silent for this long gets a ping
	callPong      = 10 * time.Second
	leastPing     = 10 * time.Second // minimum interval of clients' pings
)

// NewGRPC returns a server. config is the TLS configuration, or nil.
func NewGRPC(config *tls.Config) *GRPC {
	g := &GRPC{server: new(atomic.Pointer[server]), health: health.NewServer()}
	g.ready(false)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(wireCodec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxCallHeaders),
		grpc.MaxConcurrentStreams(maxCallStreams),
		grpc.ConnectionTimeout(callHandshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: callIdle, Time: callPing, Timeout: callPong}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
		grpc.StaticStreamWindowSize(callWindow),
		grpc.StaticConnWindowSize(callConnWindow),
		grpc.NumStreamWorkers(callWorkers),
		grpc.UnaryInterceptor(g.asideUnary),
		grpc.StreamInterceptor(g.asideStream),
	}
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	g.served = grpc.NewServer(options...)
	g.served.RegisterService(&grpc.ServiceDesc{
		ServiceName: envoyService, Metadata: envoyFile,
		// The method is registered as a stream, so that the key is checked before the server waits
		// for the message. The protocol is the same.
		Streams: []grpc.StreamDesc{{
			StreamName: envoyMethod,
			Handler:    func(_ any, stream grpc.ServerStream) error { return g.shouldRateLimit(stream) },
		}},
	}, nil)
	healthpb.RegisterHealthServer(g.served, g.health)
	reflection.Register(g.served)
	return g
}

// Serve serves a listener until the server is shut down, and then returns nil.
func (g *GRPC) Serve(listener net.Listener) error { return g.served.Serve(listener) }

// open directs calls to s.
func (g *GRPC) open(s *server) {
	g.server.Store(s)
	g.ready(true)
}

func (g *GRPC) ready(ready bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthpb.HealthCheckResponse_SERVING
	}
	g.health.SetServingStatus("", state)
	g.health.SetServingStatus(envoyService, state)
}

// Drain makes health checks report that the server is about to stop. Calls are still answered.
func (g *GRPC) Drain() { g.health.Shutdown() }

// Shutdown asks all clients to reconnect elsewhere, and waits until their calls are answered, or
// ctx ends.
func (g *GRPC) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		g.served.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		g.served.Stop()
		<-done
		return ctx.Err()
	}
}

// admitAside limits the calls that need no key.
func (g *GRPC) admitAside() error {
	if g.aside.Add(1) <= maxAside {
		return nil
	}
	g.aside.Add(-1)
	return status.Error(codes.ResourceExhausted, "too many calls to health and reflection are under way")
}

func (g *GRPC) asideUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := g.admitAside(); err != nil {
		return nil, err
	}
	defer g.aside.Add(-1)
	return handle(ctx, req)
}

func (g *GRPC) asideStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if info.FullMethod == envoyPath {
		return handle(srv, stream)
	}
	if err := g.admitAside(); err != nil {
		return err
	}
	defer g.aside.Add(-1)
	return handle(srv, stream)
}

// wireMessage has the bytes of a message.
type wireMessage struct{ bytes []byte }

// wireCodec passes the bytes of a wireMessage unchanged. Other messages belong to the services
// beside.
type wireCodec struct{ encoding.CodecV2 }

func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, raw := v.(*wireMessage)
	if !raw {
		return c.CodecV2.Marshal(v)
	}
	// A copy, because the connection sends it after the caller has continued.
	return mem.BufferSlice{mem.Copy(m.bytes, mem.DefaultBufferPool())}, nil
}

func (c wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, raw := v.(*wireMessage)
	if !raw {
		return c.CodecV2.Unmarshal(data, v)
	}
	for _, part := range data {
		m.bytes = append(m.bytes, part.ReadOnlyData()...)
	}
	return nil
}
