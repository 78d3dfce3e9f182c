package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/api"
	"weir/internal/conns"
	"weir/internal/origin"
)

// shutdownTime is how long concurrent requests may take to end after the drain time.
const shutdownTime = 10 * time.Second

// front has the listeners of the process, from startup to its end. Until the service is ready,
// /healthz answers that the process is alive, and everything else answers that it is not ready.
type front struct {
	log      *slog.Logger
	handler  atomic.Pointer[http.Handler]
	draining atomic.Bool
	reason   atomic.Pointer[string] // why the instance is not ready

	lane     *api.Lane
	public   []*endpoint
	internal *endpoint     // nil if off
	calls    *callEndpoint // nil if off
	cert     *certificate
	proxies  origin.Proxies
	bound    *conns.Bound // of the connections of public and calls
	failed   chan error   // receives the error of a part that must not fail
	patience time.Duration
}

// endpoint is one address and the server on it.
type endpoint struct {
	name     string // name of its variable
	secure   bool   // TLS; a TLSConfig does not show this, because net/http sets one on every server
	listener net.Listener
	lane     *api.Lane // reads requests before server does; nil without one
	server   *http.Server
}

// callEndpoint is the address of gRPC and the server on it.
type callEndpoint struct {
	listener net.Listener
	server   *api.GRPC
}

// openFront opens all listeners, or none.
func openFront(cfg *Config, log *slog.Logger, registry *prometheus.Registry) (*front, error) {
	f := &front{log: log, lane: api.NewLane(), failed: make(chan error, 1), patience: shutdownTime}
	f.notReady("The service is starting.")
	f.handle(http.HandlerFunc(f.serveStarting))
	if err := f.open(cfg, registry); err != nil {
		f.closeListeners()
		return nil, err
	}
	return f, nil
}

func (f *front) open(cfg *Config, registry *prometheus.Registry) (err error) {
	proxies, err := origin.ParseProxies(cfg.TrustedProxies)
	if err != nil {
		return fmt.Errorf("WEIR_TRUSTED_PROXIES: %w", err)
	}
	f.proxies = proxies
	f.bound = newConnections(mostConnections(cfg.MaxConnections, openFiles()), registry)
	public := proxies.Handler(api.Starting(f))
	if serves(cfg.HTTPSAddr) || cfg.GRPCTLS {
		if f.cert, err = loadCertificate(cfg.TLSCert, cfg.TLSKey, f.log, registry); err != nil {
			return err
		}
	}
	for _, p := range []struct {
		name, addr string
		cert       *certificate
	}{{"WEIR_HTTP_ADDR", cfg.HTTPAddr, nil}, {"WEIR_HTTPS_ADDR", cfg.HTTPSAddr, f.cert}} {
		if !serves(p.addr) {
			continue
		}
		e, err := listen(p.name, p.addr, api.NewServer(public, f.log))
		if err != nil {
			return err
		}
		if p.cert != nil {
			e.secure, e.server.TLSConfig = true, api.PrepareTLS(p.cert.config())
		}
		e.listener, e.lane = f.bound.Listen(e.listener), f.lane
		f.public = append(f.public, e)
	}
	if serves(cfg.GRPCAddr) {
		if err := f.openCalls(cfg); err != nil {
			return err
		}
	}
	if serves(cfg.InternalAddr) {
		server := api.NewServer(api.NewInternal(registry, strings.FieldsFunc(cfg.InternalHosts, func(c rune) bool { return c == ',' || c == ' ' })), f.log)
		server.WriteTimeout = 0 // a profile takes as long as the request specifies
		if f.internal, err = listen("WEIR_INTERNAL_ADDR", cfg.InternalAddr, server); err != nil {
			return err
		}
	}
	return nil
}

func (f *front) openCalls(cfg *Config) error {
	listener, err := listenTCP("WEIR_GRPC_ADDR", cfg.GRPCAddr)
	if err != nil {
		return err
	}
	var config *tls.Config
	if cfg.GRPCTLS {
		config = f.cert.config()
	}
	f.calls = &callEndpoint{listener: f.bound.Listen(listener), server: api.NewGRPC(config)}
	return nil
}

// mostConnections returns the bound of open connections. A quarter of the files that the process
// may open (0: unknown) is for Postgres, Redis, providers and the internal address.
func mostConnections(configured, files int) int {
	if files == 0 {
		return configured
	}
	return max(1, min(configured, files/4*3))
}

// newConnections returns the bound of open connections, with its metrics.
func newConnections(most int, registry *prometheus.Registry) *conns.Bound {
	evicted := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_connections_evicted_total", Help: "Connections that were closed because too many were open.",
	})
	bound := conns.New(most, evicted.Inc)
	registry.MustRegister(evicted, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_connections_open", Help: "Open connections of clients.",
	}, func() float64 { return float64(bound.Open()) }))
	return bound
}

// grpc returns the gRPC server, or nil if it is off.
func (f *front) grpc() *api.GRPC {
	if f.calls == nil {
		return nil
	}
	return f.calls.server
}

func listen(name, addr string, server *http.Server) (*endpoint, error) {
	listener, err := listenTCP(name, addr)
	if err != nil {
		return nil, err
	}
	return &endpoint{name: name, listener: listener, server: server}, nil
}

func listenTCP(name, addr string) (net.Listener, error) {
	config := net.ListenConfig{Control: limitUnsent}
	config.SetMultipathTCP(false) // its connections do not inherit the limit
	listener, err := config.Listen(context.Background(), "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use by another process; set %s to another address", name, addr, name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return listener, nil
}

// start begins to serve. Its background work ends with ctx.
func (f *front) start(ctx context.Context) {
	for _, e := range f.endpoints() {
		go f.serve(e)
		f.log.Info("listening", "variable", e.name, "address", e.listener.Addr().String())
	}
	if f.calls != nil {
		go func() { f.failIf("WEIR_GRPC_ADDR", f.calls.server.Serve(f.calls.listener)) }()
		f.log.Info("listening", "variable", "WEIR_GRPC_ADDR", "address", f.calls.listener.Addr().String())
	}
	if f.cert != nil {
		go f.cert.Run(ctx)
	}
}

func (f *front) endpoints() []*endpoint {
	if f.internal == nil {
		return f.public
	}
	return append([]*endpoint{f.internal}, f.public...)
}

func (f *front) serve(e *endpoint) {
	listener := e.listener
	switch {
	case e.lane == nil:
	case e.secure:
		listener = e.lane.ListenTLS(listener, e.server.TLSConfig, e.server.Handler)
	default:
		listener = e.lane.Listen(listener)
	}
	err := e.server.Serve(listener)
	if !errors.Is(err, http.ErrServerClosed) {
		f.failIf(e.name, err)
	}
}

// failIf ends the process in an orderly way if a part that must not fail has failed.
func (f *front) failIf(what string, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	select {
	case f.failed <- fmt.Errorf("%s: %w", what, err):
	default: // one error is enough
	}
}

// handle sets the handler of the public listeners.
func (f *front) handle(h http.Handler) { f.handler.Store(&h) }

func (f *front) notReady(reason string) { f.reason.Store(&reason) }

// ServeHTTP answers a public request. While draining, it asks each client to stop using the
// connection: net/http turns the header into a GOAWAY for HTTP/2. It does not close idle
// connections, so that no client finds its connection closed while it sends.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	(*f.handler.Load()).ServeHTTP(w, r)
}

func (f *front) serveStarting(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	api.SetBrowserHeaders(w.Header(), r)
	if r.URL.Path == "/healthz" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
		return
	}
	body, err := json.Marshal(api.Problem{
		Type: "/docs/errors/not-ready", Title: "The instance is not ready", Status: http.StatusServiceUnavailable,
		Code: "NOT_READY", Detail: *f.reason.Load(), Instance: r.URL.Path,
	})
	if err != nil {
		panic(err) // cannot happen: the value has only strings and a number
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write(append(body, '\n'))
}

// drain continues to serve for a while, so that load balancers notice that /readyz fails and send
// requests elsewhere. Then it waits for concurrent requests, but not for clients that never read
// their answers: interrupting them is part of an orderly end, and no error.
func (f *front) drain(wait time.Duration) error {
	f.draining.Store(true)
	f.lane.Drain()
	if f.calls != nil {
		f.calls.server.Drain()
	}
	f.log.Info("draining", "for", wait.String())
	timer := time.NewTimer(wait)
	<-timer.C
	ctx, cancel := context.WithTimeout(context.Background(), f.patience)
	defer cancel()
	var errs []error
	ended := func(what string, err error) {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			f.log.Warn("interrupted", "what", what, "after", f.patience.String())
		case err != nil:
			errs = append(errs, fmt.Errorf("end %s: %w", what, err))
		}
	}
	// Calls have the same time, and do not wait for a slow reader of another address.
	calls := make(chan error, 1)
	if f.calls != nil {
		go func() { calls <- f.calls.server.Shutdown(ctx) }()
	}
	for _, e := range f.public {
		ended("requests to "+e.name, e.server.Shutdown(ctx))
	}
	if f.calls != nil {
		ended("calls to WEIR_GRPC_ADDR", <-calls)
	}
	ended("checks", f.lane.Shutdown(ctx))
	if f.internal != nil {
		errs = append(errs, f.internal.server.Close())
	}
	return errors.Join(errs...)
}

func (f *front) closeListeners() {
	for _, e := range f.endpoints() {
		_ = e.listener.Close()
	}
	if f.calls != nil {
		_ = f.calls.listener.Close()
	}
}

// url returns a URL of the endpoint of this variable for a client on this machine, or "" if it is
// off.
func (f *front) url(variable string) string {
	for _, e := range f.public {
		if e.name == variable {
			return localURL(e.listener.Addr().(*net.TCPAddr), e.secure)
		}
	}
	return ""
}

func localURL(addr *net.TCPAddr, secure bool) string {
	scheme, host := "http", "localhost"
	if secure {
		scheme = "https"
	}
	if !addr.IP.IsUnspecified() && !addr.IP.IsLoopback() {
		host = addr.IP.String()
	}
	return fmt.Sprintf("%s://%s", scheme, net.JoinHostPort(host, fmt.Sprint(addr.Port)))
}
