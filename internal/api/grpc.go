package api

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3" // for reflection
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"weir/internal/h2"
	"weir/internal/origin"
	"weir/internal/places"
)

// GRPC serves Envoy's rate-limit service, and the services that tools expect: health and
// reflection. It can listen before the service is ready, and answers that it is unavailable until
// then.
//
// Calls of the rate-limit service are answered directly on the connection (package h2, envoy.go).
// Everything else on the same connection goes to a server of the gRPC library. See
// docs/decisions/0020-a-lane-for-calls.md.
type GRPC struct {
	server *atomic.Pointer[server]
	health *health.Server
	beside *grpc.Server
	conns  *h2.Server
	// handshakes are places for the handshakes of connections with TLS.
	handshakes *handshakeRounds
	// Calls to beside, by network: unary health checks, and the others, which may stay open.
	checks, streams *places.Nested[netip.Prefix]
	reflections     *rate.Limiter
}

// Limits of a connection.
const (
	// maxMessage has space for 16 descriptors with all headers that Envoy accepts from a customer,
	// 60 KiB by default. A longer message fails, and most gateways then allow the request.
	maxMessage     = 1 << 20
	maxCallHeaders = 16 << 10 // bytes of metadata
	maxCallStreams = 100      // concurrent calls on one connection
	// maxAside limits the open calls to health and reflection, which need no key. A network has at
	// most a quarter of what is left, and always leastAside. Unary health checks have as many
	// places of their own, each for at most healthCheckTimeout.
	maxAside           = 256
	leastAside         = 8
	healthCheckTimeout = 2 * time.Second
	reflectionTimeout  = 10 * time.Second
	// besideBody is more than a tool sends to learn all types of the service.
	besideBody = 8 << 10
	// A call of reflection takes up to 50 ms of a processor, and needs no key. The number is by
	// second, and for all clients together.
	reflectionRate, reflectionBurst = 2, 20

	callWindow     = 64 << 10
	callConnWindow = 1 << 20

	callHandshake = 5 * time.Second
	callIdle      = 5 * time.Minute
	callPing      = 30 * time.Second // a client that is silent for this long gets a ping
	callPong      = 10 * time.Second
	leastPing     = 10 * time.Second // minimum interval of clients' pings
	callDrain     = time.Second      // a client that is about to connect elsewhere
)

var callLimits = h2.Limits{
	Handlers: maxHandlers, HandlersOf: leastHandlers, Unread: maxUnreadAnswers, Rest: maxUnreadRests,
	Streams: maxCallStreams, HeaderBytes: maxCallHeaders, Window: callWindow, ConnWindow: callConnWindow,
	Head: callHandshake, Body: checkBodyTimeout, Write: writeTimeout,
	Idle: callIdle, Ping: callPing, Pong: callPong, LeastPing: leastPing, Drain: callDrain,
	Frames: h2.Budget{Burst: 1000, PerSecond: 100, PerAnswer: 40},
	// A gateway cancels calls that take too long, all of them if Redis is unavailable.
	Resets: h2.Budget{Burst: 2000, PerSecond: 1000, PerAnswer: 1},
}

// NewGRPC returns a server. config is the TLS configuration, or nil.
func NewGRPC(config *tls.Config) *GRPC { return newGRPC(config, callLimits) }

func newGRPC(config *tls.Config, limits h2.Limits) *GRPC {
	g := &GRPC{server: new(atomic.Pointer[server]), health: health.NewServer(), handshakes: handshakes,
		checks: places.NewNested[netip.Prefix](), streams: places.NewNested[netip.Prefix](),
		reflections: rate.NewLimiter(reflectionRate, reflectionBurst)}
	g.ready(false)
	g.beside = grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage))
	g.beside.RegisterService(&grpc.ServiceDesc{
		ServiceName: envoyService, Metadata: envoyFile,
		// The service is here for reflection. Its calls arrive here only if they are no calls of
		// gRPC, and the library refuses them before it looks for a method.
		Streams: []grpc.StreamDesc{{StreamName: envoyMethod, Handler: func(any, grpc.ServerStream) error {
			return status.Error(codes.Internal, "The call is not answered directly.")
		}}},
	}, nil)
	healthpb.RegisterHealthServer(g.beside, g.health)
	reflection.Register(g.beside)
	served := h2.Config{
		Limits: limits, Direct: directCall, Call: func(call *h2.Call) bool { g.shouldRateLimit(call); return true },
		Handler: http.HandlerFunc(g.serveBeside), Panicked: g.panicked, Parts: parts.waitHTTP2, Starts: starts,
	}
	if config != nil {
		served.Handshake = handshake(credentials.NewTLS(config))
	}
	g.conns = h2.New(served)
	return g
}

// handshake returns a function that makes the TLS handshake as the gRPC library does, for the
// connections of a handshakeListener.
func handshake(secure credentials.TransportCredentials) func(net.Conn) (net.Conn, *tls.ConnectionState, error) {
	return func(socket net.Conn) (net.Conn, *tls.ConnectionState, error) {
		var conn net.Conn
		var info credentials.AuthInfo
		below := socket.(*handshakeConn)
		err := below.shake(func() (err error) {
			conn, info, err = secure.ServerHandshake(socket)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		state := info.(credentials.TLSInfo).State
		return &secureConn{conn, below}, &state, nil
	}
}

// Serve serves a listener until the server is shut down, and then returns nil.
func (g *GRPC) Serve(listener net.Listener) error {
	if g.conns.Handshake != nil {
		listener = &handshakeListener{Listener: listener, rounds: g.handshakes, limit: callHandshake}
	}
	return g.conns.Serve(listener)
}

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
	err := g.conns.Shutdown(ctx)
	g.beside.Stop()
	return err
}

// serveBeside answers a request that is no call of the rate-limit service. It limits their number,
// because they need no key. Calls that stay open use no place of health checks, which decide
// whether the instance gets traffic.
func (g *GRPC) serveBeside(w http.ResponseWriter, r *http.Request) {
	kind, most := g.streams, reflectionTimeout
	watches := r.URL.Path == healthpb.Health_Watch_FullMethodName
	if r.URL.Path == healthpb.Health_Check_FullMethodName {
		kind, most = g.checks, healthCheckTimeout
	} else if !watches && !g.reflections.Allow() {
		tooManyBeside(w)
		return
	}
	if !watches {
		ctx, cancel := context.WithTimeout(r.Context(), most)
		defer cancel()
		r = r.WithContext(ctx)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(most)) // it has no error
	}
	// The library reads the body ahead without a bound, while the client reads no answers.
	r.Body = http.MaxBytesReader(w, r.Body, besideBody)
	client, _ := netip.ParseAddrPort(r.RemoteAddr) // without an address, it shares the places of others without one
	if leave, ok := kind.TakeShare(origin.Within(client.Addr()), maxAside, leastAside); ok {
		defer leave()
		g.beside.ServeHTTP(w, r)
		return
	}
	tooManyBeside(w)
}

func tooManyBeside(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(codes.ResourceExhausted)))
	w.Header().Set("Grpc-Message", "too many calls to health and reflection are under way")
}

// panicked counts and logs a panic outside of a decision, which has its own answer.
func (g *GRPC) panicked(fault any) {
	logger := slog.Default()
	if s := g.server.Load(); s != nil {
		s.metrics.panics.Inc()
		logger = s.logger
	}
	logger.LogAttrs(context.Background(), slog.LevelError, "panic on a gRPC connection",
		slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
}
