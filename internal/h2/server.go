package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"weir/internal/places"
)

// Limits bound what one connection may use, and what all of them may use of the handler. All except
// Request and Response are required.
type Limits struct {
	// Handlers is the number of requests that the handler answers at once. A network has at most a
	// quarter of what is left, and always HandlersOf. Further requests are reset as refused, so
	// clients send them again. A request ends to count when its answer waits for its client.
	Handlers, HandlersOf int
	// Unread is the number of answers of the handler that wait for their clients to read. Each
	// keeps its goroutine, the head of the request, and what is left of the answer. Beyond it, the
	// network with the most loses the one of which nothing was read for the longest time.
	Unread int
	// Rest is the number of bytes of answers that nobody works on any more and that wait for their
	// clients: of direct calls, and the ends of the handler's. Beyond it, the network with the most
	// loses its oldest answer.
	Rest int

	Streams     int           // concurrent streams of a connection, those in progress after a reset included
	HeaderBytes int           // size of a header list, as HTTP/2 counts it
	Window      int           // bytes of a request that may arrive before anybody waits for them
	ConnWindow  int           // the same for all requests of a connection
	Head        time.Duration // for the handshake, the preface, and the rest of a frame or header block
	Body        time.Duration // for the body of a direct call, once it is waited for
	BodyEnd     time.Duration // for a short rest of a body of a request to the handler that was not read; 0: none
	Write       time.Duration // for a client to accept anything, or the rest of an answer
	Request     time.Duration // for the body of a request to the handler, unless it sets another deadline; 0: no limit
	Response    time.Duration // for the handler's answer, unless it sets another deadline; 0: no limit
	Idle        time.Duration // a connection without streams is closed after it
	Ping        time.Duration // a client that is silent for it gets a ping
	Pong        time.Duration // for the answer to that ping
	LeastPing   time.Duration // minimum interval of a client's pings
	Drain       time.Duration // for a client to read that the server stops, and to close the connection then
	Frames      Budget        // frames that bring nothing: see flood.go
	Resets      Budget        // streams that the client resets, or opens beyond Streams
}

// Config says how requests are answered. All functions are called concurrently.
type Config struct {
	Limits Limits
	// Handshake prepares a connection, for example with TLS. Its state is nil without TLS. It must
	// end when the deadline of the connection passes. nil: nothing to do.
	Handshake func(net.Conn) (net.Conn, *tls.ConnectionState, error)
	// Direct reports whether Call answers the request. It must not block.
	Direct func(*Head) bool
	// Call answers a request with Call.Answer, Call.AnswerHTTP or Call.Fail, and returns true. It
	// must not use the Call afterwards. If it returns false, it has not answered, and Handler does.
	Call func(*Call) (answered bool)
	// Handler answers all other requests. It can set deadlines with http.ResponseController.
	Handler http.Handler
	// Client returns the address for which a request to Handler counts, for example that behind a
	// proxy. nil: that of the connection.
	Client func(remote netip.Addr, head *Head) netip.Addr
	// Starts are places for requests to Handler that run, by client. nil: all run at once.
	Starts *places.Starts[netip.Prefix]
	// Parts is told of parts of bodies that are much shorter than a KiB, and of header lists that
	// take as long as so many parts, and waits until they may be read. The connection waits for it.
	// nil: all may.
	Parts func(client netip.Addr, parts int)
	// Patient makes Shutdown wait for Handler, instead of cancelling its requests.
	Patient bool
	// Panicked is told of a panic of Call or Handler. The stream is reset.
	Panicked func(fault any)
}

// Server serves connections.
type Server struct {
	Config
	handlers *places.Nested[netip.Prefix]
	unread   *places.Crowd[netip.Prefix]
	rests    *places.Crowd[netip.Prefix] // by parts of restPart

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	stopping  bool
	empty     chan struct{} // closed when stopping is set and no connection is open
}

// New returns a server.
func New(config Config) *Server {
	return &Server{
		Config: config, handlers: places.NewNested[netip.Prefix](), unread: places.NewCrowd[netip.Prefix](config.Limits.Unread),
		rests:     places.NewCrowd[netip.Prefix](config.Limits.Rest / restPart),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, empty: make(chan struct{}),
	}
}

// Serve serves a listener until Shutdown, and then returns nil.
func (s *Server) Serve(listener net.Listener) error {
	s.mu.Lock()
	stopping := s.stopping
	if !stopping {
		s.listeners[listener] = struct{}{}
	}
	s.mu.Unlock()
	if stopping {
		_ = listener.Close() // nobody reads the error, and no connection depends on it
		return nil
	}
	for delay := time.Duration(0); ; {
		socket, err := listener.Accept()
		if err == nil {
			delay = 0
			go s.serve(socket)
			continue
		}
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		if stopping {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// Probably too many open files: wait until some are closed.
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		time.Sleep(delay)
	}
}

// ServeConn serves one connection to its end, after the handshake. state is that of TLS; nil:
// without TLS.
func (s *Server) ServeConn(conn net.Conn, state *tls.ConnectionState) {
	c := newConn(s, conn)
	c.tls, c.shaken = state, true
	s.serveConn(c)
}

// serve serves one connection to its end.
func (s *Server) serve(socket net.Conn) { s.serveConn(newConn(s, socket)) }

func (s *Server) serveConn(c *conn) {
	if !s.add(c) {
		_ = c.Close()
		return
	}
	defer s.remove(c)
	c.serve()
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.stopping && len(s.conns) == 0 {
		close(s.empty)
	}
}

// Shutdown closes the listeners, asks all clients to connect elsewhere, and waits until their
// requests are answered. Requests that Handler still answers when no direct call is in progress
// are cancelled, unless the server is patient. If ctx ends, Shutdown closes all connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	for listener := range s.listeners {
		_ = listener.Close() // it accepts no more either way
	}
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	if first && len(conns) == 0 {
		close(s.empty)
	}
	s.mu.Unlock()
	for _, c := range conns {
		go c.drain()
	}
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
	}
	for _, c := range conns {
		c.abort()
	}
	<-s.empty
	return ctx.Err()
}
