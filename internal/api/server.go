package api

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of a connection. A check is answered in milliseconds, so they affect only broken and
// hostile clients.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // the whole request, including the body
	writeTimeout      = 10 * time.Second
	// idleTimeout is longer than the 60 s of common load balancers. The balancer then closes idle
	// connections, because it knows which requests it is about to send.
	idleTimeout    = 75 * time.Second
	maxHeaderBytes = 16 << 10
	maxStreams     = 100 // concurrent HTTP/2 requests on one connection
	// maxHandlers is the number of HTTP/2 requests in progress that are no checks, live pages
	// included. Each keeps its memory until a long answer is read.
	maxHandlers   = 4096
	leastHandlers = 16 // what a network has even if others use all
)

// NewServer returns a server for h with the limits of a public listener. HTTP/2 is available only
// over TLS. Errors of net/http itself (failed handshakes, broken clients) are logged at level
// debug, because any client can cause them at any rate.
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
