package api

import (
	"log/slog"
	"net/http"
	"time"
)

// What a connection may take before it is cut. A check is answered in milliseconds, so these bound
// only broken and hostile clients.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // the whole request, body included
	writeTimeout      = 10 * time.Second
	// idleTimeout is longer than the 60 s of common load balancers, so that the balancer, which
	// knows of the requests it is about to send, is the one to close an idle connection.
	idleTimeout    = 75 * time.Second
	maxHeaderBytes = 16 << 10
	maxStreams     = 100 // HTTP/2 requests at once on one connection
)

// NewServer returns a server for h with the limits of a public listener. HTTP/2 is spoken over TLS
// only. What net/http itself has to say (broken handshakes, broken clients) goes to logger as
// debug: any unknown client can cause it, at any rate.
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
